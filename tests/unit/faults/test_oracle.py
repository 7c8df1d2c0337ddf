"""The judges of the fault suite and its soaks find lost, doubled, changed and unexpected rows and certificates."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from deltaworks.control import paths
from deltaworks.tables.commit import Step, commit_step
from deltaworks.tables.files import WrittenFile, write_file
from deltaworks.tables.lake import arrow_path
from deltaworks.testing import present
from tests.faults.harness.collector_lake import check_collected
from tests.faults.harness.fault_project import PIPELINE, FaultProject, open_project
from tests.faults.harness.injection import Fault, Injector
from tests.faults.harness.oracle import Verdict, commits_after_takeover, judge, rows_in_folder
from tests.faults.harness.people_verdict import LakeFiles, wrong_with_certificates

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
    table = present(stage.lake.open(KEY))
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

    table = present(stage.lake.open(KEY))
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


ANN, BOB = "p1_" + "a" * 26, "p1_" + "b" * 26


def rows(*of: tuple[str, str, int]) -> pa.Table:
    at = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    named = [
        {
            "event_id": event,
            "event_name": "k01",
            "event_time": at,
            "event_date": at.date(),
            "player": player,
            "n": n,
            "_seq": 0,
        }
        for event, player, n in of
    ]
    return pa.Table.from_pylist([{**row, "_position": 0, "_batch_id": 0, "raw": None} for row in named])


@pytest.fixture
def files(tmp_path: Path) -> LakeFiles:
    """Two rows of Ann and one of Bob, written as files, and one that came through a stream."""
    made = rows(("b1", ANN, 1), ("b2", BOB, 2), ("b3", ANN, 3), ("e1", BOB, 4))
    made = made.set_column(made.schema.get_field_index("raw"), "raw", pa.nulls(4, pa.string()))
    write_deltalake(str(tmp_path / "k01"), made, partition_by=["event_date"])
    return LakeFiles(tmp_path)


def purge(folder: Path) -> None:
    DeltaTable(str(folder / "k01")).delete(f"player = '{ANN}'")


def test_rows_of_others_are_the_same_behind_a_purge_and_hers_are_left_on_the_disk(
    files: LakeFiles, tmp_path: Path
) -> None:
    before = files.remaining_rows("k01", [ANN])
    assert (before.rows, dict(files.rows_of("k01", [ANN]))) == (1, {ANN: 2})
    old = files.files("k01")
    purge(tmp_path)
    assert files.remaining_rows("k01", [ANN]) == before
    assert files.rows_of("k01", [ANN]) == {}
    assert files.rows_with_tokens("k01", [ANN]) == 2, "in the file of the version before"
    for path in old:
        Path(path).unlink()
    assert files.rows_with_tokens("k01", [ANN]) == 0
    assert files.landed("k01") == {"e1": 1}


def test_a_row_of_somebody_else_that_changed_is_seen(files: LakeFiles, tmp_path: Path) -> None:
    before = files.remaining_rows("k01", [ANN])
    DeltaTable(str(tmp_path / "k01")).update(updates={"n": "7"}, predicate="event_id = 'b2'")
    after = files.remaining_rows("k01", [ANN])
    assert (after.rows, after != before) == (before.rows, True)


def certificate(**changes: Any) -> dict[str, Any]:
    table = {"table": "k01", "rows_before": 3, "rows_after": 1, "erased_before": 2, "erased_after": 0, "person_rows": 2}
    said = {"number": 1, "previous_sha256": "", "scan": {"hits": 0, "hits_before": 4}}
    return {**said, "tables": [{**table, "other_rows_before": 1, "other_rows_after": 1, **changes}]}


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({}, ""),
        ({"other_rows_after": 0}, "do not add up"),
        ({"rows_after": 2}, "do not add up"),
        ({"erased_after": 1, "rows_after": 2}, "do not add up"),
        ({"person_rows": 1}, "1 rows of k01"),
        ({"person_rows": 5}, "5 rows of k01"),
    ],
)
def test_a_certificate_that_is_not_true_is_seen(tmp_path: Path, changes: dict[str, Any], wrong: str) -> None:
    (tmp_path / "e1.json").write_text(json.dumps(certificate(**changes)))
    (*said,) = wrong_with_certificates(tmp_path, ["e1"], table="k01", at_least={"e1": 2}, at_most={"e1": 4})
    assert (len(said), all(wrong in one for one in said)) == (1 if wrong else 0, True)


def test_a_missing_certificate_and_a_broken_chain_are_seen(tmp_path: Path) -> None:
    first = json.dumps(certificate()).encode()
    (tmp_path / "e1.json").write_bytes(first)
    second = certificate() | {"number": 2, "previous_sha256": hashlib.sha256(first).hexdigest()}
    (tmp_path / "e2.json").write_text(json.dumps(second))
    bounds = {"e1": 2, "e2": 2, "e3": 2}

    def wrong(*requests: str) -> list[str]:
        return wrong_with_certificates(tmp_path, requests, table="k01", at_least=bounds, at_most=bounds)

    assert wrong("e1", "e2") == []
    assert wrong("e1", "e2", "e3") == ["1 requests have no certificate"]
    (tmp_path / "e1.json").write_bytes(first + b" ")
    assert wrong("e1", "e2") == ["certificate 2 does not follow the one before it"]


SENT = {"a", "b", "c"}


@pytest.mark.parametrize(
    ("there", "wrong"),
    [
        (["a", "b"], {}),
        (["b", "a", "c"], {}),
        (["a"], {"lost": {"b"}}),
        (["a", "b", "b"], {"doubled": {"b"}}),
        (["a", "b", "c", "c"], {"doubled": {"c"}}),
        (["a", "b", "x"], {"strange": {"x"}}),
    ],
)
def test_acknowledged_events_are_present_once_and_others_at_most_once(
    there: list[str], wrong: dict[str, set[str]]
) -> None:
    verdict = check_collected({"a", "b"}, SENT, there)

    assert verdict.is_exact == (not wrong)
    for name in ("lost", "doubled", "strange"):
        assert getattr(verdict, name) == wrong.get(name, set())
