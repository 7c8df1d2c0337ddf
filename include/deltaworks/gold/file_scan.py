"""Tables that a build reads, handed to Spark as the files that are needed of them.

Reading a Delta table, Spark lists its log, reads the newest commits in jobs of its own, and looks for the files in
another one: a second for each table and version, however few rows are wanted. delta-rs has the log in some
milliseconds. Which files lie in the part, by their partitions and bounds, is decided here, and Spark reads those as
plain Parquet. What asks more of a reader than that (deletion vectors, column mapping, wider types), and what is spread
over many folders, goes through Delta as ever.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from deltaworks.gold.parts import DATE_COLUMN, Part, hours_of_dates
from deltaworks.tables.changed_hours import hour_of
from deltaworks.tables.changes import sql_literal
from deltaworks.tables.lake import Lake

log = logging.getLogger(__name__)
#: Folders that are listed at most: they are, one after the other.
MAX_FOLDERS = 8
#: Up to so many files are named one by one, each of which Spark asks the storage about; above, folders are listed.
MAX_NAMED_FILES = 8
#: Files of folders that are left out, or else taken, by their names in a condition.
_MAX_FILTERED_NAMES = 4_000
#: Reader features that ask nothing of whoever reads the files of a snapshot.
_PLAIN_FEATURES = frozenset({"timestampNtz", "vacuumProtocolCheck"})
_TABLE_FEATURES_VERSION = 3
#: Paths whose spelling is the same in a log, in an address and on every storage.
_PLAIN_PATH = re.compile(r"(?:[A-Za-z0-9_.=-]+/)*[A-Za-z0-9_.=-]+")


@dataclass(frozen=True, slots=True)
class FileScan:
    """What is read of a table at one version.

    Args:
        part: of which rows are wanted. Others may come too: rows are not looked at here.
        column: of the table, that the values of `part` are of.
        time_column: of the table, with the instants of rows; empty where it has none.
    """

    key: str
    version: int
    part: Part
    column: str
    time_column: str = ""


def read_plain_files(spark: SparkSession, lake: Lake, table: DeltaTable, scan: FileScan) -> DataFrame | None:
    """The rows of the files in which rows of the part may be; None where the table has to be read through Delta.

    Args:
        table: open at the version.
    """
    if not has_plain_files(table):
        return None
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    partitions = list(table.metadata().partition_columns)
    files = list(file_paths(table, scan))
    folders = {path.rpartition("/")[0] for path in files}
    if len(folders) > MAX_FOLDERS or not all(_has_partition_path(path, partitions) for path in files):
        return None
    if not files:
        return spark.createDataFrame([], schema)
    uri = lake.storage.spark_uri(scan.key)
    reader = spark.read.schema(schema).option("basePath", uri)
    rows: DataFrame | None
    if len(files) <= MAX_NAMED_FILES:
        rows = reader.parquet(*(f"{uri}/{path}" for path in files))
    else:
        listed = reader.parquet(*(f"{uri}/{folder}".rstrip("/") for folder in sorted(folders)))
        rows = _filter_snapshot_files(listed, uri, files)
        if rows is None:
            log.warning("%s: the files of version %s cannot be told apart by folders", scan.key, scan.version)
            return None
    return rows.select(*(F.col(f"`{name}`") for name in schema.names))


def row_count(table: DeltaTable | None) -> int | None:
    """The rows of an open table's files, by its log; None where one says nothing of them. A table that is not there has
    none."""
    counts = [] if table is None else pa.table(table.get_add_actions()).column("num_records").to_pylist()
    return None if None in counts else sum(counts)


def has_plain_files(table: DeltaTable) -> bool:
    """Whether the rows of the open table are those of its files, as they are."""
    protocol = table.protocol()
    if protocol.min_reader_version == 1:
        return True
    return (
        protocol.min_reader_version == _TABLE_FEATURES_VERSION
        and not set(protocol.reader_features or ()) - _PLAIN_FEATURES
    )


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file of a table by its log: `rows` is None where that says nothing of them, `date` where the file is not of one
    date by its partition."""

    path: str
    size: int
    rows: int | None
    date: dt.date | None


