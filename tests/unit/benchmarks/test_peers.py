"""Single benchmarks: `peers` checks the loaded rows, `file_sizes` its times, and generated files are as declared."""

from __future__ import annotations

import datetime as dt
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from benchmarks import environments, file_sizes, games_files, peers, peers_dlt, sides
from benchmarks.games_files import landed_objects, repeat_files
from benchmarks.harness import Clock, Comparison, Side, measure
from benchmarks.landed_content import Content, differences, get_content, read_contents, with_check
from benchmarks.spread_files import spread_spec
from benchmarks.storages import BenchmarkStorage
from deltaworks.specs.pipeline import PipelineSpec
from generator.settings import FaultRates

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


def side(name: str, seconds: float, **parts: float) -> Side:
    def run(clock: Clock) -> None:
        clock.seconds = seconds
        clock.record(**parts)

    return Side(name, run)


def test_the_batch_result_excludes_the_start() -> None:
    comparison = Comparison(
        metric="ingest_1MB_vs_file_source",
        ours=side("ours", 9.0, relay_seconds=1.0, batch_seconds=3.0),
        other=side("other", 4.0, batch_seconds=2.0),
    )
    (whole,) = measure("file_sizes", [comparison], repeats=1)

    batches = file_sizes._batch_result(whole)

    assert (whole.metric, whole.ours, whole.other, whole.ratio) == ("ingest_1MB_vs_file_source", 9.0, 4.0, 2.25)
    assert (batches.metric, batches.ours, batches.other, batches.ratio) == ("batches_1MB_vs_file_source", 4.0, 2.0, 2.0)


def test_batches_add_up_what_spark_says_they_took() -> None:
    batches = file_sizes._BatchTimes()
    told: list[dict[str, Any]] = [{"triggerExecution": 1_500, "addBatch": 900}, {"triggerExecution": 500}, {}]
    for durations in told:
        batches.add({"durationMs": durations})

    assert batches.seconds == 2.0


def test_the_same_events_several_times_are_as_many_more_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(games_files, "bench_folder", lambda: tmp_path)
    once = games_files.games_files(200, progress=lambda line: None, faults=FaultRates())

    thrice = repeat_files(once, 3)

    assert thrice.sizes() == {name: 3 * size for name, size in once.sizes().items()}
    for form in ("landed", "lines", "unwrapped"):
        made, linked = landed_objects(getattr(once, form)), landed_objects(getattr(thrice, form))
        assert len({path.name for path in linked}) == 3 * len(made)
        assert sorted(path.read_bytes() for path in linked) == sorted(3 * [path.read_bytes() for path in made])
    assert repeat_files(once, 3) == thrice


@pytest.mark.parametrize("tables", [1, 10])
def test_a_spread_declaration_reads_back_as_itself(tables: int) -> None:
    spec = spread_spec(sides.games_spec(), tables)

    read = PipelineSpec.model_validate_json(spec.model_dump_json())

    assert [table.name for table in read.tables] == [f"type_{number:03d}" for number in range(tables)]
