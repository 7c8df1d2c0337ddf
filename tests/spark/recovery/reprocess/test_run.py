"""A reprocess keeps every event exactly once, with its arrival time, concurrent jobs and crashes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.locks.lease import Lease
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.recovery.reprocess.dry_run import ReprocessCounter
from deltaworks.recovery.reprocess.plan import ReprocessPlanner, ReprocessRequest
from deltaworks.recovery.reprocess.replace_directly import MAX_DIRECT_BYTES
from deltaworks.recovery.reprocess.replace_rows import SparkRowReplacer
from deltaworks.recovery.reprocess.reread import open_landing
from deltaworks.recovery.reprocess.selection import Selection
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.changes import changed_partitions
from deltaworks.tables.commit import Step
from tests.crashes import Crash
from tests.spark.engine.conftest import DECLARED, Shop
from tests.spark.recovery.reprocess_harness import (
    BIG,
    BY_SPARK,
    EVENTS,
    MENDED,
    MENDED_BY_SPARK,
    ORDERS,
    REFUNDS,
    ReprocessHarness,
    made_at,
)

BY_WAY = pytest.mark.parametrize("direct_bytes", [MAX_DIRECT_BYTES, 0], ids=["directly", "by Spark"])
#: By Spark the rows are replaced by the statement that the reprocess of all that has landed shows.
MOSTLY_DIRECTLY = pytest.mark.parametrize(
    "direct_bytes",
    [MAX_DIRECT_BYTES, pytest.param(0, marks=pytest.mark.integration)],
    ids=["directly", "by Spark"],
)


@pytest.fixture
def stage(make_stage: Callable[..., ReprocessHarness]) -> ReprocessHarness:
    return make_stage(EVENTS, ORDERS)


@BY_WAY
def test_a_mended_declaration_is_laid_over_all_that_has_landed(
    make_stage: Callable[..., ReprocessHarness], direct_bytes: int
) -> None:
    stage = make_stage(EVENTS, ORDERS, BY_SPARK)
    stage.direct_bytes = direct_bytes
    before, stamps = stage.landed(), stage.stamps()
    stage.redeclare(EVENTS, MENDED, MENDED_BY_SPARK)

    result = stage.reprocess()

    assert stage.landed() == stage.expected() != before
    assert stage.stamps() == stamps
    assert {each.table: (each.rows_out, each.rows_in) for each in result.tables} == {
        "events": (24, 30),
        "orders": (24, 30),
        "orders_by_spark": (24, 30),
        "quarantine": (18, 12),
    }
    assert result.tables[1].dates == ("2023-11-14", "2023-11-15", "2023-11-16")
    assert not stage.shop.objects.list(paths.reprocess("shop", "r1/staging/"))
    assert (stage.sessions == 0) == bool(direct_bytes)


@pytest.mark.integration
def test_reprocessing_without_a_change_changes_no_row(stage: ReprocessHarness) -> None:
    def rows() -> list[dict[str, Any]]:
        return stage.shop.table("orders").sort_by([("_seq", "ascending"), ("_position", "ascending")]).to_pylist()

    before = rows()

    stage.reprocess()

    assert rows() == before
    assert stage.landed() == stage.expected()


def test_gold_sees_the_dates_that_were_touched_and_no_others(stage: ReprocessHarness) -> None:
    stage.redeclare(EVENTS, MENDED)
    before = stage.versions()["orders"]

    (result,) = (
        each for each in stage.reprocess(selection=Selection(files=("f1.json",))).tables if each.table == "orders"
    )

    key = paths.table("shop", "orders")
    changes = changed_partitions(stage.shop.lake, key, after_version=before, up_to_version=stage.versions()["orders"])
    assert changes.partition_values("event_date") == frozenset(result.dates)
    assert (len(result.dates), result.rows_out, result.rows_in) == (3, 4, 5)


def test_the_same_reprocess_run_again_commits_nothing(stage: ReprocessHarness) -> None:
    stage.reprocess()
    versions = stage.versions()

    again = stage.reprocess()

    assert stage.versions() == versions
    assert {each.outcome for each in again.tables} == {"already_committed"}


POINTS = [
    "staged",
    *(
        pytest.param(point, marks=pytest.mark.integration)
        for point in ("planned", "committed:events", "committed:quarantine", "committed")
    ),
]


@pytest.mark.parametrize("point", POINTS)
def test_a_reprocess_that_was_broken_off_is_finished_exactly_once(stage: ReprocessHarness, point: str) -> None:
    stage.redeclare(EVENTS, MENDED, REFUNDS)
    with pytest.raises(Crash):
        stage.reprocess(fault=point)
    stage.land()

    stage.job().run("r1")

    assert stage.landed() == stage.expected()


@pytest.mark.integration
def test_the_stream_goes_on_meanwhile_and_loses_nothing(stage: ReprocessHarness) -> None:
    stage.redeclare(EVENTS, MENDED)
    lease = Lease(stage.shop.objects, paths.pipeline_control("shop", "lease.json"), ttl_seconds=60, name="shop")
    lease.acquire(wait_seconds=1)
    stop, failure = threading.Event(), []

    def stream() -> None:
        try:
            # Same number of batches on slow and fast machines: each one has to be re-read.
            while not stop.wait(0.2):
                if stage.batches < 12:
                    stage.land()
                else:
                    stage.processor.serve_requests()
            while not stage.processor.serve_requests():
                time.sleep(0.1)
        except BaseException as error:
            failure.append(error)

    streaming = threading.Thread(target=stream)
    streaming.start()
    try:
        for name in ("r1", "r2"):
            stage.reprocess(name)
    finally:
        stop.set()
        streaming.join()
        lease.release()

    assert failure == []
    assert len(stage.landed_seqs) > 8
    assert stage.landed() == stage.expected()


class LandsOnce:
    """A write turn that does not exclude: the stream lands a batch between the job's read and commit."""

    def __init__(self, stage: ReprocessHarness) -> None:
        self._stage = stage
        self._landed = False

    def check(self) -> None:
        if not self._landed:
            self._landed = True
            self._stage.land()


