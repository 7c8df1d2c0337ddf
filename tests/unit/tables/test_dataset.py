"""Tables as datasets: deltalake's rows without Python in Arrow's threads, and rows selected by statistics."""

from __future__ import annotations

import datetime as dt
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs
from werkzeug.serving import WSGIRequestHandler

from deltaworks.control.provenance import user_metadata
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables import lake as module
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step, commit_step
from deltaworks.tables.files import write_file
from deltaworks.tables.lake import Lake, dataset_of, duckdb_source, rows_of, select_rows
from deltaworks.testing import append_rows, local_lake, present
from tests.examples import examples
from tests.processes import run_process

KEY = "tables/öd 100%/orders"
#: Values that clients write into paths in ways of their own.
PLACES = ["x y", "ü/%:=", "a+b", "%20", "2026-01-01", None]
ROWS = pa.table({"place": PLACES * 500, "number": list(range(3000))})
#: What a process does whose threads of Arrow are slow to let go of what deltalake gave them: it is at its end by then.
SLOW = """
import os, sys, threading, time
import pyarrow as pa
from deltalake.fs.fs_handler import DeltaStorageHandler
from deltaworks.specs.storage import StorageSpec
from deltaworks.tables.lake import Lake

class SlowToGo:
    def __init__(self, file):
        self._file = file
    def __getattr__(self, name):
        return getattr(self._file, name)
    def __del__(self):
        time.sleep(0.5)

def opened(self, path):
    print("opened by deltalake", flush=True)
    return pa.PythonFile(SlowToGo(self._handler.open_input_file(path)), mode="r")

DeltaStorageHandler.open_input_file = opened
rows = Lake(StorageSpec(root=sys.argv[1])).rows(sys.argv[2])
print(rows.num_rows, flush=True)
"""


@pytest.fixture
def local(tmp_path: Path) -> StorageSpec:
    return StorageSpec(root=f"file://{tmp_path}/a lake")


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> StorageSpec:
    monkeypatch.setenv("TEST_KEY", "the-key")
    storage = StorageSpec(
        root="s3://datasets/a lake",
        endpoint=endpoint,
        path_style=True,
        access_key="env:TEST_KEY",
        secret_key="env:TEST_KEY",
    )
    boto3.client("s3", **storage.boto3_options()).create_bucket(Bucket="datasets")
    return storage


@pytest.fixture(params=["local", "s3"])
def lake(request: pytest.FixtureRequest) -> Lake:
    return Lake(request.getfixturevalue(request.param))


def write(lake: Lake, rows: pa.Table = ROWS, *, key: str = KEY, partition_by: str | None = "place") -> None:
    """Appends rows through delta-rs, which escapes values in paths."""
    write_deltalake(
        lake.storage.uri(key),
        rows,
        mode="append",
        partition_by=None if partition_by is None else [partition_by],
        storage_options=lake.storage.deltalake_options(),
    )


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts a server's requests by method."""
    requests: Counter[str] = Counter()
    answer = WSGIRequestHandler.run_wsgi

    def noted(self: Any) -> None:
        requests[self.command] += 1
        answer(self)

    with monkeypatch.context() as patched:
        patched.setattr(WSGIRequestHandler, "run_wsgi", noted)
        yield requests


def test_rows_equal_deltalakes_own_dataset_for_all_partition_names(lake: Lake) -> None:
    write(lake)
    table = present(lake.open(KEY))
    ours, own = dataset_of(lake, table), table.to_pyarrow_dataset()

    assert ours.schema.equals(own.schema)
    for condition in (None, *(ds.field("place") == place for place in PLACES[:-1]), ds.field("place").is_null()):
        rows = ours.to_table(filter=condition).sort_by("number")
        assert rows.num_rows == (3000 if condition is None else 500)
        assert rows.equals(own.to_table(filter=condition).sort_by("number")), condition


def test_files_of_the_stream_are_read_at_the_version_that_is_open(lake: Lake) -> None:
    schema = pa.schema([("event_date", pa.date32()), ("number", pa.int64())])
    for number in (1, 2):
        rows = pa.table({"event_date": [dt.date(2026, 1, number), None], "number": [number, -number]}, schema=schema)
        append_rows(lake, "orders", rows, number=number, partition_by=["event_date"])
    table = present(lake.open("orders"))

    condition = ds.field("event_date") >= dt.date(2026, 1, 2)
    assert rows_of(lake, table, filters=condition).column("number").to_pylist() == [2]
    table.load_as_version(1)
    assert sorted(rows_of(lake, table).column("number").to_pylist()) == [-1, 1]
    with duckdb.connect(":memory:") as connection:
        connection.register("orders", duckdb_source(lake, table))
        assert connection.sql("SELECT number FROM orders WHERE event_date = '2026-01-01'").fetchall() == [(1,)]


