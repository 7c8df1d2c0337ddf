"""No operation and no shadow table restores erased rows, in tables of any kind; without the protection it would."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import maintenance_lock
from deltaworks.control.records.certificate import Certificates
from deltaworks.control.records.reprocess import ReprocessPlan
from deltaworks.events import redaction_keys
from deltaworks.gold.pinned_inputs import pin_inputs
from deltaworks.gold.refresh import find_shadows, shadow_state, was_erased_since
from deltaworks.privacy.erasure import purge_window, scan
from deltaworks.privacy.erasure.purge_table import TablePurger
from deltaworks.privacy.erasure.reapply import ErasureReapplier
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.privacy.tokens.suppression import NO_SUPPRESSION
from deltaworks.recovery.repair.log_gap import check_pipeline
from deltaworks.recovery.reprocess.plan import ReprocessRequest
from deltaworks.recovery.reprocess.run import Reprocess
from deltaworks.recovery.reprocess.selection import Selection
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from tests.crashes import Crash, crash_at
from tests.records import record_of
from tests.unit.privacy.erasure.people_lake import DAY, ORDERS, SHOP, PeopleLake, add_rows
from tests.unit.privacy.erasure.restore_harness import ANN, BOB, KINDS, RestoreHarness, no_session
from tests.unit.privacy.erasure.test_operation import ask

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


GOLD = """\
gold:
  tables: [{name: daily, sql: gold/daily.sql, reads: [orders], partition_by: event_date}]