def reprocess_while_a_batch_lands(stage: ReprocessHarness) -> None:
    job = stage.job(get_turn=lambda table: nullcontext(LandsOnce(stage)))
    job.run("r1", ReprocessRequest(selection=Selection(from_start=True)))


@MOSTLY_DIRECTLY
def test_a_batch_that_lands_just_before_the_commit_is_not_overwritten(
    stage: ReprocessHarness, direct_bytes: int
) -> None:
    stage.direct_bytes = direct_bytes
    reprocess_while_a_batch_lands(stage)

    assert stage.landed() == stage.expected()


@pytest.mark.integration
def test_reading_first_and_overwriting_afterwards_would_lose_that_batch(
    stage: ReprocessHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions, stage.direct_bytes = stage.versions(), 0

    def read_first(self: SparkRowReplacer, rows: Any, condition: str, step: Step, user_metadata: str) -> None:
        name = self._key.rpartition("/")[2]
        before = self._spark.read.format("delta").option("versionAsOf", versions[name]).load(self._uri)
        dates, _, seqs = condition.partition(" AND ")
        kept = before.where(f"{dates} AND NOT {seqs}")
        everything = kept.unionByName(rows).write.format("delta").mode("overwrite").option("replaceWhere", dates)
        everything.save(self._uri)

    monkeypatch.setattr(SparkRowReplacer, "_write", read_first)

    reprocess_while_a_batch_lands(stage)

    assert (stage.expected() - stage.landed()).total() > 0


def test_a_new_table_is_filled_alone_and_the_others_are_left_as_they_are(stage: ReprocessHarness) -> None:
    stage.redeclare(EVENTS, ORDERS, BIG)
    stage.land()
    versions = stage.versions()

    result = stage.reprocess(tables=("big",))

    assert stage.landed() == stage.expected()
    assert sum(name == "big" for name, _, _ in stage.landed()) == 8
    assert {name for name, version in stage.versions().items() if version != versions[name]} == {"big"}
    assert (result.still_quarantined, result.tables[0].rows_out) == (0, 2)


def test_a_row_in_quarantine_lands_in_all_its_tables_or_in_none(stage: ReprocessHarness) -> None:
    stage.redeclare(EVENTS, ORDERS, REFUNDS)
    before = stage.landed()

    alone = stage.reprocess("alone", tables=("refunds",))
    assert stage.landed() == before
    assert alone.still_quarantined == 6

    together = stage.reprocess("together", tables=("refunds", "events"))
    assert stage.landed() == stage.expected() != before
    assert together.still_quarantined == 0


@pytest.mark.parametrize(
    ("selection", "seqs"),
    [
        (Selection(batches=(1, 1)), {3, 4}),
        pytest.param(Selection(files=("f1.json", "f[56].json")), {1, 5, 6}, marks=pytest.mark.integration),
        pytest.param(Selection(events=("2023-11-14", "2023-11-15")), {1, 2, 3, 4, 5, 6}, marks=pytest.mark.integration),
    ],
    ids=["batches", "files", "events"],
)
def test_only_the_objects_selected_are_read_again(
    stage: ReprocessHarness, selection: Selection, seqs: set[int]
) -> None:
    old = stage.shop.spec
    stage.redeclare(EVENTS, MENDED)

    result = stage.reprocess(selection=selection)

    others = [seq for seq in stage.landed_seqs if seq not in seqs]
    assert result.objects == len(seqs)
    assert stage.landed() == stage.expected(seqs=sorted(seqs)) + stage.expected(old, others)


def test_a_shadow_is_a_table_beside_and_leaves_the_others_alone(stage: ReprocessHarness) -> None:
    before, versions = stage.landed(), stage.versions()
    stage.shop.spec = PipelineSpec.model_validate(DECLARED | {"tables": [EVENTS, MENDED]})

    with pytest.raises(Crash):
        stage.reprocess("trial", fault="committed:orders", shadow=True)
    result = stage.reprocess("trial", shadow=True)

    assert (stage.landed(), stage.versions()) == (before, versions)
    shadow = {name: stage.shop.table(f"{name}__trial") for name in ("events", "orders", "quarantine")}
    found = Counter((name, row["_seq"], row["_position"]) for name, rows in shadow.items() for row in rows.to_pylist())
    assert found == stage.expected()
    assert [each.target for each in result.tables] == [f"{name}__trial" for name in shadow]


def test_objects_that_are_gone_are_refused_before_anything_is_changed(stage: ReprocessHarness) -> None:
    versions = stage.versions()
    (stage.landing / "f3.json").unlink()

    with pytest.raises(ContractError, match=r"REPROCESS_OBJECTS_MISSING.*f3\.json"):
        stage.reprocess()

    assert stage.versions() == versions


def test_objects_that_may_be_gone_keep_their_rows(stage: ReprocessHarness) -> None:
    old = stage.shop.spec
    stage.redeclare(EVENTS, MENDED)
    (stage.landing / "f3.json").unlink()

    result = stage.reprocess(allow_missing=True)

    assert result.missing_keys == ("f3.json",)
    assert stage.landed() == stage.expected(seqs=[1, 2, 4, 5, 6]) + stage.expected(old, [3])


def test_a_declaration_the_stream_has_not_started_with_is_refused(stage: ReprocessHarness) -> None:
    stage.shop.spec = PipelineSpec.model_validate(DECLARED | {"tables": [EVENTS, ORDERS, BIG]})

    with pytest.raises(ContractError, match=r"REPROCESS_SPEC_DIFFERS.*tables\.big"):
        stage.reprocess(tables=("big",))


def test_a_plan_is_gone_on_with_under_its_own_declaration_only(stage: ReprocessHarness) -> None:
    with pytest.raises(Crash):
        stage.reprocess(fault="staged")
    stage.redeclare(EVENTS, MENDED)

    with pytest.raises(ContractError, match="REPROCESS_SPEC_DIFFERS"):
        stage.reprocess()


def test_there_must_be_something_to_go_on_with(stage: ReprocessHarness) -> None:
    with pytest.raises(ConfigError, match="REPROCESS_UNKNOWN"):
        stage.job().run("r9")
    with pytest.raises(ConfigError, match="TABLE_UNKNOWN"):
        stage.reprocess(tables=("order",))
    with pytest.raises(ConfigError, match="REPROCESS_ID_INVALID"):
        stage.reprocess("A/b")


def test_a_table_that_yields_its_turn_to_nobody_is_not_touched(stage: ReprocessHarness) -> None:
    class Refused:
        def check(self) -> None:
            raise ConcurrencyError("TURN_LOST", "lost", hint="")

    versions = stage.versions()
    job = stage.job(get_turn=lambda table: nullcontext(Refused()))

    with pytest.raises(ConcurrencyError, match="TURN_LOST"):
        job.run("r1", ReprocessRequest(selection=Selection(from_start=True)))

    assert stage.versions() == versions


def test_the_count_beforehand_is_what_happens(stage: ReprocessHarness) -> None:
    stage.redeclare(EVENTS, MENDED)
    versions = stage.versions()
    stores = (stage.shop.lake, stage.shop.objects, stage.shop.spec)
    counter = ReprocessCounter(ReprocessPlanner(*stores), *stores)
    asked = ReprocessRequest(selection=Selection(from_start=True))

    count = counter.count_objects(asked, open_landing(stage.shop.environment, stage.shop.spec))
    assert stage.versions() == versions
    result = stage.reprocess()

    assert {each.table: (each.rows_out, each.rows_in) for each in count.tables} == {
        each.table: (each.rows_out, each.rows_in) for each in result.tables
    }
    assert (count.objects, count.bytes, count.exact) == (result.objects, result.bytes, True)


ARRIVING = {"event": {"name": {"path": "name"}, "time": {"arrival": True}, "id": "id"}}


def rows(stage: ReprocessHarness, table: str) -> list[dict[str, Any]]:
    """Returns rows without the batch's time, which for replayed rows is the replay's."""
    kept = stage.shop.table(table).drop_columns(["_ingested_at"])
    return kept.sort_by([("_seq", "ascending"), ("_position", "ascending")]).to_pylist()


def test_a_reprocess_gives_the_rows_of_the_stream_and_of_a_replay_again(make_shop: Callable[..., Shop]) -> None:
    stage = ReprocessHarness(make_shop(tables=[EVENTS, ORDERS], **ARRIVING))
    stage.land()
    stage.land()
    streamed = rows(stage, "orders")
    stage.shop.spec = PipelineSpec.model_validate(DECLARED | ARRIVING | {"tables": [EVENTS, MENDED]})
    stage.note_spec()
    replay_quarantine(stage.catalog(), "shop", QuarantineFilter(reasons=("missing_required",)), dry_run=False)
    replayed = {table: rows(stage, table) for table in ("events", "orders")}
    assert len(replayed["orders"]) > len(streamed) > 0

    stage.reprocess()

    assert {table: rows(stage, table) for table in ("events", "orders")} == replayed
    times = {(row["_seq"], row["event_time"]) for row in replayed["events"]}
    assert times == {(seq, made_at(seq)) for seq in stage.landed_seqs}
