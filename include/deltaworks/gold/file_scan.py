"""Reads the needed data files of a Delta table as plain Parquet. delta-rs selects the files from the log.

Spark's Delta reader takes about a second per table and version to list the log and find files, even for few rows;
delta-rs takes milliseconds. Files are selected by partition values and column bounds. Tables with deletion vectors,
column mapping or type widening, and scans over many folders, use the Delta reader.
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
#: Maximum number of folders to list. They are listed one after the other.
MAX_FOLDERS = 8
#: Maximum number of files passed by path, with one storage request each. For more files their folders are listed.
MAX_NAMED_FILES = 8
#: Maximum number of file names in the filter that excludes files of other versions.
_MAX_FILTERED_NAMES = 4_000
#: Reader features that do not change how data files are read.
_PLAIN_FEATURES = frozenset({"timestampNtz", "vacuumProtocolCheck", "variantType"})
_TABLE_FEATURES_VERSION = 3
#: Matches paths without characters that the log, URIs or a storage would escape.
_PLAIN_PATH = re.compile(r"(?:[A-Za-z0-9_.=-]+/)*[A-Za-z0-9_.=-]+")


@dataclass(frozen=True, slots=True)
class FileScan:
    """A scan of one version of a table.

    Args:
        part: the rows to read. The selected files may contain other rows too.
        column: the table's column for the values of `part`.
        time_column: the table's event time column; empty if it has none.
    """

    key: str
    version: int
    part: Part
    column: str
    time_column: str = ""


def read_plain_files(spark: SparkSession, lake: Lake, table: DeltaTable, scan: FileScan) -> DataFrame | None:
    """Reads the files that may contain rows of the part; None if the table needs the Delta reader.

    Args:
        table: opened at the version.
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
            log.warning(
                "%s: files of version %s cannot be distinguished from others in their folders", scan.key, scan.version
            )
            return None
    return rows.select(*(F.col(f"`{name}`") for name in schema.names))


def row_count(table: DeltaTable | None) -> int | None:
    """Returns the number of rows in the table's files according to the log: 0 without a table, None if a file has no
    count.
    """
    counts = [] if table is None else pa.table(table.get_add_actions()).column("num_records").to_pylist()
    return None if None in counts else sum(counts)


def has_plain_files(table: DeltaTable) -> bool:
    """Whether the data files contain exactly the rows of the table, so that they can be read as plain Parquet."""
    protocol = table.protocol()
    if protocol.min_reader_version == 1:
        return True
    return (
        protocol.min_reader_version == _TABLE_FEATURES_VERSION
        and not set(protocol.reader_features or ()) - _PLAIN_FEATURES
    )


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A data file from the log. `rows` is None without statistics, `date` None without a date partition."""

    path: str
    size: int
    rows: int | None
    date: dt.date | None


def added_files(table: DeltaTable, scan: FileScan) -> Iterator[AddedFile]:
    """Yields the files that may contain rows of the scan's part. Reads only the log."""
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
    """Yields the paths of the files that may contain rows of the part. Reads only the log."""
    return (file.path for file in added_files(table, scan))


def _may_contain(part: Part, value: Any) -> bool:
    """Whether a partition may contain rows of the part."""
    if part.values is None:
        return True
    if value is None:
        return False
    if isinstance(value, dt.datetime):
        value = value.date()
    return part.contains(value) or value in {hour.date() for hour in part.hours or ()}


def _all_hours(part: Part) -> frozenset[dt.datetime] | None:
    """Returns all hours of the part; None if files cannot be selected by hour."""
    if not part.hours or part.values is None or part.since is not None:
        return None
    dates = [value for value in part.values if isinstance(value, dt.date)]
    return frozenset((*part.hours, *hours_of_dates(dates)))


def _overlaps(row: Mapping[str, Any], hours: frozenset[dt.datetime] | None) -> bool:
    first, last = row.get("first"), row.get("last")
    if hours is None or not isinstance(first, dt.datetime) or not isinstance(last, dt.datetime):
        return True
    hour, end = hour_of(_to_utc(first)), _to_utc(last)
    return any(hour <= candidate <= end for candidate in hours)


def _to_utc(instant: dt.datetime) -> dt.datetime:
    return instant.replace(tzinfo=dt.UTC) if instant.tzinfo is None else instant.astimezone(dt.UTC)


def _has_partition_path(path: str, partitions: list[str]) -> bool:
    """Whether Spark can derive the partition values from the path."""
    folders = path.split("/")[:-1]
    spelled = all(folder.startswith(f"{name}=") for folder, name in zip(folders, partitions, strict=False))
    return bool(_PLAIN_PATH.fullmatch(path)) and spelled and len(folders) == len(partitions)


def _filter_snapshot_files(listed: DataFrame, uri: str, files: list[str]) -> DataFrame | None:
    """Keeps the rows of the snapshot's files, since folders also contain files of other versions and uncommitted
    batches.

    Returns None if a file of the snapshot was not listed or file names are ambiguous.
    """
    listed_files = {_relative_path(uri, address) for address in listed.inputFiles()}
    if not listed_files.issuperset(files):
        return None
    foreign_files = listed_files - set(files)
    if not foreign_files:
        return listed
    # Compared by file name: Spark encodes row metadata and file URIs differently.
    names, foreign_names = {_base_name(path) for path in files}, {_base_name(path) for path in foreign_files}
    if names & foreign_names or not all(map(_PLAIN_PATH.fullmatch, foreign_names)):
        return None
    shorter_list, condition = (foreign_names, "NOT IN") if len(foreign_names) < len(names) else (names, "IN")
    if len(shorter_list) > _MAX_FILTERED_NAMES:
        return None
    # One SQL text: a JVM call per name would cost more than the scan.
    name_list = ", ".join(sql_literal(name, "string") for name in sorted(shorter_list))
    return listed.filter(F.expr(f"_metadata.file_name {condition} ({name_list})"))


def _relative_path(uri: str, address: str) -> str:
    """Returns the path relative to the table's folder; unchanged if the file lies outside it."""
    root = re.sub(r"^[a-z0-9]+:/*", "", uri)
    return unquote(address).partition(f"{root}/")[2] or address


def _base_name(path: str) -> str:
    return path.rpartition("/")[2]
