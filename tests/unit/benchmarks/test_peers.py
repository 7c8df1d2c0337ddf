"""`peers` checks that all tools loaded the sent rows, and skips dlt if it cannot be installed."""

from __future__ import annotations

import datetime as dt
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from benchmarks import environments, peers, peers_dlt
from benchmarks.landed_content import Content, differences, get_content, read_contents, with_check
from benchmarks.storages import BenchmarkStorage

_NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
_TABLES: list[dict[str, Any]] = [
    {"name": "events", "names": None, "partition_by": ["event_date"], "columns": []},
    {
        "name": "purchase",
        "names": ["purchase"],
        "partition_by": [],
        "columns": [
            {"name": "price", "parameter": "price", "type": "decimal(10,2)"},
            {"name": "items", "parameter": "items", "type": "array<string>"},
        ],
    },
]


def lake(folder: Path, **tables: list[str | None]) -> Path:
    for name, ids in tables.items():
        write_deltalake(str(folder / "tables" / name), pa.table({"event_id": pa.array(ids, pa.string())}))
    return folder


def test_the_order_of_ids_does_not_matter_and_how_often_they_come_does() -> None:
    assert get_content(iter(["a", "b", None])) == get_content(iter([None, "b", "a"]))
    assert get_content(iter(["a", "b"])) != get_content(iter(["a", "b", "b"]))
    assert get_content(iter(["a", "a"])) != get_content(iter(["b", "b"]))
    assert get_content(iter([None])) != get_content(iter(["None"]))


def test_a_table_with_a_row_swapped_for_another_differs(tmp_path: Path) -> None:
    sent = {"events": get_content(iter(["a", "b"])), "purchase": get_content(iter(["a"]))}
    whole = read_contents(
        lake(tmp_path / "whole", events=["b", "a"], purchase=["a"]), frozenset(sent), column="event_id"
    )
    swapped = read_contents(
        lake(tmp_path / "other", events=["a", "a"], purchase=["a"]), frozenset(sent), column="event_id"
    )

    assert differences(sent, whole) == []
    (line,) = differences(sent, swapped)
    assert line.startswith("events: ")


def test_a_table_that_is_missing_differs_unless_it_has_no_rows() -> None:
    assert differences({"events": get_content(iter(()))}, {}) == []
    assert len(differences({"events": Content(1, 7)}, {})) == 1


def test_a_repetition_that_lost_an_event_is_refused(tmp_path: Path) -> None:
    place = with_check(
        BenchmarkStorage("local", f"file://{tmp_path}", tmp_path),
        {"events": get_content(iter(["a", "b"]))},
        column="event_id",
    )
    with place.new_root() as storage:
        lake(Path(storage.root.removeprefix("file://")), events=["b", "a"])

    with pytest.raises(RuntimeError, match="hold other rows"), place.new_root() as storage:
        lake(Path(storage.root.removeprefix("file://")), events=["a"])

    assert list(tmp_path.iterdir()) == []


def test_an_event_becomes_a_row_of_every_table_that_takes_it() -> None:
    event = {
        "eventName": "purchase",
        "eventTime": 86_400,
        "eventParams": {"event_id": "e", "price": 1.5, "items": ["x"]},
    }
    other = {"eventName": "login", "eventTime": 0, "eventParams": {"event_id": "f"}}

    rows = dict(peers_dlt.rows_of(event, _TABLES, _NOW))

    assert set(rows) == {"events", "purchase"}
    assert rows["purchase"]["event_date"] == dt.date(1970, 1, 2)
    assert (rows["purchase"]["price"], rows["purchase"]["items"]) == (1.5, ["x"])
    assert [name for name, _ in peers_dlt.rows_of(other, _TABLES, _NOW)] == ["events"]


def test_dlt_is_told_types_and_partitions() -> None:
    assert peers_dlt.hints_of(_TABLES[0])["event_date"] == {"data_type": "date", "partition": True}
    hints = peers_dlt.hints_of(_TABLES[1])
    assert hints["price"] == {"data_type": "decimal", "precision": 10, "scale": 2}
    assert hints["items"] == {"data_type": "json"}


def test_where_pypi_does_not_answer_dlt_is_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="no route to the registry")

    monkeypatch.setattr("benchmarks.games_files.bench_folder", lambda: tmp_path)
    monkeypatch.setattr(environments.venv, "create", lambda *_, **__: None)
    monkeypatch.setattr(environments.subprocess, "run", refuse)
    lines: list[str] = []

    assert peers.dlt_python(lines.append) is None
    assert "no route to the registry" in lines[-1]
