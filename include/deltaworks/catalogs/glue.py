"""AWS Glue as a catalog: tables in the form in which Athena (engine 3), Trino and Spark on EMR read Delta.

Athena reads the location and takes the schema from the entry, `table_type` DELTA; Trino's connector wants an external
table with `spark.sql.sources.provider` and the location as `path` of a sequence-file serde. Partitions are in the Delta
log, so the entry has no partition keys: their columns are ordinary ones, in the table's order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from deltaworks.catalogs.base import OWN_PREFIX, Registered, entry_properties, in_scheme
from deltaworks.control.objects import aws_session
from deltaworks.specs.environment_sections import GlueCatalogSpec
from deltaworks.tables.entries import TableEntry

#: Limits of Glue, in characters.
_COMMENT_LENGTH: Final = 255
_DESCRIPTION_LENGTH: Final = 2048
_ATTEMPTS: Final = 5
_PERSONAL: Final = "deltaworks_personal"
_PARTITION: Final = "deltaworks_partition"
_STORAGE: Final = {
    "InputFormat": "org.apache.hadoop.mapred.SequenceFileInputFormat",
    "OutputFormat": "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
}
_SERDE: Final = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
#: Types of Delta that Glue has no name for, by the type that it shows.
_TYPES: Final = {"timestamp_ntz": "timestamp", "variant": "struct<metadata:binary,value:binary>"}


class GlueCatalog:
    """The Glue catalog of an account; see `CatalogClient`."""

    scheme = "s3"

    def __init__(self, spec: GlueCatalogSpec) -> None:
        self._spec = spec
        from botocore.config import Config

        config = Config(
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS}, connect_timeout=10, read_timeout=30
        )
        self._client: Any = aws_session().client("glue", config=config, **spec.boto3_options())

    def render(self, entry: TableEntry) -> Mapping[str, Any]:
        """Returns the entry as Glue's `TableInput`."""
        location = in_scheme(entry.location, self.scheme)
        return {
            "Name": entry.name,
            "Description": entry.description[:_DESCRIPTION_LENGTH],
            "Owner": entry.owner,
            "TableType": "EXTERNAL_TABLE",
            "PartitionKeys": [],
            "Parameters": {
                "EXTERNAL": "TRUE",
                "table_type": "DELTA",
                "spark.sql.sources.provider": "delta",
                "classification": "delta",
                **entry_properties(entry),
            },
            "StorageDescriptor": {
                "Location": location,
                "Columns": [self._column(column) for column in entry.columns],
                **_STORAGE,
                "SerdeInfo": {
                    "SerializationLibrary": _SERDE,
                    "Parameters": {"serialization.format": "1", "path": location},
                },
            },
        }

    @staticmethod
    def _column(column: Any) -> dict[str, Any]:
        parameters = {
            **({_PERSONAL: "true"} if column.personal else {}),
            **({} if column.partition is None else {_PARTITION: str(column.partition)}),
        }
        return {
            "Name": column.name,
            "Type": _TYPES.get(column.type, column.type),
            "Comment": column.description[:_COMMENT_LENGTH],
            "Parameters": parameters,
        }

    def registered(self, pipeline: str) -> Mapping[str, Registered]:
        """Returns the pipeline's tables; tables of other tools in the database without their content."""
        return {table["Name"]: _registered(table) for table in self._tables(pipeline)}

    def _tables(self, pipeline: str) -> Iterator[dict[str, Any]]:
        pages = self._client.get_paginator("get_tables")
        try:
            for page in pages.paginate(**self._catalog_id(), DatabaseName=self._database(pipeline)):
                yield from page["TableList"]
        except self._client.exceptions.EntityNotFoundException:
            return

    def ensure_schema(self, pipeline: str, description: str) -> None:
        """Creates the database of a pipeline unless it exists."""
        database = {"Name": self._database(pipeline), "Description": description[:_DESCRIPTION_LENGTH]}
        try:
            self._client.create_database(**self._catalog_id(), DatabaseInput=database)
        except self._client.exceptions.AlreadyExistsException:
            return

    def put(self, entry: TableEntry, present: Registered | None) -> None:
        """Creates the table, or replaces its entry; parameters that other tools set stay."""
        table = dict(self.render(entry))
        database = self._database(entry.pipeline)
        if present is None:
            try:
                self._client.create_table(**self._catalog_id(), DatabaseName=database, TableInput=table)
                return
            except self._client.exceptions.AlreadyExistsException:
                present = self.registered(entry.pipeline).get(entry.name)
        foreign = dict((present.content if present is not None else {}).get("foreign") or {})
        table["Parameters"] = {**foreign, **table["Parameters"]}
        self._client.update_table(**self._catalog_id(), DatabaseName=database, TableInput=table)

    def drop(self, pipeline: str, table: str) -> None:
        """Removes the table's entry; succeeds if there is none."""
        try:
            self._client.delete_table(**self._catalog_id(), DatabaseName=self._database(pipeline), Name=table)
        except self._client.exceptions.EntityNotFoundException:
            return

    def close(self) -> None:
        """Closes the client's connections."""
        self._client.close()

    def _database(self, pipeline: str) -> str:
        return f"{self._spec.database_prefix}{pipeline}"

    def _catalog_id(self) -> dict[str, str]:
        return {} if self._spec.catalog_id is None else {"CatalogId": self._spec.catalog_id}


#: Parameters that an entry has from here; others belong to other tools.
_OWN_PARAMETERS: Final = frozenset({"EXTERNAL", "table_type", "spark.sql.sources.provider", "classification"})


def _registered(table: Mapping[str, Any]) -> Registered:
    storage = table.get("StorageDescriptor") or {}
    parameters = table.get("Parameters") or {}
    own = {name: value for name, value in parameters.items() if name in _OWN_PARAMETERS or name.startswith(OWN_PREFIX)}
    return Registered(
        location=str(storage.get("Location") or ""),
        content={
            "Name": table["Name"],
            "Description": table.get("Description", ""),
            "Owner": table.get("Owner", ""),
            "TableType": table.get("TableType", ""),
            "PartitionKeys": table.get("PartitionKeys") or [],
            "Parameters": own,
            "foreign": {name: value for name, value in parameters.items() if name not in own},
            "StorageDescriptor": {
                "Location": storage.get("Location"),
                "Columns": [
                    {
                        "Name": column["Name"],
                        "Type": column.get("Type", ""),
                        "Comment": column.get("Comment", ""),
                        "Parameters": column.get("Parameters") or {},
                    }
                    for column in storage.get("Columns") or ()
                ],
                "InputFormat": storage.get("InputFormat"),
                "OutputFormat": storage.get("OutputFormat"),
                "SerdeInfo": {
                    "SerializationLibrary": (storage.get("SerdeInfo") or {}).get("SerializationLibrary"),
                    "Parameters": (storage.get("SerdeInfo") or {}).get("Parameters") or {},
                },
            },
        },
    )
