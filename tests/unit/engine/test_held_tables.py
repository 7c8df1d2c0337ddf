"""A table that is held misses nothing: it catches up exactly, in order, whatever ends the process on the way."""

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
from tests.examples import examples
from tests.unit.engine.hold_stage import TABLES, Crash, Stage, crash_at


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_phase, "RETRY_SECONDS", (0.0, 0.0))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage.at(tmp_path)


def held(stage: Stage) -> dict[str, HeldTable]:
    return PipelineHome(stage.objects, "shop").held.read()


def test_one_poison_table_holds_none_of_the_others(stage: Stage) -> None:
    processor = stage.processor()
    stage.land(processor, 0)
    stage.break_table("orders")

    for batch_id in (1, 2):
        report = stage.land(processor, batch_id)
        assert report is not None

    for name in ("clicks", "logins", "quarantine"):
        assert stage.landed(name) == stage.expected(0, 1, 2)
    assert stage.steps("orders") == [(0, "committed"), (1, "held"), (2, "held")]
    record = held(stage)["orders"]
    assert (record.reason, record.since_batch) == ("suspended", 1)
    assert record.message


def test_a_table_that_is_mended_and_resumed_catches_up_in_the_order_of_batches(stage: Stage) -> None:
    processor = stage.processor()
    mend = stage.break_table("orders")
    for batch_id in range(3):
        stage.land(processor, batch_id)
    mend()

    PipelineHome(stage.objects, "shop").held.request_resume("orders", by="ada")
    assert processor.serve_requests()
    stage.land(processor, 3)

    assert stage.landed("orders") == stage.expected(0, 1, 2, 3)
    assert stage.steps("orders") == [
        (0, "held"),
        (0, "caught_up"),
        (1, "held"),
        (1, "caught_up"),
        (2, "held"),
        (2, "caught_up"),
        (3, "committed"),
    ]
    assert held(stage) == {}
    assert stage.objects.list(paths.requests("shop")) == []


def test_a_table_that_fails_again_is_suspended_again_and_loses_nothing(stage: Stage) -> None:
    processor = stage.processor()
    mend = stage.break_table("orders")
    stage.land(processor, 0)

    PipelineHome(stage.objects, "shop").held.request_resume("orders", by="ada")
    processor.serve_requests()
    assert held(stage)["orders"].since_batch == 0
    assert stage.objects.list(paths.requests("shop")) == []
    stage.land(processor, 1)
    mend()
    PipelineHome(stage.objects, "shop").held.request_resume("orders", by="ada")
    processor.serve_requests()

    assert stage.landed("orders") == stage.expected(0, 1)


def test_the_next_start_tries_a_suspension_again_whose_cause_may_have_passed(stage: Stage) -> None:
    processor = stage.processor()
    mend = stage.break_table("orders")
    for batch_id in range(2):
        stage.land(processor, batch_id)
    assert held(stage)["orders"].retryable
    mend()

    stage.land(stage.processor(), 2)

    assert stage.landed("orders") == stage.expected(0, 1, 2)
    assert held(stage) == {}


@pytest.mark.parametrize("point", ["held", "committed:clicks", "committed", "completed"])
def test_a_crash_in_the_batch_that_suspends_loses_nothing(stage: Stage, point: str) -> None:
    stage.land(stage.processor(), 0)
    mend = stage.break_table("orders")
    with pytest.raises(Crash):
        stage.land(stage.processor(fault=crash_at("committed" if point == "held" else point)), 1)

    stage.processor().complete_prepared()
    stage.land(stage.processor(), 2)
    mend()
    stage.processor()
    stage.land(stage.processor(), 3)

    for name in (*TABLES, "quarantine"):
        assert stage.landed(name) == stage.expected(0, 1, 2, 3), name
    assert held(stage) == {}


@pytest.mark.parametrize("point", ["caught_up:orders", "recorded:orders"])
def test_a_crash_while_catching_up_is_gone_on_with(stage: Stage, point: str) -> None:
    processor = stage.processor()
    mend = stage.break_table("orders")
    for batch_id in range(3):
        stage.land(processor, batch_id)
    mend()
    with pytest.raises(Crash):
        stage.processor(fault=crash_at(point))

    stage.land(stage.processor(), 3)

    assert stage.landed("orders") == stage.expected(0, 1, 2, 3)
    assert [outcome for _, outcome in stage.steps("orders")].count("caught_up") == 3
    assert held(stage) == {}


