"""Objects read again give the rows they would have given, in all tables; a small reprocess runs without Spark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.events.reasons import Reason, ReasonCode
from deltaworks.operations.base import OperationContext, Report
from deltaworks.operations.registry import get_operation
from deltaworks.operations.reprocess import ReprocessOptions, ReprocessRemainder, reprocess
from deltaworks.recovery.reprocess.plan import ReprocessRequest
from deltaworks.recovery.reprocess.replace_rows import MAX_DIRECT_BYTES
from deltaworks.recovery.reprocess.reread import Rereader, RereadResult, RereadScope
from deltaworks.recovery.reprocess.run import Reprocess
from deltaworks.recovery.reprocess.selection import Selection, SourceObject
from deltaworks.sources.objects.payloads import FileReference
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.files import WrittenFile
from deltaworks.testing import declare_table, present
from tests.crashes import Crash, crash_at
from tests.unit.recovery.restore.source_harness import ALL, SourceHarness

ORDER = {"name": "order", "time": 1, "params": {"amount": 1, "level": 2}}
MISFIT = {"name": "order", "time": 1, "params": {"amount": "much"}}
REFUND = {"name": "refund", "time": 1}
LOGIN = {"name": "login", "time": 1}
FILES: dict[int, list[dict[str, Any]]] = {1: [ORDER, MISFIT, LOGIN], 2: [REFUND, ORDER], 3: [ORDER]}
TABLES = [
    {"name": "events", "catch_all": True, "columns": [{"name": "device", "path": "device", "type": "string"}]},
    declare_table("orders", "amount decimal(12,2) from params.amount required", when="order"),
    {"name": "refunds", "when": {"name": "refund"}},
]


def opener(reference: FileReference) -> Payload:
    if reference.seq == 9:
        return Payload(9, reference.key, None, Reason(ReasonCode.OBJECT_MISSING, "", "gone"))
    data = "\n".join(json.dumps(event) for event in FILES[reference.seq]).encode()
    return Payload(reference.seq, reference.key, data)


def objects(*seqs: int) -> list[SourceObject]:
    return [SourceObject(seq, f"f{seq}", "", 10, batch_id=seq // 3, ingested_at_us=seq // 3 * 1000) for seq in seqs]


@pytest.fixture
def spec(make_spec: Callable[..., PipelineSpec]) -> PipelineSpec:
    return make_spec(tables=TABLES)


def landed(found: list[tuple[str, pa.Table]]) -> Counter[tuple[str, int, int]]:
    return Counter((name, row["_seq"], row["_position"]) for name, rows in found for row in rows.to_pylist())


def test_all_tables_get_what_parsing_gives_with_the_stamps_of_their_batches(spec: PipelineSpec) -> None:
    wanted = RereadScope(frozenset(["events", "orders", "refunds", "quarantine"]), all_tables=True)

    found = list(Rereader(spec, wanted, opener).read_objects(objects(1, 2, 3)))

    parsed = [
        each
        for share, batch in (([1, 2], 0), ([3], 1))
        for each in Parser(spec).parse(
            (opener(FileReference(seq, f"f{seq}", "")) for seq in share),
            BatchMetadata(batch, batch * 1000, spec.fingerprint()),
        )
    ]
    assert landed(found) == landed(parsed)
    rows = [row for _, part in found for row in part.to_pylist()]
    assert {(row["_seq"], row["_batch_id"], row["_ingested_at"].microsecond) for row in rows} == {
        (1, 0, 0),
        (2, 0, 0),
        (3, 1, 1000),
    }


def test_events_without_a_time_keep_that_of_their_arrival(make_spec: Callable[..., PipelineSpec]) -> None:
    time = {"name": {"path": "name"}, "time": {"arrival": True}}
    spec = make_spec(tables=TABLES, event=time)
    selected = [replace(source, arrived_at_us=source.seq * 1_000_000) for source in objects(1, 2, 3)]

    def of_store(reference: FileReference) -> Payload:
        return replace(opener(reference), arrived_at_us=reference.arrived_at_us)

    rows = list(Rereader(spec, RereadScope(frozenset(["events"]), all_tables=True), of_store).read_objects(selected))

    times = {(row["_seq"], row["event_time"].timestamp()) for _, part in rows for row in part.to_pylist()}
    assert times == {(1, 1.0), (2, 2.0), (3, 3.0)}


def test_an_object_that_is_gone_gives_no_row_not_even_in_quarantine(spec: PipelineSpec) -> None:
    rereader = Rereader(spec, RereadScope(frozenset(["events", "quarantine"]), all_tables=True), opener)

    found = list(rereader.read_objects(objects(3, 9)))

    assert {seq for _, seq, _ in landed(found)} == {3}
    assert rereader.result.missing_keys == {9: "f9"}


def test_only_the_tables_asked_for_get_rows_and_what_does_not_fit_is_counted(spec: PipelineSpec) -> None:
    rereader = Rereader(spec, RereadScope(frozenset(["orders"]), all_tables=False), opener)

    found = list(rereader.read_objects(objects(1, 2, 3)))

    assert landed(found) == Counter([("orders", 1, 0), ("orders", 2, 1), ("orders", 3, 0)])
    assert rereader.result.unmatched == 2  # the misfit and the login, that no `when` takes


def test_a_row_in_quarantine_that_belongs_to_other_tables_too_stays_there(spec: PipelineSpec) -> None:
    # The refund was quarantined while there was no table of refunds; events would lack it.
    wanted = RereadScope(frozenset(["refunds"]), all_tables=False, quarantined={2: frozenset([0]), 1: frozenset([1])})
    rereader = Rereader(spec, wanted, opener)

    found = list(rereader.read_objects(objects(1, 2, 3)))

    assert landed(found) == Counter()
    assert rereader.result.still_quarantined == 1
    assert rereader.result.released == set()


def test_a_row_in_quarantine_that_fits_all_its_tables_now_leaves_it(spec: PipelineSpec) -> None:
    wanted = RereadScope(
        frozenset(["refunds", "events"]), all_tables=False, quarantined={2: frozenset([0]), 1: frozenset([1])}
    )
    rereader = Rereader(spec, wanted, opener)

    found = list(rereader.read_objects(objects(1, 2, 3)))

    assert ("refunds", 2, 0) in landed(found)
    assert ("events", 2, 0) in landed(found)
    assert ("events", 1, 1) not in landed(found)  # still a misfit
    assert rereader.result.released == {(2, 0)}
    assert (rereader.result.still_quarantined, rereader.result.unmatched) == (0, 1)


TEXTS = st.text(st.characters(codec=None), max_size=5)
NUMBERS = st.integers(0, 2**62)
WRITTEN = st.builds(
    WrittenFile,
    path=TEXTS,
    size=NUMBERS,
    rows=NUMBERS,
    partition=st.dictionaries(TEXTS, st.none() | TEXTS),
    stats=TEXTS,
)


@given(
    result=st.builds(
        RereadResult,
        files=st.dictionaries(TEXTS, st.lists(WRITTEN, max_size=2), max_size=2),
        rows=st.dictionaries(TEXTS, NUMBERS),
        records=st.dictionaries(NUMBERS, NUMBERS),
        missing_keys=st.dictionaries(NUMBERS, TEXTS),
        released=st.sets(st.tuples(NUMBERS, NUMBERS)),
        unmatched=NUMBERS,
        still_quarantined=NUMBERS,
        failure=TEXTS,
    )
)
def test_the_result_of_a_task_survives_its_way_to_the_driver_as_json(result: RereadResult) -> None:
    text = result.encode()

    assert RereadResult.decode(text) == result
    assert text.isascii()


UNSAID = ("spec_fingerprint", "arrived_at")
BATCHES = (0, 1, 2, 3)


POINTS = [
    "committed:clicks",
    *(
        pytest.param(point, marks=pytest.mark.integration)
        for point in ("planned", "staged", "committed:quarantine", "committed")
    ),
]


def no_session() -> SparkSession:
    raise AssertionError("Spark was asked for")


@pytest.fixture(scope="module")
def landed_stage(tmp_path_factory: pytest.TempPathFactory) -> SourceHarness:
    made = SourceHarness.at(tmp_path_factory.mktemp("landed"))
    assert isinstance(made, SourceHarness)
    made.land_all(*BATCHES)
    return made


@pytest.fixture
def stage(landed_stage: SourceHarness, tmp_path: Path) -> SourceHarness:
    """Three objects landed as three batches; one event of each is in quarantine, since its level is no number."""
    return landed_stage.copied_to(tmp_path)


def contents(stage: SourceHarness) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, but what the stage's batches do not say in quarantine."""
    found = {}
    for name in ALL:
        rows = present(stage.lake.rows(paths.table("shop", name)))
        shown = [{column: row[column] for column in row if column not in UNSAID} for row in rows.to_pylist()]
        found[name] = sorted(shown, key=lambda row: (row["_seq"], row["_position"]))
    return found


