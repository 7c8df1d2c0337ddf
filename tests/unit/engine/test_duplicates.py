"""Duplicates from producers are flagged and first arrivals never are, compared with a model."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from deltaworks.control import paths
from deltaworks.engine import duplicates as task_flags
from deltaworks.engine.duplicates import duplicate_windows
from deltaworks.engine.fan_out import FanOutResult, merge_outputs, write_payloads
from deltaworks.engine.table_set import TableSet
from deltaworks.engine.writers import FileTarget
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.sources.task_isolation import TaskOutput
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.commit import Step, commit_step
from deltaworks.tables.lake import arrow_path
from deltaworks.tables.table_swap import recreate_table
from deltaworks.testing import local_lake, pipeline_spec, present
from tests.examples import examples
from tests.unit.tables.log_model import drop_statistics

NOW = dt.datetime(2026, 3, 10, 12, tzinfo=dt.UTC)
Ids = Sequence[str]


def spec(within_days: int | None = 7, *, id_path: str = "id", **table: Any) -> PipelineSpec:
    flagged = {} if within_days is None else {"duplicates": {"flag_within_days": within_days} | table}
    event = {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}}
    return pipeline_spec(
        {"name": "events", "catch_all": True} | flagged,
        {"name": "logins", "when": {"name": "login"}},
        event=event | ({"id": id_path} if id_path else {}),
    )


class Shop:
    """Commits batches to real tables through the full pass without Spark: a task is a function call."""

    def __init__(self, root: Path, declared: PipelineSpec) -> None:
        self.lake, self.spec = local_lake(root), declared
        self.tables = TableSet(self.lake, declared)
        self.tables.open()
        self.seq = self.batch = -1
        self.facts: dict[str, Any] = {}

    def windows(self, at: dt.datetime) -> dict[str, task_flags.DuplicateWindow]:
        return duplicate_windows(self.spec, self.lake, self.tables, now=at)

    def write(self, tasks: Sequence[Ids], at: dt.datetime = NOW, order: random.Random | None = None) -> FanOutResult:
        """Runs the pass over one batch: each task has one object with the given number of events; tasks end in
        `order`."""
        names = [table.name for table in self.spec.tables] + ["quarantine"]
        roots = {name: arrow_path(self.lake.storage, paths.table("shop", name)) for name in names}
        by = {name: ("event_date",) for name in names} | {"quarantine": ("quarantine_date",)}
        target, windows = FileTarget(None, roots, by), self.windows(at)
        stamp = BatchMetadata(self.batch + 1, int(at.timestamp() * 1_000_000), "f")
        outputs = []
        for number, ids in enumerate(tasks):
            time = int(NOW.timestamp())
            events = [{"name": "login", "time": time - 3600 * hour, "id": id_} for hour, id_ in enumerate(ids)]
            payload = Payload(self.seq + 1 + number, f"k{number}", "".join(map(json.dumps, events)).encode())
            output = write_payloads([payload], self.spec, stamp, target, duplicates=windows)
            outputs.append(TaskOutput.decode(replace(output, task=number).encode()))
        if order is not None:
            order.shuffle(outputs)
        return merge_outputs(outputs, target, windows)

    def land(self, tasks: Sequence[Ids], at: dt.datetime = NOW, order: random.Random | None = None) -> None:
        written = self.write(tasks, at, order)
        self.batch, self.seq, self.facts = self.batch + 1, self.seq + len(tasks), written.facts
        for name, files in written.files.items():
            actions = [file.add_action() for file in files]
            commit_step(self.tables.handles[name], actions, step=Step(name, self.batch), user_metadata="{}")

    def compact(self) -> None:
        self.tables.handles["events"].optimize.compact()

    def flags(self, table: str = "events") -> list[tuple[str, bool | None]]:
        """Ids and flags in order of arrival."""
        rows = present(self.lake.rows(paths.table("shop", table)))
        ordered = sorted(rows.to_pylist(), key=lambda row: (row["_seq"], row["_position"]))
        return [(row["event_id"], row["_duplicate"]) for row in ordered]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, spec())


def flagged(arrived: Sequence[str]) -> list[tuple[str, bool]]:
    """The model: an id is a duplicate once it was seen."""
    seen: set[str] = set()
    found = []
    for each in arrived:
        found.append((each, each in seen))
        seen.add(each)
    return found


IDS = st.lists(st.sampled_from([f"e{number}" for number in range(12)]), min_size=1, max_size=6)
BATCHES = st.lists(st.tuples(st.lists(IDS, min_size=1, max_size=3), st.booleans(), st.booleans()), max_size=6)


@settings(max_examples=examples(40), deadline=None)
@given(BATCHES, st.randoms(use_true_random=False))
def test_flags_do_not_depend_on_the_order_in_which_tasks_end(
    batches: list[tuple[list[Ids], bool, bool]], order: random.Random
) -> None:
    with TemporaryDirectory() as folder:
        shop, arrived = Shop(Path(folder), spec()), []
        for tasks, compacts, new_worker in batches:
            if new_worker:
                task_flags._WINDOW_IDS_BY_ROOT.clear()
            shop.land(tasks, order=order)
            arrived += [id_ for ids in tasks for id_ in ids]
            if compacts:
                shop.compact()

        assert shop.flags() == flagged(arrived) if arrived else True


def test_duplicates_within_a_task_across_tasks_and_of_an_earlier_batch_are_flagged(shop: Shop) -> None:
    shop.land([["a", "a", "b"], ["b", "c"], ["c", "b", "d"]])
    shop.land([["d", "e"]])

    assert [id_ for id_, copy in shop.flags() if not copy] == ["a", "b", "c", "d", "e"]
    assert len(shop.flags()) == 10


def test_only_tables_that_declare_it_have_flags(shop: Shop) -> None:
    shop.land([["a"], ["a"]])

    logins = present(shop.lake.rows(paths.table("shop", "logins")))
    assert "_duplicate" not in logins.column_names
    assert logins.num_rows == 2


def test_without_a_table_that_declares_it_no_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path, spec(None))
    monkeypatch.setattr("deltaworks.engine.duplicates.refresh", lambda handle: 1 / 0)

    assert shop.windows(NOW) == {}


def test_rows_before_the_window_are_not_compared(tmp_path: Path) -> None:
    shop = Shop(tmp_path, spec(2))
    for day, ids in ((0, ["a", "b"]), (1, ["c"]), (3, ["a", "c"]), (4, ["b", "a"])):
        shop.land([ids], NOW + dt.timedelta(days=day))

    assert shop.flags() == [
        *[("a", False), ("b", False), ("c", False)],
        *[("a", False), ("c", True)],
        *[("b", False), ("a", True)],
    ]


def test_ids_above_the_limit_skip_the_oldest_files_and_are_recorded(tmp_path: Path) -> None:
    shop = Shop(tmp_path, spec(7, max_ids=2))
    shop.land([["a", "b"]])
    shop.land([["c", "d"]], NOW + dt.timedelta(days=1))

    shop.land([["a", "d"]], NOW + dt.timedelta(days=1))

    assert shop.flags()[-2:] == [("a", False), ("d", True)]
    assert shop.facts == {"duplicates_left_out_events": 1}


def test_ids_that_the_log_does_not_count_are_limited_too(tmp_path: Path) -> None:
    shop = Shop(tmp_path, spec(7, max_ids=2))
    shop.land([["a", "b"]])
    shop.land([["c", "d"]], NOW + dt.timedelta(days=1))
    drop_statistics(shop.lake, paths.table("shop", "events"))

    shop.tables.open()
    window = shop.windows(NOW + dt.timedelta(days=1))["events"]

    assert ([file.rows for file in window.files], window.skipped_files) == ([2], 1)


def test_ids_of_removed_rows_are_dropped_from_a_workers_cache(shop: Shop) -> None:
    shop.land([["a", "b"]])
    shop.land([["a"]])
    table = shop.tables.handles["events"]
    columns = shop.spec.table("events").column_types()
    recreate_table(
        *(table, columns, ("event_date",)),
        step=Step("anew", 1),
        owner=Step("owner", 1),
        user_metadata="{}",
        spark=None,
        uri="",
    )

    shop.land([["a", "b", "a"]])

    assert shop.flags() == [("a", False), ("b", False), ("a", True)]


def test_a_worker_reads_a_file_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    ids = task_flags.DuplicateFlagger._read_ids
    monkeypatch.setattr(
        task_flags.DuplicateFlagger, "_read_ids", lambda self, root, path: (read.append(path), ids(self, root, path))[1]
    )

    for number in range(6):
        shop.land([[f"e{number}", f"e{number - 1}"]])

    assert len(read) == len(set(read)) == 5


def test_a_file_removed_by_vacuum_is_ignored(shop: Shop) -> None:
    shop.land([["a"]])
    task_flags._WINDOW_IDS_BY_ROOT.clear()
    root = Path(shop.lake.storage.prefix) / paths.table("shop", "events")
    for path in root.rglob("*.parquet"):
        path.unlink()

    written = shop.write([["a"]])

    assert sum(file.rows for file in written.files["events"]) == 1


@pytest.mark.parametrize(
    "wrong", [{"id_path": ""}, {"flag_within_days": 0}, {"max_ids": 0}], ids=["no id", "no day", "no ids"]
)
def test_an_invalid_declaration_is_rejected(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        spec(7, **wrong)