def added_files(table: DeltaTable, scan: FileScan) -> Iterator[AddedFile]:
    """The open table's files in which rows of the scan's part may be. Reads its log alone."""
    partitions = table.metadata().partition_columns
    added = pa.table(table.get_add_actions(flatten=True))
    sources = {
        "path": "path",
        "size": "size_bytes",
        "rows": "num_records",
        "date": f"partition.{DATE_COLUMN}",
        "partition": f"partition.{scan.column}" if scan.column in partitions else "",
        "first": f"min.{scan.time_column}",
        "last": f"max.{scan.time_column}",
    }
    present = {name: column for name, column in sources.items() if column in added.column_names}
    hours = _all_hours(scan.part)
    for row in added.select(list(present.values())).rename_columns(list(present)).to_pylist():
        if ("partition" not in row or _may_contain(scan.part, row["partition"])) and _overlaps(row, hours):
            date = row.get("date")
            yield AddedFile(row["path"], row["size"], row.get("rows"), date if isinstance(date, dt.date) else None)


def file_paths(table: DeltaTable, scan: FileScan) -> Iterator[str]:
    """The paths of the open table's files in which rows of the part may be. Reads its log alone."""
    return (file.path for file in added_files(table, scan))


def _may_contain(part: Part, value: Any) -> bool:
    """Whether rows of a partition are in the part, in some of its hours too."""
    if part.values is None:
        return True
    if value is None:
        return False
    if isinstance(value, dt.datetime):
        value = value.date()
    return part.contains(value) or value in {hour.date() for hour in part.hours or ()}


def _all_hours(part: Part) -> frozenset[dt.datetime] | None:
    """All hours of the part; None where files are not to be chosen by them."""
    if not part.hours or part.values is None or part.since is not None:
        return None
    dates = [value for value in part.values if isinstance(value, dt.date)]
    return frozenset((*part.hours, *hours_of_dates(dates)))


def _overlaps(row: Mapping[str, Any], hours: frozenset[dt.datetime] | None) -> bool:
    first, last = row.get("first"), row.get("last")
    if hours is None or not isinstance(first, dt.datetime) or not isinstance(last, dt.datetime):
        return True
    hour, end = hour_of(_to_utc(first)), _to_utc(last)
    return any(hour <= one <= end for one in hours)


def _to_utc(instant: dt.datetime) -> dt.datetime:
    return instant.replace(tzinfo=dt.UTC) if instant.tzinfo is None else instant.astimezone(dt.UTC)


def _has_partition_path(path: str, partitions: list[str]) -> bool:
    """Whether Spark takes the values of partitions from the path, as the log has them."""
    folders = path.split("/")[:-1]
    spelled = all(folder.startswith(f"{name}=") for folder, name in zip(folders, partitions, strict=False))
    return bool(_PLAIN_PATH.fullmatch(path)) and spelled and len(folders) == len(partitions)


def _filter_snapshot_files(listed: DataFrame, uri: str, files: list[str]) -> DataFrame | None:
    """The rows of these files among those of folders; None where one was not listed, or they cannot be told apart.

    Folders have files of other versions too, and those of a batch that is not committed yet.
    """
    listed_files = {_relative_path(uri, address) for address in listed.inputFiles()}
    if not listed_files.issuperset(files):
        return None
    foreign_files = listed_files - set(files)
    if not foreign_files:
        return listed
    # By their last names, since Spark spells the addresses of rows in another way than those of files.
    names, foreign_names = {_base_name(path) for path in files}, {_base_name(path) for path in foreign_files}
    if names & foreign_names or not all(map(_PLAIN_PATH.fullmatch, foreign_names)):
        return None
    shorter_list, condition = (foreign_names, "NOT IN") if len(foreign_names) < len(names) else (names, "IN")
    if len(shorter_list) > _MAX_FILTERED_NAMES:
        return None
    # As one text, since a call into the JVM for each name costs more than the whole scan.
    name_list = ", ".join(sql_literal(name, "string") for name in sorted(shorter_list))
    return listed.filter(F.expr(f"_metadata.file_name {condition} ({name_list})"))


def _relative_path(uri: str, address: str) -> str:
    """The path of a file below the table, by its address; the address itself where it lies elsewhere."""
    root = re.sub(r"^[a-z0-9]+:/*", "", uri)
    return unquote(address).partition(f"{root}/")[2] or address


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]
