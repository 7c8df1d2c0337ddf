"""Faults between the states of an erasure; each test also shows the damage without the protection."""

from __future__ import annotations

import datetime as dt
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deltaworks.alerts.raising import open_subjects
from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.certificate import Certificates
from deltaworks.control.records.erasure import GRANTED_STATES, Erasures, PurgedTable
from deltaworks.errors import ConfigError, DeltaworksError
from deltaworks.privacy.erasure import erasure_run, person_resolution, purge_table
from deltaworks.privacy.erasure import suppression as suppressing
from deltaworks.privacy.erasure.purge_table import TablePurger
from deltaworks.privacy.erasure.reapply import ErasureReapplier
from deltaworks.recovery.restore.plan import TableRestoreRequest
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.table_restore import TableRestore
from deltaworks.testing import present
from tests.unit.privacy.erasure.people_lake import DAY, QUARANTINE, PeopleLake
from tests.unit.privacy.erasure.test_operation import ask, request_of


class Killed(BaseException):
    """The process was killed."""


@pytest.fixture
def lake(tmp_path: Path) -> PeopleLake:
    """Ann and Bob, who share a tablet."""
    lake = PeopleLake(tmp_path)
    lake.orders(("ann", "tablet", "ann@example.org", 1), ("bob", "tablet", None, 2), (None, "tablet", None, 3))
    raw = json.dumps({"player": lake.token("player", "ann")})
    lake.add("quarantine", [{"quarantine_date": DAY, "reason": "type", "raw": raw}], QUARANTINE)
    ann, bob, tablet = lake.token("player", "ann"), lake.token("player", "bob"), lake.token("device", "tablet")
    lake.identities((ann, "email", lake.token("email", "ann@example.org")))
    lake.links((ann, tablet), (bob, tablet))
    return lake


def killed_at(lake: PeopleLake, point: str) -> bool:
    """Run until that point; whether it was reached."""

    def kill(reached: str) -> None:
        if reached == point:
            raise Killed(point)

    try:
        lake.advance(fault=kill)
    except Killed:
        return True
    return False


POINTS = [f"{when} {state}" for state in GRANTED_STATES[1:] for when in ("before", "after")]
POINTS += ["purged shop.orders", "noted shop.orders", "purged vault.identities"]


@pytest.mark.parametrize("point", POINTS)
def test_a_run_killed_at_any_point_is_continued(lake: PeopleLake, point: str) -> None:
    request = ask(lake, "player", "ann")
    reached = killed_at(lake, point)
    lake.advance()
    lake.pass_time(days=8)
    reached = killed_at(lake, point) or reached
    lake.advance()

    assert reached
    assert lake.amounts() == [2, 3]
    certificate = Certificates(lake.namespace.objects, "players", lake.namespace.vault.objects).read(request.request_id)
    assert certificate is not None
    orders = next(table for table in certificate.tables if table.table == "orders")
    assert (orders.rows_before, orders.rows_after, orders.person_rows) == (3, 2, 1)
    assert [step.state for step in request_of(lake, request).steps] == list(GRANTED_STATES)