def again(stage: SourceHarness, fault: Callable[[str], None] = lambda point: None, **options: Any) -> Any:
    request = ReprocessRequest(**({"selection": Selection(from_start=True)} | options))
    return Reprocess(no_session, stage.catalog(), "shop", fault=fault).run("r1", request)


def test_reading_again_without_a_change_changes_no_row_and_opens_no_session(stage: SourceHarness) -> None:
    before = contents(stage)

    result = again(stage)

    assert contents(stage) == before
    assert {table.table: (table.rows_out, table.rows_in) for table in result.tables} == {
        "clicks": (6, 6),
        "orders": (6, 6),
        "logins": (6, 6),
        "quarantine": (3, 3),
    }


@pytest.mark.parametrize("point", POINTS)
def test_one_that_was_broken_off_is_finished_exactly_once(stage: SourceHarness, point: str) -> None:
    before = contents(stage)
    with pytest.raises(Crash):
        again(stage, crash_at(point))

    again(stage)

    assert contents(stage) == before


def test_only_the_selected_objects_are_replaced(stage: SourceHarness) -> None:
    before = contents(stage)

    result = again(stage, selection=Selection(files=("f2.json",)))

    assert contents(stage) == before
    assert [table.rows_out for table in result.tables] == [2, 2, 2, 1]


def report_of(stage: SourceHarness, **options: Any) -> Report:
    context = OperationContext(operation=get_operation("reprocess"), catalog=stage.catalog(), subject="shop", echo=str)
    return reprocess(context, ReprocessOptions(from_start=True, id="r1", spark=False, dry_run=False, **options))


def test_a_job_that_may_not_use_spark_does_what_is_small_and_says_that_nothing_is_left(stage: SourceHarness) -> None:
    before = contents(stage)

    (result,) = report_of(stage).results

    assert contents(stage) == before
    assert result.spark_work_count == 0  # type: ignore[attr-defined]


def test_what_is_too_large_is_left_to_spark_under_the_same_id(
    stage: SourceHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(stage)
    monkeypatch.setitem(Reprocess.__init__.__kwdefaults__, "direct_bytes", 10)

    assert report_of(stage).results == [ReprocessRemainder(id="r1")]
    assert contents(stage) == before

    monkeypatch.setitem(Reprocess.__init__.__kwdefaults__, "direct_bytes", MAX_DIRECT_BYTES)
    assert again(stage).objects == len(BATCHES) - 1
    assert contents(stage) == before
