"""Registers tables in a Spark catalog: a session's own, a Hive metastore or Unity Catalog.

A catalog stores only names and locations. Schema, partitions and versions are in the tables' logs, so registered tables
need no updates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from deltaworks.specs.catalog import Catalog
from deltaworks.specs.mutation import DELETED_COLUMN
from deltaworks.tables.lake import Lake
from deltaworks.tables.query import LEDGER_TABLES, table_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Suffix of the view without rows deleted by mutations. The table itself contains these rows, flagged as deleted.
CURRENT_SUFFIX = "_current"


def registration_statements(
    catalog: Catalog,
    pipelines: Collection[str] = (),
    *,
    into: str = "",
    scheme: str = "s3a",
) -> tuple[list[str], list[str]]:
    """Returns the Spark SQL statements that register all existing tables, and the names of missing tables.

    The statements can be run repeatedly: new tables are added, and existing entries are neither changed nor dropped.
    Opens each table.

    Args:
        pipelines: by default all.
        into: the Spark catalog, such as `unity`; by default the session's own.
        scheme: URI scheme for a lake on S3: `s3a` for Spark, `s3` for Unity, Trino and Glue.

    Raises:
        ConfigError: PIPELINE_UNKNOWN.
    """
    lake, storage = Lake(catalog.environment.lake), catalog.environment.lake
    statements: list[str] = []
    missing: list[str] = []
    for pipeline in pipelines or catalog.pipelines:
        keys = table_keys(catalog.pipeline(pipeline))
        schema = f"{_quoted(into)}.{_quoted(pipeline)}" if into else _quoted(pipeline)
        created: list[str] = []
        for name, key in keys.items():
            table = lake.open(key)
            if table is None:
                missing += [] if name in LEDGER_TABLES else [f"{pipeline}.{name}"]
                continue
            location = storage.uri(key).replace("s3://", f"{scheme}://", 1)
            created.append(
                f"CREATE TABLE IF NOT EXISTS {schema}.{_quoted(name)} USING delta LOCATION '{_escaped(location)}'"
            )
            if (
                any(field.name == DELETED_COLUMN for field in table.schema().fields)
                and name + CURRENT_SUFFIX not in keys
            ):
                created.append(_create_view(f"{schema}.{_quoted(name + CURRENT_SUFFIX)}", f"{schema}.{_quoted(name)}"))
        if created:
            statements += [f"CREATE SCHEMA IF NOT EXISTS {schema}", *created]
    return statements, missing


def register_tables(spark: SparkSession, catalog: Catalog, pipelines: Collection[str] = (), *, into: str = "") -> int:
    """Registers all existing tables in a session's catalog. Returns the number of tables and views.

    Call it at the start of a session, and again after new tables were created. Needs the settings of
    `deltaworks.specs.spark_conf`, which `build_session` applies.
    """
    statements, _ = registration_statements(catalog, pipelines, into=into)
    for statement in statements:
        spark.sql(statement)
    return sum(not statement.startswith("CREATE SCHEMA") for statement in statements)


def external_session_settings(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Yields the settings that a Spark session outside of Deltaworks needs to read the lake, without credentials."""
    from deltaworks.specs.spark_conf import SESSION_SETTINGS

    for name in ("spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.sql.session.timeZone"):
        yield name, SESSION_SETTINGS[name][0]
    lake = catalog.environment.lake
    if lake.scheme == "s3":
        yield f"spark.hadoop.fs.s3a.bucket.{lake.bucket}.endpoint.region", lake.region
        yield f"spark.hadoop.fs.s3a.bucket.{lake.bucket}.path.style.access", str(lake.path_style).lower()


def _create_view(view: str, table: str) -> str:
    return (
        f"CREATE OR REPLACE VIEW {view} AS SELECT * FROM {table} WHERE NOT coalesce({_quoted(DELETED_COLUMN)}, false)"
    )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
