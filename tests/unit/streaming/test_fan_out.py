"""The work of one task: payloads to files, by table and partition."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.streaming.fan_out import FileTarget, balanced, partitioning, write_payloads
from deltaworks.streaming.parse import BatchStamp, Parser, Payload

STAMP = BatchStamp(batch_id=7, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
DAY = 86_400


def payloads() -> list[Payload]:
    def line(number: int) -> str:
        name = ["order", "login"][number % 7 == 0]
        amount = "much" if number % 11 == 0 else number
        return json.dumps({"name": name, "time": number * DAY // 10, "device": "d", "params": {"amount": amount}})

    return [Payload(seq, f"k{seq}", "".join(map(line, range(seq * 40, seq * 40 + 40))).encode()) for seq in (1, 2, 3)]


def target(root: Path, spec: PipelineSpec) -> FileTarget:
    by_table = partitioning(spec)
    return FileTarget(None, {name: str(root / name) for name in by_table}, by_table)


@pytest.mark.parametrize("flush_bytes", [1, 1 << 30])
def test_files_hold_the_rows_of_their_table_and_partition(
    make_spec: Callable[..., PipelineSpec], tmp_path: Path, flush_bytes: int
) -> None:
    spec = make_spec()

    written = write_payloads(payloads(), spec, STAMP, target(tmp_path, spec), flush_bytes=flush_bytes)

    found: dict[str, Counter[str]] = defaultdict(Counter)
    for table, file in written:
        rows = pq.read_table(tmp_path / table / file["path"], partitioning=None)
        assert rows.num_rows == file["rows"] == json.loads(file["stats"])["numRecords"]
        assert (tmp_path / table / file["path"]).stat().st_size == file["size"]
        assert not set(file["partition"]) & set(rows.schema.names)
        for row in rows.to_pylist():
            found[table][_shown(row | {name: dt.date.fromisoformat(v) for name, v in file["partition"].items()})] += 1
    wanted: dict[str, Counter[str]] = defaultdict(Counter)
    for table, parsed in Parser(spec).parse(payloads(), STAMP):
        wanted[table].update(_shown(row) for row in parsed.to_pylist())
    assert found == wanted
    assert set(found) == {"events", "orders", "quarantine"}


def test_a_task_writes_one_file_for_each_table_and_partition(
    make_spec: Callable[..., PipelineSpec], tmp_path: Path
) -> None:
    spec = make_spec()

    written = write_payloads(payloads(), spec, STAMP, target(tmp_path, spec))

    counted = Counter((table, str(file["partition"])) for table, file in written)
    assert set(counted.values()) == {1}
    assert len(counted) > 10


def test_a_task_without_events_writes_nothing(make_spec: Callable[..., PipelineSpec], tmp_path: Path) -> None:
    spec = make_spec()

    assert write_payloads([Payload(1, "k", b"")], spec, STAMP, target(tmp_path, spec)) == []
    assert not list(tmp_path.rglob("*"))


def _shown(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 8))
def test_balancing_keeps_the_order_and_loses_nothing(sizes: list[int], tasks: int) -> None:
    shares = balanced(list(range(len(sizes))), sizes, tasks)

    assert [reference for share in shares for reference in share] == list(range(len(sizes)))
    assert len(shares) <= tasks
    assert all(shares)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=30), st.integers(1, 8))
def test_no_share_is_larger_than_its_part_and_one_reference(sizes: list[int], tasks: int) -> None:
    shares = balanced(sizes, sizes, tasks)

    part = sum(sizes) / min(tasks, len(sizes))
    assert all(sum(share) <= part + max(sizes) for share in shares)
