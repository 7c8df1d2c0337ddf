"""A Hive metastore as a catalog, by a Spark session with Hive support.

Spark registers a Delta table by name and location. Columns, types, descriptions and properties stay in the Delta log,
where Spark, Trino and other engines with Delta support read them, so such an entry never has to follow them. The
database of a pipeline has its description.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from deltaworks.catalogs.base import Registered, in_scheme
from deltaworks.specs.base import resolve_text
from deltaworks.specs.environment_sections import HiveCatalogSpec
from deltaworks.tables.changes import sql_literal
from deltaworks.tables.entries import TableEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

_CATALOG: Final = "spark_catalog"


def hive_settings(spec: HiveCatalogSpec) -> dict[str, str]:
    """Returns the settings of a session that uses the metastore. They only apply to a new session."""
    settings = {"spark.sql.catalogImplementation": "hive", **spec.conf}
    if spec.uri is not None:
        settings["spark.hadoop.hive.metastore.uris"] = resolve_text(spec.uri)
    return settings


class HiveCatalog:
    """A Hive metastore; see `CatalogClient`.

    Args:
        open_session: returns a session with `hive_settings`, opened at the first use.
    """

    scheme = "s3a"

    def __init__(self, open_session: Callable[[], SparkSession]) -> None:
        self._open_session = open_session
        self._session: SparkSession | None = None

    @property
    def _spark(self) -> SparkSession:
        if self._session is None:
            self._session = self._open_session()
        return self._session

    def render(self, entry: TableEntry) -> Mapping[str, Any]:
        """Returns the provider and location of the entry."""
        return {"provider": "delta", "location": in_scheme(entry.location, self.scheme)}

    def registered(self, pipeline: str) -> Mapping[str, Registered]:
        """Returns the pipeline's tables; those of other providers without a location."""
        if not self._spark.catalog.databaseExists(f"{_CATALOG}.{pipeline}"):
            return {}
        names = [row["tableName"] for row in self._spark.sql(f"SHOW TABLES IN {_quoted(pipeline)}").collect()]
        return {name: self._describe(pipeline, name) for name in names}

    def _describe(self, pipeline: str, table: str) -> Registered:
        metadata = self._spark._jsparkSession.sessionState().catalog()
        name = self._spark._jvm.org.apache.spark.sql.catalyst.TableIdentifier.apply(  # type: ignore[union-attr]
            table,
            self._spark._jvm.scala.Some(pipeline),  # type: ignore[union-attr]
        )
        # The metastore's own entry: DESCRIBE reads the table, which may be missing.
        entry = metadata.getTableMetadata(name)
        provider, location = entry.provider(), entry.storage().locationUri()
        content = {
            "provider": provider.get().lower() if provider.isDefined() else "",
            "location": _file_uri(location.get().toString()) if location.isDefined() else "",
        }
        return Registered(location=content["location"], content=content)

    def ensure_schema(self, pipeline: str, description: str) -> None:
        """Creates the database of a pipeline unless it exists."""
        comment = sql_literal(description, "string")
        self._spark.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(pipeline)} COMMENT {comment}")

    def put(self, entry: TableEntry, present: Registered | None) -> None:
        """Creates the table's entry, after dropping a present one with another location."""
        if present is not None:
            self.drop(entry.pipeline, entry.name)
        location = sql_literal(in_scheme(entry.location, self.scheme), "string")
        table = f"{_quoted(entry.pipeline)}.{_quoted(entry.name)}"
        self._spark.sql(f"CREATE TABLE IF NOT EXISTS {table} USING delta LOCATION {location}")

    def drop(self, pipeline: str, table: str) -> None:
        """Removes the table's entry; succeeds if there is none. The table is external, so its data stay."""
        self._spark.sql(f"DROP TABLE IF EXISTS {_quoted(pipeline)}.{_quoted(table)}")

    def close(self) -> None:
        """Does nothing: the session belongs to the job."""


def _quoted(name: str) -> str:
    return f"`{name}`"


def _file_uri(location: str) -> str:
    """Returns a location on local disk with three slashes, as the lake's root has them."""
    plain = location.rstrip("/")
    return f"file://{plain.removeprefix('file:')}" if plain.startswith("file:/") and "://" not in plain else plain
