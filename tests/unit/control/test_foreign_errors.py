"""Errors of foreign libraries: a damaged data file is named with its table and repair, and Java's inner cause is found.

Each way to damage a file is met by each reader: DuckDB, pyarrow and delta-rs. Spark's and S3's texts are recorded ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from deltaworks.control.foreign_errors import DataFile, data_file_error, data_file_in, describe_cause
from deltaworks.control.job import as_deltaworks_error
from deltaworks.errors import ContractError, DeltaworksError
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.duckdb_session import duckdb_session
from deltaworks.tables.lake import Lake, duckdb_source, rows_of
from deltaworks.tables.log import state_at
from deltaworks.tables.rewrite import DataFiles

KEY = "tables/games/level_fail"
FILE = "event_date=2026-03-01/part-1.zstd.parquet"


class Py4JJavaError(Exception):
    """An error as py4j raises it: the stack trace is part of its text."""


class CapturedError(Exception):
    """Like PySpark's captured JVM errors: a short text, and a stack trace with the causes."""

    def __init__(self, text: str, stack_trace: str = "") -> None:
        super().__init__(text)
        self._stackTrace = stack_trace


# Damage of a file, by what readers find.


def remove(path: Path) -> None:
    path.unlink()


def overwrite(path: Path) -> None:
    path.write_bytes(os.urandom(3000))


