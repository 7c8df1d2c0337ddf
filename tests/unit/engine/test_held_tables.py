"""A held table loses nothing: it catches up exactly and in order, wherever the process ends."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.held_tables import HeldTable, HeldTables
from deltaworks.engine import commit as commit_phase
from deltaworks.errors import DeltaworksError, FencedError
from deltaworks.testing import present
from tests.crashes import Crash, crash_at
from tests.examples import examples
from tests.unit.engine.hold_harness import TABLES, Harness


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", (0.0, 0.0))


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness.at(tmp_path)


def held(harness: Harness) -> dict[str, HeldTable]:
    return PipelineHome(harness.objects, "shop").held.read()


def test_one_failing_table_does_not_hold_the_others(harness: Harness) -> None:
    processor = harness.processor()
    harness.land(processor, 0)
    harness.break_table("orders")

    for batch_id in (1, 2):
        assert harness.land(processor, batch_id) is not None

    for name in ("clicks", "logins", "quarantine"):
        assert harness.landed(name) == harness.expected(0, 1, 2)
    assert harness.steps("orders") == [(0, "committed"), (1, "held"), (2, "held")]
    record = held(harness)["orders"]
    assert (record.reason, record.since_batch) == ("suspended", 1)
    assert record.message


def test_a_repaired_and_resumed_table_catches_up_in_batch_order(harness: Harness) -> None:
    processor = harness.processor()
    mend = harness.break_table("orders")
    for batch_id in range(3):
        harness.land(processor, batch_id)
    mend()

    PipelineHome(harness.objects, "shop").held.request_resume("orders", by="ada")
    assert processor.serve_requests()
    harness.land(processor, 3)

    assert harness.landed("orders") == harness.expected(0, 1, 2, 3)
    assert harness.steps("orders") == [
        (0, "held"),
        (0, "caught_up"),
        (1, "held"),
        (1, "caught_up"),
        (2, "held"),
        (2, "caught_up"),
        (3, "committed"),
    ]
    assert held(harness) == {}
    assert harness.objects.list(paths.requests("shop")) == []


def test_a_table_that_fails_again_is_suspended_again_and_loses_nothing(harness: Harness) -> None:
    processor = harness.processor()
    mend = harness.break_table("orders")
    harness.land(processor, 0)

    PipelineHome(harness.objects, "shop").held.request_resume("orders", by="ada")
    processor.serve_requests()
    assert held(harness)["orders"].since_batch == 0
    assert harness.objects.list(paths.requests("shop")) == []
    harness.land(processor, 1)
    mend()
    PipelineHome(harness.objects, "shop").held.request_resume("orders", by="ada")
    processor.serve_requests()

    assert harness.landed("orders") == harness.expected(0, 1)


def test_the_next_start_retries_a_suspension_with_a_retryable_cause(harness: Harness) -> None:
    processor = harness.processor()
    mend = harness.break_table("orders")
    for batch_id in range(2):
        harness.land(processor, batch_id)
    assert held(harness)["orders"].retryable
    mend()

    harness.land(harness.processor(), 2)

    assert harness.landed("orders") == harness.expected(0, 1, 2)
    assert held(harness) == {}


@pytest.mark.parametrize("point", ["held", "committed:clicks", "committed", "completed"])
def test_a_crash_in_the_batch_that_suspends_loses_nothing(harness: Harness, point: str) -> None:
    harness.land(harness.processor(), 0)
    mend = harness.break_table("orders")
    with pytest.raises(Crash):
        harness.land(harness.processor(fault=crash_at("committed" if point == "held" else point)), 1)

    harness.processor().complete_prepared()
    harness.land(harness.processor(), 2)
    mend()
    harness.processor()
    harness.land(harness.processor(), 3)

    for name in (*TABLES, "quarantine"):
        assert harness.landed(name) == harness.expected(0, 1, 2, 3), name
    assert held(harness) == {}


@pytest.mark.parametrize("point", ["caught_up:orders", "recorded:orders"])
def test_catching_up_resumes_after_a_crash(harness: Harness, point: str) -> None:
    processor = harness.processor()
    mend = harness.break_table("orders")
    for batch_id in range(3):
        harness.land(processor, batch_id)
    mend()
    with pytest.raises(Crash):
        harness.processor(fault=crash_at(point))

    harness.land(harness.processor(), 3)

    assert harness.landed("orders") == harness.expected(0, 1, 2, 3)
    assert [outcome for _, outcome in harness.steps("orders")].count("caught_up") == 3
    assert held(harness) == {}


def test_a_lost_record_is_recreated_from_the_ledger(harness: Harness) -> None:
    processor = harness.processor()
    mend = harness.break_table("orders")
    for batch_id in range(2):
        harness.land(processor, batch_id)
    harness.objects.delete(paths.held_table("shop", "orders"))
    mend()

    harness.land(harness.processor(), 2)

    assert harness.landed("orders") == harness.expected(0, 1, 2)


def test_a_corrupt_record_releases_no_table(harness: Harness) -> None:
    processor = harness.processor()
    mend = harness.break_table("orders")
    harness.land(processor, 0)
    harness.objects.put(paths.held_table("shop", "orders"), b'{"table": "ord')
    mend()

    successor = harness.processor()
    harness.land(successor, 1)
    assert held(harness)["orders"].condition == "HELD_RECORD_UNREADABLE"
    PipelineHome(harness.objects, "shop").held.request_resume("orders", by="ada")
    successor.serve_requests()

    assert harness.landed("orders") == harness.expected(0, 1)


def test_a_former_owners_record_with_a_later_batch_does_not_hide_an_earlier_one(harness: Harness) -> None:
    processor = harness.processor()
    mend = harness.break_table("orders")
    for batch_id in range(3):
        harness.land(processor, batch_id)
    late = held(harness)["orders"]
    harness.objects.put(
        paths.held_table("shop", "orders"),
        HeldTable(table="orders", reason="suspended", since_batch=2, at=late.at, retryable=True).encode(),
    )
    mend()

    harness.processor()

    assert harness.landed("orders") == harness.expected(0, 1, 2)


def test_removing_the_record_releases_nothing_while_its_owner_runs(harness: Harness) -> None:
    processor = harness.processor()
    mend = harness.break_table("orders")
    harness.land(processor, 0)
    harness.objects.delete(paths.held_table("shop", "orders"))
    mend()

    harness.land(processor, 1)

    assert harness.steps("orders") == [(0, "held"), (1, "held")]


def test_a_former_owner_cannot_catch_up_what_its_successor_holds(harness: Harness) -> None:
    former = harness.processor()
    mend = harness.break_table("orders")
    harness.land(former, 0)
    harness.processor()
    mend()
    successor = harness.processor()
    assert harness.landed("orders") == harness.expected(0)

    PipelineHome(harness.objects, "shop").held.request_resume("orders", by="ada")
    with pytest.raises(FencedError):
        former.serve_requests()

    harness.land(successor, 1)
    assert harness.landed("orders") == harness.expected(0, 1)


def test_quarantine_is_never_suspended(harness: Harness) -> None:
    processor = harness.processor()
    mend = harness.break_table("quarantine")
    with pytest.raises(DeltaworksError):
        harness.land(processor, 0)
    mend()

    assert held(harness) == {}
    harness.processor().complete_prepared()
    assert harness.landed("quarantine") == harness.expected(0)


def test_an_unreachable_storage_suspends_nothing(harness: Harness) -> None:
    processor = harness.processor()
    mends = [harness.break_table(name) for name in (*TABLES, "quarantine")]
    with pytest.raises(DeltaworksError):
        harness.land(processor, 0, tables=TABLES)
    for mend in mends:
        mend()

    assert held(harness) == {}
    harness.processor().complete_prepared()
    for name in TABLES:
        assert harness.landed(name) == harness.expected(0)


class TestTablesThatCannotBeOpened:
    """A table with a broken log or a different schema does not prevent the others from starting."""

    def test_a_table_that_cannot_be_opened_is_suspended_and_catches_up(self, harness: Harness) -> None:
        harness.land(harness.processor(), 0)
        mend = harness.break_table("orders")

        processor = harness.processor()
        harness.land(processor, 1)
        assert harness.landed("clicks") == harness.expected(0, 1)
        mend()
        PipelineHome(harness.objects, "shop").held.request_resume("orders", by="ada")
        processor.serve_requests()

        assert harness.landed("orders") == harness.expected(0, 1)

    def test_files_of_another_declaration_are_converted_where_that_is_exact(self, harness: Harness) -> None:
        harness.land(harness.processor(), 0)
        harness.declare(orders="string")
        harness.land(harness.processor(), 1)
        assert held(harness)["orders"].condition == "TABLE_SCHEMA_DIFFERS"
        assert not held(harness)["orders"].retryable

        harness.declare()
        processor = harness.processor()
        assert harness.landed("orders") == harness.expected(0)
        PipelineHome(harness.objects, "shop").held.request_resume("orders", by="ada")
        processor.serve_requests()

        rows = present(harness.lake.rows(paths.table("shop", "orders")))
        assert harness.landed("orders") == harness.expected(0, 1)
        assert set(rows.column("level").to_pylist()) == {7}

    def test_files_that_do_not_convert_stay_where_they_are(self, harness: Harness) -> None:
        harness.land(harness.processor(), 0)
        harness.declare(orders="array<int>")
        harness.prepare(1)
        harness.processor().complete_prepared()
        harness.declare()

        processor = harness.processor()
        PipelineHome(harness.objects, "shop").held.request_resume("orders", by="ada")
        processor.serve_requests()

        assert held(harness)["orders"].condition == "PREPARED_FILES_INCOMPATIBLE"
        assert harness.landed("orders") == harness.expected(0)

    def test_a_table_that_is_no_longer_declared_keeps_its_share(self, harness: Harness) -> None:
        mend = None
        processor = harness.processor()
        mend = harness.break_table("orders")
        harness.land(processor, 0)
        mend()
        full = harness.spec
        harness.spec = full.model_copy(update={"tables": tuple(t for t in full.tables if t.name != "orders")})

        harness.land(harness.processor(), 1, tables=("clicks",))
        assert held(harness)["orders"].condition == "TABLE_NOT_DECLARED"
        harness.spec = full
        processor = harness.processor()
        PipelineHome(harness.objects, "shop").held.request_resume("orders", by="ada")
        processor.serve_requests()

        assert harness.landed("orders") == harness.expected(0)


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(
        st.sampled_from(["land", "break", "mend", "resume", "restart", "crash_commit", "crash_catch_up"]),
        min_size=4,
        max_size=14,
    )
)
def test_whatever_happens_every_row_lands_once(tmp_path_factory: pytest.TempPathFactory, story: list[str]) -> None:
    harness = Harness.at(tmp_path_factory.mktemp("story"))
    processor, mend, landed = harness.processor(), None, 0
    for event in [*story, "restart", "mend", "restart", "resume", "restart"]:
        if event == "land":
            harness.land(processor, landed)
            landed += 1
        elif event == "break" and mend is None:
            mend = harness.break_table("orders")
        elif event == "mend" and mend is not None:
            mend()
            mend = None
        elif event == "resume":
            PipelineHome(harness.objects, "shop").held.request_resume("orders", by="ada")
            processor.serve_requests()
        elif event == "crash_commit":
            harness.prepare(landed)
            with pytest.raises(Crash):
                harness.processor(fault=crash_at("committed")).complete_prepared()
            processor = harness.processor()
            processor.complete_prepared()
            landed += 1
        elif event == "crash_catch_up":
            for point in ("caught_up:orders", "recorded:orders"):
                with contextlib.suppress(Crash):
                    harness.processor(fault=crash_at(point))
            processor = harness.processor()
        elif event == "restart":
            processor = harness.processor()

    for name in (*TABLES, "quarantine"):
        if landed:
            assert harness.landed(name) == harness.expected(*range(landed)), name
    assert held(harness) == {}


def test_holding_again_keeps_the_first_batch(harness: Harness) -> None:
    tables = HeldTables(harness.objects, "shop")
    tables.hold(HeldTable(table="orders", reason="write_turn", since_batch=3, at=""))
    tables.hold(HeldTable(table="orders", reason="suspended", since_batch=9, at=""))

    assert held(harness)["orders"].since_batch == 3
    assert held(harness)["orders"].reason == "suspended"