def test_reading_from_s3_needs_no_more_requests_than_deltalakes_own_dataset(
    s3: StorageSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(s3)
    write(lake, key="counted")
    table = present(lake.open("counted"))
    lake.filesystem.get_file_info("datasets")
    for condition in (None, ds.field("place") == "a+b", ds.field("number") < 3):
        # The order of the reads decides which of them are joined to one request, so the fewest of three runs count.
        own, ours = [], []
        for _ in range(3):
            with counted(monkeypatch) as requests:
                expected = table.to_pyarrow_dataset().to_table(filter=condition).num_rows
            own.append(requests.total())
            with counted(monkeypatch) as requests:
                assert dataset_of(lake, table).to_table(filter=condition).num_rows == expected
            assert requests["HEAD"] == 0, "sizes are in the log"
            ours.append(requests.total())
        assert 0 < min(ours) <= min(own), (ours, own)


def test_a_missing_file_is_a_storage_error(lake: Lake) -> None:
    write(lake, key="gone", partition_by=None)
    table = present(lake.open("gone"))
    ((path,),) = (pa.table(table.get_add_actions()).column("path").to_pylist(),)
    lake.objects.delete(f"gone/{path}")

    with pytest.raises(OSError, match=r"part-"):
        rows_of(lake, table)


@pytest.mark.parametrize("repetition", range(2))
def test_a_process_exits_cleanly_despite_late_arrow_threads(local: StorageSpec, repetition: int) -> None:
    lake = Lake(local)
    for _ in range(4):
        write(lake, ROWS.select(["number"]), key="orders", partition_by=None)

    done = run_process([sys.executable, "-c", SLOW, local.root, "orders"])

    assert (done.returncode, done.stdout) == (0, "12000\n"), done.stderr


SCHEMA = arrow_schema({"outcome": "string", "batch_id": "long", "row": "long"})
MADE = user_metadata(pipeline="p", batch=1, operation="append")
OUTCOMES = ["committed", "already_committed", "held", "caught_up", None]
FILES = st.lists(
    st.lists(st.tuples(st.sampled_from(OUTCOMES), st.none() | st.integers(0, 5)), min_size=1, max_size=4), max_size=6
)


def table_of(root: Path, files: list[list[dict[str, Any]]]) -> tuple[Lake, Any]:
    lake = local_lake(root)
    table = lake.ensure("t", SCHEMA, user_metadata=MADE)
    written = [
        write_file(fs.LocalFileSystem(), f"{root}/t", pa.Table.from_pylist(rows, schema=SCHEMA), partition={})
        for rows in files
    ]
    commit_step(table, [file.add_action() for file in written], step=Step("s", 1), user_metadata=MADE)
    return lake, table


@settings(max_examples=examples(60), deadline=None)
@given(FILES, st.sets(st.sampled_from(OUTCOMES[:4]), min_size=1), st.sets(st.integers(0, 5), min_size=1))
def test_selected_rows_equal_those_of_a_full_scan(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[tuple[Any, Any]]], outcomes: set[str], batches: set[int]
) -> None:
    rows = [[{"outcome": each[0], "batch_id": each[1], "row": number} for number, each in enumerate(f)] for f in files]
    lake, table = table_of(tmp_path_factory.mktemp("lake"), rows)
    wanted = {"outcome": sorted(outcomes), "batch_id": sorted(batches)}

    found = select_rows(lake, "t", table, columns=["row", "batch_id"], values=wanted)

    expected = [
        {"row": row["row"], "batch_id": row["batch_id"]}
        for each in rows
        for row in each
        if row["outcome"] in outcomes and row["batch_id"] in batches
    ]
    key = str
    assert sorted(found, key=key) == sorted(expected, key=key)


def test_files_without_the_values_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = [[{"outcome": "committed", "batch_id": number, "row": 0}] for number in range(20)]
    held = [[{"outcome": "held", "batch_id": 20, "row": 0}]]
    lake, table = table_of(tmp_path, committed + held)
    opened = []
    read = module.read_parquet
    monkeypatch.setattr(module, "read_parquet", lambda source, **options: opened.append(1) or read(source, **options))

    found = select_rows(
        lake, "t", table, columns=["batch_id"], values={"outcome": ["held", "caught_up"], "batch_id": [20, 21]}
    )

    assert found == [{"batch_id": 20}]
    assert len(opened) == 1