def overwrite_same_size(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def break_pages(path: Path) -> None:
    data, footer = path.read_bytes(), pq.read_metadata(path).serialized_size
    path.write_bytes(data[:4] + b"\xff" * (len(data) - footer - 12) + data[-footer - 8 :])


# Readers.


def with_duckdb(lake: Lake, table: DeltaTable) -> Any:
    with duckdb_session() as connection:
        connection.register("rows", duckdb_source(lake, table))
        return connection.execute("SELECT sum(a), max(text) FROM rows").fetchall()


def with_filter(lake: Lake, table: DeltaTable) -> Any:
    return rows_of(lake, table, filters=pc.field("text") >= "0")


def with_delta_rs(lake: Lake, table: DeltaTable) -> Any:
    return table.optimize.z_order(["a"])


def with_data_files(lake: Lake, table: DeltaTable) -> Any:
    state = state_at(lake, lake.objects, KEY)
    files = DataFiles(lake, state)
    return [files.read_declared(added) for added in state.files.values()]


DAMAGE: dict[Callable[[Path], None], str] = {
    remove: "DATA_FILE_MISSING",
    overwrite: "DATA_FILE_UNREADABLE",
    overwrite_same_size: "DATA_FILE_UNREADABLE",
    truncate: "DATA_FILE_UNREADABLE",
    empty: "DATA_FILE_UNREADABLE",
    break_pages: "DATA_FILE_UNREADABLE",
}
READERS = (with_duckdb, rows_of, with_filter, with_delta_rs, with_data_files)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_every_reader_names_table_file_and_repair(
    tmp_path: Path, damage: Callable[[Path], None], reader: Callable[[Lake, DeltaTable], Any]
) -> None:
    lake = Lake(StorageSpec(root=f"file://{tmp_path}"))
    for day in (1, 2):
        rows = {
            "event_date": [f"2026-03-0{day}"] * 500,
            "a": list(range(500)),
            "text": [f"{n:050}" for n in range(500)],
        }
        write_deltalake(str(tmp_path / KEY), pa.table(rows), mode="append", partition_by=["event_date"])
    table = lake.open(KEY)
    assert table is not None
    reader(lake, table)
    table = lake.open(KEY)
    assert table is not None
    victim = tmp_path / KEY / table.file_uris()[0].rpartition(f"{KEY}/")[2]
    damage(victim)

    with pytest.raises(Exception) as raised:  # noqa: PT011 - of many libraries
        reader(lake, table)
    found = data_file_error(raised.value, tables=["games.level_fail"]) or as_deltaworks_error(raised.value)

    assert (type(found), found.condition, found.retryable) == (ContractError, DAMAGE[damage], False)
    assert found.message.startswith("games.level_fail: ")
    # Arrow names no file whose pages it cannot decode, unless they are read one by one.
    if damage is not break_pages or reader is with_data_files:
        assert victim.name in found.message
        assert as_deltaworks_error(raised.value).message == found.message
    assert "deltaworks recover files games level_fail" in found.hint
    assert ("--full" in found.hint) == (damage is break_pages)
    assert "\\n" not in str(found)


SPARK_MISSING = (
    "An error occurred while calling o1.collectToPython.\n"
    ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times\n"
    f"\tat org.apache.spark.X [FAILED_READ_FILE.FILE_NOT_EXIST] reading file s3a://lake/{KEY}/{FILE}. SQLSTATE: 1\n"
    "Caused by: java.io.FileNotFoundException: No such file or directory: part-1.zstd.parquet\n\tat a.b.C\n"
)
#: As Spark reports a file that was overwritten, in the OPTIMIZE of a night.
SPARK_UNREADABLE = (
    "An error occurred while calling o137.sql.\n"
    ": org.apache.spark.SparkException: Exception thrown in awaitResult: \n"
    "\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)\n"
    "Caused by: java.util.concurrent.ExecutionException: org.apache.spark.SparkException: Job aborted.\n"
    "\tat java.base/java.util.concurrent.FutureTask.report(FutureTask.java:122)\n"
    "Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: Task 3 in stage 9.0 failed 4 times, "
    f"most recent failure: Lost task: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://lake/{KEY}/"
    "event_date%3D2026-03-01/part-1.zstd.parquet.  SQLSTATE: KD001\n"
    "\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError\n"
    f"Caused by: java.lang.RuntimeException: s3a://lake/{KEY}/{FILE} is not a Parquet file. Expected magic number at "
    "tail, but found [1, 2, 3, 4]\n"
    "\tat org.apache.parquet.hadoop.ParquetFileReader.readFooter(ParquetFileReader.java:589)\n"
    "\t... 20 more\n"
)


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (Py4JJavaError(SPARK_MISSING), "DATA_FILE_MISSING"),
        (Py4JJavaError(SPARK_UNREADABLE), "DATA_FILE_UNREADABLE"),
        (CapturedError("Job aborted.", SPARK_UNREADABLE), "DATA_FILE_UNREADABLE"),
        (FileNotFoundError(2, "No such file or directory", f"/lake/{KEY}/{FILE}"), "DATA_FILE_MISSING"),
        (FileNotFoundError(f"Path does not exist 'bucket/prefix/{KEY}/{FILE}'"), "DATA_FILE_MISSING"),
        (
            OSError(f"Generic error: Object at location prefix/{KEY}/{FILE} not found: 404 Not Found"),
            "DATA_FILE_MISSING",
        ),
        (
            OSError(f"When reading information for key '{KEY}/{FILE}' in bucket 'lake': AWS Error NO_SUCH_KEY"),
            "DATA_FILE_MISSING",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_data_file_is_named_without_knowing_the_table(error: Exception, condition: str) -> None:
    found = as_deltaworks_error(error)

    assert (found.condition, found.retryable) == (condition, False)
    assert found.message.startswith(f"games.level_fail: data file {FILE} ")
    assert "awaitResult" not in found.message


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        # Nothing is wrong with the file.
        (f"AccessDenied: Access Denied reading s3a://lake/{KEY}/{FILE} FAILED_READ_FILE", "JOB_FAILED"),
        (f"[FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH] reading file s3a://l/{KEY}/{FILE}", "JOB_FAILED"),
        (f"[FAILED_READ_FILE] s3a://l/{KEY}/{FILE}\nCaused by: java.io.InterruptedIOException: x", "JOB_FAILED"),
        # The storage is away.
        (f"[FAILED_READ_FILE] s3a://l/{KEY}/{FILE}\nCaused by: java.net.ConnectException: x", "STORAGE_UNREACHABLE"),
        # It is no table's file.
        ("[Errno 2] No such file or directory: '/x/sample.parquet'", "JOB_FAILED"),
        ("[Errno 2] No such file or directory: 'tables/games/sql/level_fail.sql'", "JOB_FAILED"),
        ("[PATH_NOT_FOUND] Path does not exist: s3a://lake/landing/games/part-1.parquet", "JOB_FAILED"),
    ],
)
def test_other_errors_about_files_are_no_damage(text: str, condition: str) -> None:
    assert as_deltaworks_error(RuntimeError(text)).condition == condition


