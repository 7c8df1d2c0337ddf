"""The checker of the fault suite finds lost, doubled and unexpected events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction

from deltaworks.control import paths
from deltaworks.tables.commit import Step, commit_step
from deltaworks.tables.files import WrittenFile, write_file
from deltaworks.tables.lake import arrow_path
from tests.faults.harness.fault_project import PIPELINE, FaultProject, open_project
from tests.faults.harness.injection import Fault, Injector
from tests.faults.harness.oracle import Verdict, commits_after_takeover, judge, rows_in_folder

KEY = paths.table(PIPELINE, "events")


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[FaultProject]:
    with open_project(tmp_path / "stage", seed=1, tables=1) as opened:
        opened.owed.update({("events", "e1"): 1, ("events", "e2"): 1})
        yield opened


def written(stage: FaultProject, *ids: str) -> WrittenFile:
    rows = pa.table({"event_id": pa.array(ids, pa.string())})
    stage.lake.ensure(KEY, rows.schema, user_metadata="{}")
    return write_file(stage.lake.filesystem, arrow_path(stage.storage, KEY), rows, partition={})


def commit(stage: FaultProject, file: WrittenFile, number: int, *, epoch: int = 1) -> None:
    table = stage.lake.open(KEY)
    assert table is not None
    owner = Step(f"{PIPELINE}/owner", epoch)
    commit_step(table, [file.add_action()], step=Step("step", number), owner=owner, user_metadata="{}")


def verdict(stage: FaultProject) -> Verdict:
    return judge(stage.lake, PIPELINE, ["events"], stage.owed)


def test_what_landed_once_is_exact(stage: FaultProject) -> None:
    commit(stage, written(stage, "e1", "e2"), 1)

    assert verdict(stage).is_exact


def test_an_event_that_is_in_no_table_is_lost(stage: FaultProject) -> None:
    commit(stage, written(stage, "e1"), 1)

    assert list(verdict(stage).lost) == [("events", "e2")]


def test_an_event_in_two_files_is_doubled(stage: FaultProject) -> None:
    commit(stage, written(stage, "e1", "e2"), 1)
    commit(stage, written(stage, "e2"), 2)

    assert list(verdict(stage).doubled) == [("events", "e2")]


def test_a_file_that_two_commits_add_is_doubled_for_readers_of_changes(stage: FaultProject) -> None:
    file = written(stage, "e1", "e2")
    commit(stage, file, 1)
    commit(stage, file, 2)

    assert verdict(stage).doubled.total() == 2
    assert verdict(stage).lost.total() == 0


def test_an_event_nobody_sent_is_strange(stage: FaultProject) -> None:
    commit(stage, written(stage, "e1", "e2", "e3"), 1)

    assert list(verdict(stage).strange) == [("events", "e3")]


def test_files_of_no_commit_count_only_for_those_who_read_the_folder(stage: FaultProject) -> None:
    commit(stage, written(stage, "e1", "e2"), 1)
    written(stage, "e1")

    assert verdict(stage).is_exact
    assert rows_in_folder(stage.lake, PIPELINE, "events")["events", "e1"] == 2


def test_a_commit_of_a_former_owner_is_found(stage: FaultProject) -> None:
    commit(stage, written(stage, "e1"), 1, epoch=2)
    assert commits_after_takeover(stage.lake, PIPELINE, ["events"]) == 0

    table = stage.lake.open(KEY)
    assert table is not None
    late = CommitProperties(app_transactions=[Transaction(f"{PIPELINE}/owner", 1)])
    table.create_write_transaction([], mode="append", schema=table.schema(), commit_properties=late)

    assert commits_after_takeover(stage.lake, PIPELINE, ["events"]) == 1


def test_a_landed_object_is_owed_to_the_tables_its_events_name(tmp_path: Path) -> None:
    with open_project(tmp_path / "stage", seed=3, tables=4) as stage:
        stage.land(files=2, per_kind=5, misfits=1)

        owed = {name: sum(count for (table, _), count in stage.owed.items() if table == name) for name in stage.kinds}
        assert owed == {"k01": 10, "k02": 10, "k03": 10}
        assert sum(count for (table, _), count in stage.owed.items() if table == "events") == 30
        assert sum(count for (table, _), count in stage.owed.items() if table == "quarantine") == 2
        assert stage.ids == 32


def test_a_fault_happens_at_its_nth_point_and_once(tmp_path: Path) -> None:
    reached = Injector([Fault(point="committed:.*", nth=2, action="raise")], tmp_path / "timeline")
    reached("committed:a")

    with pytest.raises(OSError, match="a test injected"):
        reached("committed:b")
    reached("committed:c")

    notes = [line.split(" ", 2)[2] for line in (tmp_path / "timeline").read_text().splitlines()]
    assert notes == ["committed:a", "committed:b", "injected raise at committed:b", "committed:c"]