def test_recording_the_state_before_the_step_would_leave_rows(
    lake: PeopleLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(lake, "player", "ann")
    window = erasure_run.PurgeWindow.run

    def state_first(self: Any) -> Any:
        space = self._namespace
        for request in space.erasures.open_requests():
            Erasures.record_state(
                space.erasures, request, "purged", by="tests", detail={"window": 1, "rows": 1, "hits_before": 1}
            )
        return window(self)

    monkeypatch.setattr(erasure_run.PurgeWindow, "run", state_first)
    assert killed_at(lake, "purged shop.orders")
    monkeypatch.setattr(TablePurger, "purge", lambda *_, **__: (_ for _ in ()).throw(Killed()))
    with suppress(Killed):
        lake.advance()
    monkeypatch.undo()
    lake.advance()
    quarantined = present(lake.namespace.lake.rows(paths.table("shop", "quarantine"), columns=["raw"]))
    assert quarantined.num_rows == 1, "a state before its deed would have been harmless"


def test_a_request_waits_for_batches_prepared_before(lake: PeopleLake, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ask(lake, "player", "ann")
    held = lake.root / "lake" / paths.held_table("shop", "orders")
    held.parent.mkdir(parents=True)
    held.write_text(
        json.dumps(
            {"format": 1, "table": "orders", "reason": "suspended", "since_batch": 1, "at": "2026-03-01T00:00:00"}
        )
    )

    (waiting,) = lake.advance()
    assert (waiting.state, "shop.orders is held" in waiting.waiting_for) == ("resolved", True)
    assert len(open_subjects(lake.namespace.objects, "ERASURE_BLOCKED")) == 1
    with pytest.raises(ConfigError, match="ERASURE_STARTED"):  # her events are dropped already
        lake.namespace.erasures.refuse(request_of(lake, request), reason="a lawsuit", by="tests")

    monkeypatch.setattr(erasure_run, "blocking_streams", lambda *_, **__: [])  # wait_for_batch off
    lake.advance()
    assert request_of(lake, request).state == "purged", "a held table would have brought her back behind this"
    monkeypatch.undo()


def test_a_stream_blocks_until_it_completed_a_batch_with_the_new_list(lake: PeopleLake) -> None:
    space = lake.namespace
    request = ask(lake, "player", "ann")
    record = suppressing.suppress_person(space, request, person_resolution.Person(subjects=("p",), tokens=("p",)))
    now = dt.datetime.now(dt.UTC)
    assert suppressing.blocking_streams(space, record, now=now) == []
    beat = lake.root / "lake" / paths.heartbeat(paths.pipeline_control("shop"))
    beat.parent.mkdir(parents=True, exist_ok=True)
    at = now.isoformat()
    fields = {"pipeline": "shop", "owner": "o", "epoch": 1, "run": "r", "written_at": at, "started_at": at}
    beat.write_text(json.dumps({**fields, "state": "running", "trigger_seconds": 60.0}))
    (behind,) = suppressing.blocking_streams(space, record, now=now)
    assert "has completed no batch since" in behind
    later = (now + dt.timedelta(seconds=60)).isoformat()
    beat.write_text(json.dumps({**fields, "written_at": later, "state": "idle", "trigger_seconds": 60.0}))
    assert suppressing.blocking_streams(space, record, now=now) == []


def restored(lake: PeopleLake, version: int) -> None:
    request = TableRestoreRequest(point=RestorePoint(version=version), max_rows=1_000, repair="none")
    TableRestore(lake.catalog, "shop", "orders").run(request)


def test_a_restore_does_not_restore_erased_rows(lake: PeopleLake) -> None:
    ask(lake, "player", "ann")
    lake.advance()
    restored(lake, 1)
    assert lake.amounts() == [2, 3]
    assert ErasureReapplier(lake.catalog, "shop").find_reappeared_rows(["orders"]) == []
    assert present(PipelineHome(lake.namespace.objects, "shop").rollbacks.read(1)).reapply_erasures


def test_without_reapply_a_restore_restores_erased_rows_and_the_check_reports_them(
    lake: PeopleLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(lake, "player", "ann")
    lake.advance()
    monkeypatch.setattr(ErasureReapplier, "reapply", lambda *_, **__: None)
    restored(lake, 1)
    assert lake.amounts() == [1, 2, 3]
    (back,) = ErasureReapplier(lake.catalog, "shop").find_reappeared_rows(["orders"])
    assert (back.table, back.rows) == ("orders", 1)
    assert open_subjects(lake.namespace.objects, "ERASED_ROWS_REAPPEARED") == {"shop"}


def test_a_restore_that_dies_before_the_reapply_is_unfinished(lake: PeopleLake) -> None:
    ask(lake, "player", "ann")
    lake.advance()

    def kill(point: str) -> None:
        if point == "restored":
            raise Killed

    request = TableRestoreRequest(point=RestorePoint(version=1), max_rows=1_000, repair="none")
    with pytest.raises(Killed):
        TableRestore(lake.catalog, "shop", "orders", fault=kill).run(request)
    assert lake.amounts() == [1, 2, 3]
    assert TableRestore(lake.catalog, "shop", "orders").has_unfinished
    (waiting,) = [result for result in lake.advance()] or [None]
    TableRestore(lake.catalog, "shop", "orders").run()
    assert lake.amounts() == [2, 3]
    assert waiting is not None


def hold(lake: PeopleLake, version: int) -> None:
    home = PipelineHome(lake.namespace.objects, "shop")
    home.readers.pin("orders", reader="analyst", version=version, hours=700)


def test_a_reader_s_hold_blocks_the_certificate(lake: PeopleLake, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ask(lake, "player", "ann")
    hold(lake, 1)
    lake.advance()
    lake.pass_time(days=8)

    (waiting,) = lake.advance()
    assert waiting.state == "purged"
    assert "shop.orders: the reader analyst" in waiting.waiting_for
    assert open_subjects(lake.namespace.objects, "ERASURE_BLOCKED") == {f"players {request.request_id}"}

    monkeypatch.setattr(erasure_run, "blocking_holds", lambda *_: iter(()))  # hold_check off
    monkeypatch.setattr(erasure_run, "remaining_files", lambda *_: iter(()))
    (unnamed,) = lake.advance()
    assert unnamed.state == "vacuumed", "the hold would have been passed over"


def test_a_dry_run_vacuum_certifies_nothing(lake: PeopleLake, monkeypatch: pytest.MonkeyPatch) -> None:
    request = ask(lake, "player", "ann")
    lake.advance()
    lake.pass_time(days=8)
    real = erasure_run.vacuum_tables
    monkeypatch.setattr(
        erasure_run, "vacuum_tables", lambda *args, **options: real(*args, **{**options, "dry_run": True})
    )

    (waiting,) = lake.advance()
    assert (waiting.state, "files" in waiting.waiting_for) == ("purged", True)
    assert open_subjects(lake.namespace.objects, "ERASURE_BLOCKED") == {f"players {request.request_id}"}

    monkeypatch.setattr(erasure_run, "remaining_files", lambda *_: iter(()))  # vacuum_check off
    (passed,) = lake.advance()
    assert passed.state == "vacuumed", "without the check the request goes on over files that are there"
    assert "tokens remain in" in passed.waiting_for, "and the scan is what is left to stop it"


def test_escaped_file_names_are_checked_correctly(lake: PeopleLake) -> None:
    """Spark escapes what stands in names of folders, and a log escapes paths once more."""
    name = "event_date=2026-03-01%2000%3A00/part-1.parquet"
    left = lake.root / "lake" / paths.table("shop", "orders") / name
    left.parent.mkdir(parents=True)
    left.write_bytes(b"rows of hers")
    purge = PurgedTable.unchanged("shop", "orders", rows=1).replace(removed_files=(name,))
    assert "1 of 1 files" in next(erasure_run.remaining_files(lake.namespace, [purge], {}))


def test_a_shared_device_erases_no_other_person(lake: PeopleLake, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(lake, "player", "ann")
    lake.advance()
    assert lake.amounts() == [2, 3]


def test_following_links_further_would_erase_a_family(lake: PeopleLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(person_resolution, "shared_tokens", lambda *_: set())
    ask(lake, "player", "ann")
    lake.advance()
    assert lake.amounts() == [], "the tablet alone would have named them all"


def test_deleting_rows_of_others_aborts_the_purge(lake: PeopleLake, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(lake, "player", "ann")
    written = purge_table.DataFiles.write

    def loses_one(self: Any, partition: Any, parts: Any) -> Any:
        return written(self, partition, (part.slice(1) if part.num_rows > 1 else part for part in parts))

    monkeypatch.setattr(purge_table.DataFiles, "write", loses_one)
    with pytest.raises(DeltaworksError, match="ERASURE_MISCOUNTED"):
        lake.advance()
    assert lake.amounts() == [1, 2, 3]
