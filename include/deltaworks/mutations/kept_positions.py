"""Where a reader of changes that writes a Delta table keeps its position: in the commit of what it made of a read.

So neither is ever there without the other, and a reader that is killed anywhere begins again exactly where its table
ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from deltaworks.control.provenance import user_metadata
from deltaworks.tables.changes import ChangePosition, kept_position
from deltaworks.tables.spark.session import USER_METADATA, session_settings

__all__ = ["keeping", "kept_position"]


@contextmanager
def keeping(spark: SparkSession, reader: str, position: ChangePosition) -> Iterator[None]:
    """Commits made by this session within the block carry `position`; make one, and let it have all of the output.

    Args:
        reader: who reads, for the history of the table.
    """
    made = user_metadata(pipeline=reader, batch=position.version, operation="follow_changes", changes_position=position)
    with session_settings(spark, {USER_METADATA: made}):
        yield