@pytest.mark.parametrize(
    ("text", "file"),
    [
        (f"'s3://bucket/a/tables/b/c/{KEY}/{FILE}'", DataFile("tables", "games", "level_fail", FILE)),
        (
            f"(file:///lake/{KEY}/event_date%3D2026/p.parquet)",
            DataFile("tables", "games", "level_fail", "event_date=2026/p.parquet"),
        ),
        (
            "control/pipelines/games/progress/part-0.parquet",
            DataFile("control/pipelines", "games", "progress", "part-0.parquet"),
        ),
        (
            f"s3a://l/{KEY}/ab/deletion_vector_0f8fad5b-d9cb-469f-a165-70867728950e.bin",
            DataFile("tables", "games", "level_fail", "ab/deletion_vector_0f8fad5b-d9cb-469f-a165-70867728950e.bin"),
        ),
        ("event_date=2026-03-01/part-1.parquet", None),
    ],
)
def test_a_file_belongs_to_the_last_table_in_its_path(text: str, file: DataFile | None) -> None:
    assert data_file_in(f"x {text} y") == file


def test_a_file_of_the_control_folder_is_repaired_as_the_check_says() -> None:
    lost = FileNotFoundError(2, "No such file or directory", "/lake/control/pipelines/games/progress/part-0.parquet")

    found = as_deltaworks_error(lost)

    assert found.condition == "DATA_FILE_MISSING"
    assert found.hint == "`deltaworks tables check games` names the command that repairs it."


def test_an_error_without_a_file_names_the_tables_that_were_read() -> None:
    error = OSError("Couldn't deserialize thrift: don't know what type: \x0e\nDeserializing page header failed.\n")

    assert data_file_error(error) is None
    found = data_file_error(error, tables=["games.a", "games.b"])
    assert found is not None
    assert found.message.startswith("games.a or games.b: a data file cannot be read: OSError: Couldn't deserialize")
    assert "deltaworks recover files PIPELINE TABLE --full" in found.hint


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (RuntimeError("an executor is gone"), "RuntimeError: an executor is gone"),
        (Py4JJavaError(SPARK_MISSING), "FileNotFoundException: No such file or directory: part-1.zstd.parquet"),
        (
            Py4JJavaError(SPARK_UNREADABLE),
            "SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file "
            f"s3a://lake/{KEY}/event_date%3D2026-03-01/part-1.zstd.parquet.  SQLSTATE: KD001",
        ),
        (
            Py4JJavaError(
                "An error occurred while calling o7.sql.\n"
                ": org.apache.spark.SparkException: Exception thrown in awaitResult: \n\tat a.b\n"
                "Caused by: org.apache.spark.sql.delta.DeltaAnalysisException: [DELTA_MISSING_COLUMN] no column x\n"
                "\tat c.d\nCaused by: java.lang.NullPointerException\n\tat e.f\n"
            ),
            "DeltaAnalysisException: [DELTA_MISSING_COLUMN] no column x",
        ),
        (
            Py4JJavaError(
                "An error occurred while calling o7.save.\n"
                ": org.apache.spark.SparkException: Job aborted.\n\tat a.b\n"
                "Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
                '  File "/x/worker.py", line 1, in main\n    process()\n'
                "ZeroDivisionError: division by zero\n\n\tat c.d\n"
            ),
            "ZeroDivisionError: division by zero",
        ),
        (
            Py4JJavaError(
                "An error occurred while calling o7.save.\n"
                ": java.util.concurrent.ExecutionException: java.lang.OutOfMemoryError: Java heap space\n\tat a.b\n"
                "Caused by: java.lang.OutOfMemoryError: Java heap space\n\tat c.d\n"
            ),
            "OutOfMemoryError: Java heap space",
        ),
        (Py4JJavaError("An error occurred while calling o7.x.\n: java.lang.IllegalStateException\n\tat a.b\n"),
         "IllegalStateException"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_the_cause_is_the_innermost_one_with_a_condition(error: Exception, cause: str) -> None:
    assert describe_cause(error) == cause
    failed = as_deltaworks_error(RuntimeError("x") if "FAILED_READ" in cause or "No such" in cause else error)
    assert failed.condition == "JOB_FAILED"
    assert isinstance(failed, DeltaworksError)
    assert not any(part in failed.message for part in ("o7.", "\\n"))
    assert "above" not in failed.hint


def test_an_error_of_python_keeps_its_context() -> None:
    outer = RuntimeError("the table cannot be planned")
    outer.__cause__ = KeyError("events")

    assert describe_cause(outer) == "RuntimeError: the table cannot be planned; caused by KeyError: 'events'"
