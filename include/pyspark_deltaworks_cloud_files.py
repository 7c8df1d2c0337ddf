"""Found by PySpark, which imports modules named pyspark_* and registers their DefaultSource: `format("cloudFiles")`."""

from __future__ import annotations

from deltaworks.sources.spark_formats.data_sources import CloudFilesDataSource as DefaultSource

__all__ = ["DefaultSource"]
