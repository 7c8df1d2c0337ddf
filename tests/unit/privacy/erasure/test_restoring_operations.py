"""No operation restores erased rows, in tables of any kind; without the protection it would."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltaworks.events import redaction_keys
from deltaworks.privacy.erasure import purge_window
from deltaworks.privacy.erasure.reapply import ErasureReapplier
from deltaworks.privacy.tokens.suppression import NO_SUPPRESSION
from deltaworks.recovery.repair.log_gap import check_pipeline
from deltaworks.recovery.reprocess.plan import ReprocessRequest
from deltaworks.recovery.reprocess.run import Reprocess
from deltaworks.recovery.reprocess.selection import Selection
from tests.crashes import Crash, crash_at
from tests.unit.privacy.erasure.restore_harness import ANN, BOB, KINDS, RestoreHarness, no_session

#: By way what it does to whom, and the kinds of tables in which rows come back by it.
FOLLOWING = ("append", "keyed", "latest")
WAYS: dict[str, tuple[Callable[[RestoreHarness], None], tuple[str, ...]]] = {
    "restore": (lambda stage: stage.restore("orders"), FOLLOWING),
    "restore of quarantine": (lambda stage: stage.restore("quarantine"), ("quarantine",)),
    "restore from the source": (lambda stage: stage.restore("orders", "source"), FOLLOWING),
    "recovered log": (lambda stage: stage.recover_log("orders"), (*FOLLOWING, "mutable", "quarantine")),
    "reprocess": (lambda stage: stage.reprocess("orders"), FOLLOWING),
    "start over": (lambda stage: stage.start_over(), (*FOLLOWING, "mutable", "quarantine")),
    "rollback": (lambda stage: stage.roll_back(), (*FOLLOWING, "mutable", "quarantine")),
    "recovered files": (lambda stage: stage.recover_files("orders"), FOLLOWING),
    "recovered table": (lambda stage: stage.recover_table("orders"), FOLLOWING),
}
LONG = {"recovered files", "restore from the source", "restore of quarantine", "recovered log", "rollback"}


@pytest.fixture
def stage(tmp_path: Path) -> RestoreHarness:
    return RestoreHarness.made(tmp_path)


def of(stage: RestoreHarness, who: str) -> dict[str, int]:
    """How many rows name somebody, by kind of table."""
    return {kind: stage.of(who, table) for kind, table in KINDS.items()}


@pytest.mark.parametrize("protected", [True, pytest.param(False, marks=pytest.mark.integration)])
@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.integration) if way in LONG else way for way in WAYS]
)
def test_no_operation_restores_erased_rows(
    stage: RestoreHarness, monkeypatch: pytest.MonkeyPatch, way: str, protected: bool
) -> None:
    go, kinds = WAYS[way]
    assert all(of(stage, ANN).values())
    stage.erase()
    assert set(of(stage, ANN).values()) == {0}
    if not protected:
        monkeypatch.setattr(ErasureReapplier, "reapply", lambda *_, **__: None)
        monkeypatch.setattr(redaction_keys, "read_suppression", lambda *_, **__: NO_SUPPRESSION)

    go(stage)
    stage.follow()

    assert {kind for kind, rows in of(stage, ANN).items() if rows} == (set() if protected else set(kinds))
    assert all(of(stage, BOB).values()), "others are there"


@pytest.mark.parametrize("kind", KINDS)
def test_an_externally_restored_folder_is_detected_and_purged_for_all_table_kinds(
    stage: RestoreHarness, kind: str, tmp_path: Path
) -> None:
    folder, others = stage.folder(KINDS[kind]), of(stage, BOB)
    shutil.copytree(folder, tmp_path / "backup")
    stage.erase()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    assert stage.of(ANN, KINDS[kind])

    (damage,) = check_pipeline(stage.catalog(), "shop")
    assert (damage.subject, damage.kind) == (KINDS[kind], "erased_rows_back")
    reapplier = ErasureReapplier(stage.catalog(), "shop")
    reapplier.purge_reappeared_rows(reapplier.erasable_tables)
    stage.follow()

    assert set(of(stage, ANN).values()) == {0}
    assert of(stage, BOB) == others
    assert check_pipeline(stage.catalog(), "shop") == []


@pytest.mark.parametrize("protected", [True, False])
@pytest.mark.parametrize("shadow", [True, False])
def test_an_interrupted_reprocess_with_matching_rows_blocks_the_window(
    stage: RestoreHarness, monkeypatch: pytest.MonkeyPatch, shadow: bool, protected: bool
) -> None:
    def again(point: str = "none") -> Any:
        request = ReprocessRequest(selection=Selection(from_start=True), tables=("orders",), shadow=shadow)
        return Reprocess(no_session, stage.catalog(), "shop", fault=crash_at(point)).run("r1", request)

    with pytest.raises(Crash):
        again("staged")
    stage.ask()
    if not protected:
        monkeypatch.setattr(purge_window, "reprocess_ids", lambda *_: [])
    state, waits_for = stage.advance()
    assert state == ("shredded" if protected else "purged")
    assert ("the reprocess r1 of shop" in waits_for) is protected
    if not protected:
        with pytest.raises(FileNotFoundError):
            again()
        return
    again()
    assert stage.advance()[0] == "purged"
    assert set(of(stage, ANN).values()) == {0}
    assert stage.of(BOB, "orders__r1" if shadow else "orders") == 3
    assert stage.of(ANN, "orders__r1") == 0


def test_a_reprocess_that_has_read_nothing_does_not_block_a_window(stage: RestoreHarness) -> None:
    def again(point: str = "none") -> Any:
        request = ReprocessRequest(selection=Selection(from_start=True), tables=("orders",))
        return Reprocess(no_session, stage.catalog(), "shop", fault=crash_at(point)).run("r1", request)

    with pytest.raises(Crash):
        again("planned")
    stage.erase()
    again()
    assert set(of(stage, ANN).values()) == {0}


def test_a_reprocess_of_an_older_generation_does_not_block_a_window(stage: RestoreHarness) -> None:
    request = ReprocessRequest(selection=Selection(from_start=True), tables=("orders",))
    with pytest.raises(Crash):
        Reprocess(no_session, stage.catalog(), "shop", fault=crash_at("staged")).run("r1", request)
    stage.start_over()
    stage.erase()
    assert set(of(stage, ANN).values()) == {0}