"""
DAILY = "SELECT event_date, player, count(*) AS orders FROM orders GROUP BY ALL"
SHADOW = paths.gold_shadow("shop", "daily", 1)


@pytest.fixture
def lake(tmp_path: Path) -> PeopleLake:
    """Orders of Ann and of Bob."""
    lake = PeopleLake(tmp_path, SHOP + GOLD, sql={"gold/daily.sql": DAILY})
    lake.orders(("ann", None, None, 1), ("bob", None, None, 2))
    return lake


def rows_of_both(lake: PeopleLake) -> list[dict[str, Any]]:
    days = (DAY, DAY + dt.timedelta(days=1))
    return [
        {"event_date": day, "player": lake.token("player", who), "amount": amount}
        for day, who, amount in zip(days, ("ann", "bob"), (1, 2), strict=True)
    ]


def shadow_of_both(lake: PeopleLake, key: str = SHADOW) -> None:
    add_rows(Lake(lake.catalog.environment.lake), key, rows_of_both(lake), ORDERS)


def objects_of(lake: PeopleLake, key: str) -> list[str]:
    return [path.name for path in (lake.root / "lake" / key).rglob("*") if path.is_file()]


def test_a_gold_shadow_with_erased_rows_is_deleted_and_the_next_refresh_starts_over(lake: PeopleLake) -> None:
    shadow_of_both(lake)
    ask(lake, "player", "ann")
    lake.advance()
    assert objects_of(lake, SHADOW) == []
    space = lake.namespace
    assert shadow_state(space.lake, space.objects, SHADOW) is None
    assert not find_shadows(space.lake, "shop", "daily").is_in_progress


def test_a_shadow_must_be_deleted_completely(lake: PeopleLake, monkeypatch: pytest.MonkeyPatch) -> None:
    shadow_of_both(lake)
    ask(lake, "player", "ann")

    def piece_by_piece(namespace: Any, pipeline: str, search: TokenSearch) -> None:
        for key in namespace.objects.list(f"{paths.pipeline_control(pipeline, 'gold_shadows')}/"):
            if scan.scan_object(namespace.lake, key, search).tokens:
                namespace.objects.delete(key)

    monkeypatch.setattr(scan, "remove_gold_shadows", piece_by_piece)
    lake.advance()
    assert objects_of(lake, SHADOW), "Bob's file is left, in a table that a refresh would continue with"
    assert find_shadows(lake.namespace.lake, "shop", "daily").is_in_progress


def test_a_shadow_without_erased_rows_stays(lake: PeopleLake) -> None:
    add_rows(lake.namespace.lake, SHADOW, rows_of_both(lake)[1:], ORDERS)
    ask(lake, "player", "ann")
    lake.advance()
    assert find_shadows(lake.namespace.lake, "shop", "daily").is_in_progress


def test_a_shadow_written_after_the_window_is_removed_before_the_certificate(
    lake: PeopleLake,
) -> None:
    request = ask(lake, "player", "ann")
    folder = paths.gold_shadows("shop", "daily")
    with maintenance_lock(lake.namespace.objects, "shop", work="a refresh of daily", folder=folder):
        shadow_of_both(lake)
        lake.advance()
        assert objects_of(lake, SHADOW), "whoever is at work on it has it"
    lake.pass_time(days=8)
    lake.advance()
    assert objects_of(lake, SHADOW) == []
    assert (
        Certificates(lake.namespace.objects, "players", lake.namespace.vault.objects).read(request.request_id)
        is not None
    )


def test_a_swap_detects_an_erasure_in_its_inputs(lake: PeopleLake) -> None:
    space = lake.namespace
    inputs = pin_inputs(space.lake, lake.catalog.pipeline("shop"), ("orders",))
    assert not was_erased_since(space.lake, inputs)
    lake.orders(("bob", None, None, 3))
    assert not was_erased_since(space.lake, inputs), "what came since is no reason"
    requests = {"e1": TokenSearch([lake.token("player", "ann")])}
    key = paths.table("shop", "orders")
    TablePurger(space.lake, space.objects, key, pipeline="shop", table="orders", requests=requests).purge(Step("p", 1))
    lake.orders(("bob", None, None, 4))
    assert was_erased_since(space.lake, inputs)
    assert not was_erased_since(space.lake, pin_inputs(space.lake, lake.catalog.pipeline("shop"), ("orders",)))


def reprocessed_beside(lake: PeopleLake) -> None:
    """What a reprocess into shadows leaves, with its records."""
    home = PipelineHome(lake.namespace.objects, "shop")
    plan = record_of(
        ReprocessPlan,
        pipeline="shop",
        id="r1",
        mode="shadow",
        tables=("orders", "invoices"),
        all_tables=True,
        ranges=((1, 1),),
    )
    home.reprocess("r1").get_or_create_plan(plan)
    home.reprocess("r1").record_completion([])
    for table in ("orders__r1", "invoices__r1"):
        shadow_of_both(lake, paths.table("shop", table))


@pytest.mark.parametrize("protected", [True, False])
def test_shadow_tables_of_a_reprocess_are_purged_too(
    lake: PeopleLake, monkeypatch: pytest.MonkeyPatch, protected: bool
) -> None:
    reprocessed_beside(lake)
    request = ask(lake, "player", "ann")
    if not protected:
        monkeypatch.setattr(scan, "_shadow_tables", lambda *_: iter(()))
    lake.advance()
    lake.pass_time(days=8)
    (done,) = lake.advance()

    assert (lake.amounts("orders__r1") == [2]) is protected
    assert lake.amounts("invoices__r1") == [1, 2], "a copy of what is kept is kept"
    assert (done.state == "certified") is protected, "and else nothing is certified for ever"
    certificate = Certificates(lake.namespace.objects, "players", lake.namespace.vault.objects).read(request.request_id)
    assert (certificate is not None) is protected
    if certificate is not None:
        assert {"orders__r1", "quarantine__r1"} <= {table.table for table in certificate.tables}


def test_a_restored_shadow_table_is_detected_and_purged_again(lake: PeopleLake) -> None:
    reprocessed_beside(lake)
    ask(lake, "player", "ann")
    lake.advance()
    add_rows(lake.namespace.lake, paths.table("shop", "orders__r1"), rows_of_both(lake), ORDERS)
    reapplier = ErasureReapplier(lake.catalog, "shop")
    assert [back.table for back in reapplier.find_reappeared_rows(reapplier.erasable_tables)] == ["orders__r1"]
    reapplier.purge_reappeared_rows(reapplier.erasable_tables)
    assert lake.amounts("orders__r1") == [2, 2]