def test_a_record_that_is_lost_is_made_anew_from_the_ledger(stage: Stage) -> None:
    processor = stage.processor()
    mend = stage.break_table("orders")
    for batch_id in range(2):
        stage.land(processor, batch_id)
    stage.objects.delete(paths.held_table("shop", "orders"))
    mend()

    stage.land(stage.processor(), 2)

    assert stage.landed("orders") == stage.expected(0, 1, 2)


def test_a_record_that_is_torn_frees_nothing(stage: Stage) -> None:
    processor = stage.processor()
    mend = stage.break_table("orders")
    stage.land(processor, 0)
    stage.objects.put(paths.held_table("shop", "orders"), b'{"table": "ord')
    mend()

    successor = stage.processor()
    stage.land(successor, 1)
    assert held(stage)["orders"].condition == "HELD_RECORD_UNREADABLE"
    PipelineHome(stage.objects, "shop").held.request_resume("orders", by="ada")
    successor.serve_requests()

    assert stage.landed("orders") == stage.expected(0, 1)


def test_a_record_of_a_former_owner_with_a_later_batch_hides_no_earlier_one(stage: Stage) -> None:
    processor = stage.processor()
    mend = stage.break_table("orders")
    for batch_id in range(3):
        stage.land(processor, batch_id)
    late = held(stage)["orders"]
    stage.objects.put(
        paths.held_table("shop", "orders"),
        HeldTable(table="orders", reason="suspended", since_batch=2, at=late.at, retryable=True).encode(),
    )
    mend()

    stage.processor()

    assert stage.landed("orders") == stage.expected(0, 1, 2)


def test_removing_the_object_frees_nothing_while_its_owner_lives(stage: Stage) -> None:
    processor = stage.processor()
    mend = stage.break_table("orders")
    stage.land(processor, 0)
    stage.objects.delete(paths.held_table("shop", "orders"))
    mend()

    stage.land(processor, 1)

    assert stage.steps("orders") == [(0, "held"), (1, "held")]


def test_a_former_owner_cannot_catch_up_what_its_successor_holds(stage: Stage) -> None:
    former = stage.processor()
    mend = stage.break_table("orders")
    stage.land(former, 0)
    stage.processor()
    mend()
    successor = stage.processor()
    assert stage.landed("orders") == stage.expected(0)

    PipelineHome(stage.objects, "shop").held.request_resume("orders", by="ada")
    with pytest.raises(FencedError):
        former.serve_requests()

    stage.land(successor, 1)
    assert stage.landed("orders") == stage.expected(0, 1)


def test_quarantine_is_never_suspended(stage: Stage) -> None:
    processor = stage.processor()
    mend = stage.break_table("quarantine")
    with pytest.raises(DeltaworksError):
        stage.land(processor, 0)
    mend()

    assert held(stage) == {}
    stage.processor().complete_prepared()
    assert stage.landed("quarantine") == stage.expected(0)


def test_a_storage_that_does_not_answer_suspends_nothing(stage: Stage) -> None:
    processor = stage.processor()
    mends = [stage.break_table(name) for name in (*TABLES, "quarantine")]
    with pytest.raises(DeltaworksError):
        stage.land(processor, 0, tables=TABLES)
    for mend in mends:
        mend()

    assert held(stage) == {}
    stage.processor().complete_prepared()
    for name in TABLES:
        assert stage.landed(name) == stage.expected(0)


