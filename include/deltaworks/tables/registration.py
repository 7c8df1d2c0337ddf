"""Tables by name in a catalog of Spark: the statements that register them, for a session, a Hive metastore or Unity.

A catalog holds names and places and nothing else: schema, partitions and versions stay in the tables' logs, so what is
registered once needs no upkeep.
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

#: Of a table whose rows mutations delete, the view without those rows; the table itself has them, marked.
CURRENT_SUFFIX = "_current"


def registration_statements(
    catalog: Catalog,
    pipelines: Collection[str] = (),
    *,
    into: str = "",
    scheme: str = "s3a",
) -> tuple[list[str], list[str]]:
    """The statements of Spark's SQL that register every table there is now, and the names of those there are not yet.

    Each can be run again at any time: what is registered stays as it is, what has come since is added, nothing is
    dropped. Opens each table.

    Args:
        pipelines: by default all.
        into: the catalog of Spark they go into, such as `unity`; by default the session's own.
        scheme: how the addresses of a lake on S3 begin: `s3a` for Spark, `s3` for Unity, Trino and Glue.

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
    """Register every table there is now in the catalog of a session; how many tables and views that are.

    To be called when a session begins, or again for tables that have come since. Needs the settings of
    `deltaworks.specs.spark_conf`, which `build_session` makes.
    """
    statements, _ = registration_statements(catalog, pipelines, into=into)
    for statement in statements:
        spark.sql(statement)
    return sum(not statement.startswith("CREATE SCHEMA") for statement in statements)


def external_session_settings(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """What a session of somebody else's Spark needs to read the lake, without keys: those are for its own settings."""
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
