"""Registers the lake's tables in catalogs of other engines: AWS Glue, Unity Catalog, Hive metastores."""
