"""Switches merge on read on or off in a mutable table, as its declaration says.

With deletion vectors a merge marks the rows it changes and writes them anew in a small file, where it would rewrite
every file that has one of them. Reads pay for it until OPTIMIZE has taken the marked rows out.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.provenance import MUTATE, user_metadata
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.spark.session import USER_METADATA, conflicts_retried, session_settings

PROPERTY = "delta.enableDeletionVectors"


def set_deletion_vectors(
    session: SparkSession, lake: Lake, pipeline: str, table: TableSpec, *, check: Callable[[], None]
) -> bool:
    """Give the table the property where its declaration says something else than it has. Returns whether it did.

    Idempotent; a commit of its own, within the table's write turn. Switched off, marked rows stay marked until OPTIMIZE
    or a merge comes to their files.

    Args:
        check: called before the commit; what it raises is raised.

    Raises:
        ConcurrencyError: DELTA_CONFLICT where other writers were in the way time and again.
    """
    key = paths.table(pipeline, table.name)
    wanted = None if table.mutable is None else table.mutable.deletion_vectors
    made = user_metadata(pipeline=pipeline, batch="none", operation=MUTATE)
    for attempt in conflicts_retried(table.name):
        with attempt:
            opened = lake.open(key)
            if wanted is None or opened is None or (opened.metadata().configuration.get(PROPERTY) == "true") == wanted:
                return False
            check()
            with session_settings(session, {USER_METADATA: made}):
                uri, value = lake.storage.spark_uri(key), str(wanted).lower()
                session.sql(f"ALTER TABLE delta.`{uri}` SET TBLPROPERTIES ('{PROPERTY}' = '{value}')").collect()
    return True
