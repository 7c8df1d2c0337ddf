"""The same changes through Delta's change data feed: exact to the commit, at the price of what each write adds to it.

The feed has each change of each row; here a row that changed several times comes once, as it was last. It needs the
table's `delta.enableChangeDataFeed`, from before the changes that are to be read.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from deltaworks.errors import ConfigError, ContractError
from deltaworks.mutations.read_changes import Changes, FollowedTable, position_after
from deltaworks.specs.mutation import DELETED_COLUMN
from deltaworks.tables.changes import ChangePosition

PROPERTY = "delta.enableChangeDataFeed"
#: What tells a row of a table from all others, whatever is changed in it.
_ROW = ("_batch_id", "_seq", "_position")
_FEED_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")


def read_feed(followed: FollowedTable, since: ChangePosition | None, *, tombstones: bool) -> Changes:
    """The rows that changed after the position, by the feed of the data table.

    Raises:
        ConfigError: CHANGE_FEED_OFF.
        ContractError: CHANGES_EXPIRED, CHANGES_STARTED_OVER.
    """
    table = followed.lake.open(followed.key(followed.data))
    position, after = position_after(table, since, "change_feed")
    if table is not None and table.metadata().configuration.get(PROPERTY) != "true":
        raise ConfigError(
            "CHANGE_FEED_OFF",
            f"{table.table_uri} has no change data feed.",
            hint=f"ALTER TABLE ... SET TBLPROPERTIES ('{PROPERTY}' = 'true') while nothing writes to it, and read "
            "everything once; or read through notifications.",
        )
    version = None if table is None else position.version
    snapshot = followed.at(version)
    if after is None:
        changed, nothing = snapshot, table is None
    elif after == position.version:
        changed, nothing = snapshot.where(F.lit(False)), True
    else:
        changed, nothing = _newest(followed, after + 1, position.version), False
    return Changes(
        rows=changed if tombstones else followed.living(changed),
        snapshot=followed.living(snapshot),
        position=position,
        data_version=version,
        nothing=nothing,
    )


def _newest(followed: FollowedTable, first: int, last: int) -> DataFrame:
    uri = followed.lake.storage.spark_uri(followed.key(followed.data))
    reader = followed.spark.read.format("delta").option("readChangeFeed", "true")
    try:
        feed = reader.option("startingVersion", first).option("endingVersion", last).load(uri)
    except Exception as error:  # Delta says by many classes that commits are gone.
        raise ContractError(
            "CHANGES_EXPIRED",
            f"The feed of {uri} cannot be read from version {first} to {last}: {str(error).splitlines()[0][:500]}",
            hint="Read everything anew with since=None, and poll more often than the log and VACUUM's retention allow.",
        ) from error
    feed = feed.where(F.col("_change_type") != "update_preimage")
    # One commit that takes a row out and puts it back leaves it in the table.
    order = [F.col("_commit_version").desc(), (F.col("_change_type") == "delete").asc()]
    newest = feed.withColumn("_rank", F.row_number().over(Window.partitionBy(*_ROW).orderBy(*order)))
    rows = newest.where(F.col("_rank") == 1)
    gone = F.col("_change_type") == "delete"
    if followed.data.mutable is None:
        return rows.where(~gone).drop("_rank", *_FEED_COLUMNS)
    # Rows are taken out for good long after requests deleted them: that was told then.
    known = gone & F.coalesce(F.col(DELETED_COLUMN), F.lit(False))
    deleted = F.when(gone, F.lit(True)).otherwise(F.col(DELETED_COLUMN))
    return rows.where(~known).withColumn(DELETED_COLUMN, deleted).drop("_rank", *_FEED_COLUMNS)