class TestTablesThatCannotBeOpened:
    """A table whose log is broken, or whose schema is another one, does not keep the others from starting."""

    def test_a_table_that_cannot_be_opened_is_suspended_and_catches_up(self, stage: Stage) -> None:
        stage.land(stage.processor(), 0)
        mend = stage.break_table("orders")

        processor = stage.processor()
        stage.land(processor, 1)
        assert stage.landed("clicks") == stage.expected(0, 1)
        mend()
        PipelineHome(stage.objects, "shop").held.request_resume("orders", by="ada")
        processor.serve_requests()

        assert stage.landed("orders") == stage.expected(0, 1)

    def test_files_of_another_declaration_are_converted_where_that_is_exact(self, stage: Stage) -> None:
        stage.land(stage.processor(), 0)
        stage.declare(orders="string")
        stage.land(stage.processor(), 1)
        assert held(stage)["orders"].condition == "TABLE_SCHEMA_DIFFERS"
        assert not held(stage)["orders"].retryable

        stage.declare()
        processor = stage.processor()
        assert stage.landed("orders") == stage.expected(0)
        PipelineHome(stage.objects, "shop").held.request_resume("orders", by="ada")
        processor.serve_requests()

        rows = stage.lake.rows(paths.table("shop", "orders"))
        assert rows is not None
        assert stage.landed("orders") == stage.expected(0, 1)
        assert set(rows.column("level").to_pylist()) == {7}

    def test_files_that_do_not_convert_stay_where_they_are(self, stage: Stage) -> None:
        stage.land(stage.processor(), 0)
        stage.declare(orders="array<int>")
        stage.prepare(1)
        stage.processor().complete_prepared()
        stage.declare()

        processor = stage.processor()
        PipelineHome(stage.objects, "shop").held.request_resume("orders", by="ada")
        processor.serve_requests()

        assert held(stage)["orders"].condition == "PREPARED_FILES_INCOMPATIBLE"
        assert stage.landed("orders") == stage.expected(0)

    def test_a_table_that_is_no_longer_declared_keeps_its_share(self, stage: Stage) -> None:
        mend = None
        processor = stage.processor()
        mend = stage.break_table("orders")
        stage.land(processor, 0)
        mend()
        full = stage.spec
        stage.spec = full.model_copy(update={"tables": tuple(t for t in full.tables if t.name != "orders")})

        stage.land(stage.processor(), 1, tables=("clicks",))
        assert held(stage)["orders"].condition == "TABLE_NOT_DECLARED"
        stage.spec = full
        processor = stage.processor()
        PipelineHome(stage.objects, "shop").held.request_resume("orders", by="ada")
        processor.serve_requests()

        assert stage.landed("orders") == stage.expected(0)


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.lists(
        st.sampled_from(["land", "break", "mend", "resume", "restart", "crash_commit", "crash_catch_up"]),
        min_size=4,
        max_size=14,
    )
)
def test_whatever_happens_every_row_lands_once(tmp_path_factory: pytest.TempPathFactory, story: list[str]) -> None:
    stage = Stage.at(tmp_path_factory.mktemp("story"))
    processor, mend, landed = stage.processor(), None, 0
    for event in [*story, "restart", "mend", "restart", "resume", "restart"]:
        if event == "land":
            stage.land(processor, landed)
            landed += 1
        elif event == "break" and mend is None:
            mend = stage.break_table("orders")
        elif event == "mend" and mend is not None:
            mend()
            mend = None
        elif event == "resume":
            PipelineHome(stage.objects, "shop").held.request_resume("orders", by="ada")
            processor.serve_requests()
        elif event == "crash_commit":
            stage.prepare(landed)
            with pytest.raises(Crash):
                stage.processor(fault=crash_at("committed")).complete_prepared()
            processor = stage.processor()
            processor.complete_prepared()
            landed += 1
        elif event == "crash_catch_up":
            for point in ("caught_up:orders", "recorded:orders"):
                with contextlib.suppress(Crash):
                    stage.processor(fault=crash_at(point))
            processor = stage.processor()
        elif event == "restart":
            processor = stage.processor()

    for name in (*TABLES, "quarantine"):
        if landed:
            assert stage.landed(name) == stage.expected(*range(landed)), name
    assert held(stage) == {}


def test_holding_again_keeps_the_first_batch(stage: Stage) -> None:
    tables = HeldTables(stage.objects, "shop")
    tables.hold(HeldTable(table="orders", reason="write_turn", since_batch=3, at=""))
    tables.hold(HeldTable(table="orders", reason="suspended", since_batch=9, at=""))

    assert held(stage)["orders"].since_batch == 3
    assert held(stage)["orders"].reason == "suspended"
