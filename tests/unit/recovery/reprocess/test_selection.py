"""What is to be read again resolves to objects of complete batches, whichever way it is said."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.errors import ConfigError
from deltaworks.events.reasons import QUARANTINE_SCHEMA, Reason, ReasonCode, RejectedEvent, quarantine_rows
from deltaworks.recovery.reprocess import selection as module
from deltaworks.recovery.reprocess.selection import ObjectResolver, ResolvedObjects, Selection
from deltaworks.sources.objects.file_event_log import file_events_key
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.selection import FileSourceSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import Step
from tests.unit.engine.ledger_harness import Harness


@pytest.fixture
def stage(tmp_path: Path, make_spec: Callable[..., PipelineSpec]) -> Harness:
    """Four complete batches (seq 1 to 8, of which 5 is another bucket's) and one that is prepared."""
    made = Harness(tmp_path, make_spec())
    for batch_id in range(4):
        made.complete(batch_id)
    made.prepare(4)
    return made


def resolve(stage: Harness, selection: Selection) -> ResolvedObjects:
    return ObjectResolver(stage.lake, stage.objects, stage.spec).resolve(selection)


def seqs(resolved: ResolvedObjects) -> list[int]:
    return [each.seq for each in resolved.objects]


def test_from_the_start_is_everything_that_is_complete_and_nothing_that_is_not(stage: Harness) -> None:
    found = resolve(stage, Selection(from_start=True))

    assert seqs(found) == [1, 2, 3, 4, 6, 7, 8]
    assert (found.ranges.ranges, found.through_batch) == (((1, 8),), 3)
    assert {each.seq: each.batch_id for each in found.objects} == {1: 0, 2: 0, 3: 1, 4: 1, 6: 2, 7: 3, 8: 3}
    assert [(each.key, each.size) for each in found.objects][4] == ("day/5.json", 5)


def test_batches_are_the_objects_they_read(stage: Harness) -> None:
    found = resolve(stage, Selection(batches=(1, 2)))

    assert seqs(found) == [3, 4, 6]
    assert found.ranges.ranges == ((3, 6),)


def test_a_batch_that_is_not_complete_is_not_read_again(stage: Harness) -> None:
    assert seqs(resolve(stage, Selection(batches=(3, 9)))) == [7, 8]
    with pytest.raises(ConfigError, match="REPROCESS_EMPTY"):
        resolve(stage, Selection(batches=(4, 4)))


def test_files_are_named_or_matched(stage: Harness) -> None:
    found = resolve(stage, Selection(files=("day/1.json", "day/[67].*")))

    assert [each.key for each in found.objects] == ["day/1.json", "day/6.json", "day/7.json"]
    assert found.ranges.ranges == ((1, 1), (7, 8))


def test_rows_keep_the_stamp_of_the_batch_that_prepared_them(stage: Harness) -> None:
    stage.objects.delete(paths.prepared_batch("shop", 1, 0))

    found = resolve(stage, Selection(batches=(0, 1)))

    lost = int(dt.datetime(2026, 1, 1, tzinfo=dt.UTC).timestamp() * 1_000_000)
    assert [each.ingested_at_us for each in found.objects] == [lost, lost, 0, 0]


def test_objects_arrived_when_the_log_says_that_they_were_made(stage: Harness) -> None:
    log = stage.lake.rows(file_events_key("landing"), columns=["seq", "event_time"])
    assert log is not None
    made = {row["seq"]: row["event_time"] for row in log.to_pylist()}

    objects = resolve(stage, Selection(from_start=True)).objects

    assert {each.seq: each.arrived_at_us for each in objects} == {
        each.seq: int(made[each.seq].timestamp() * 1_000_000) for each in objects
    }


def test_a_time_of_events_is_every_object_that_holds_one(stage: Harness) -> None:
    table = stage.spec.tables[0]
    key, schema = paths.table("shop", table.name), arrow_schema(table.column_types())
    opened = stage.lake.ensure(key, schema, user_metadata="{}", partition_by=["event_date"])
    times = {1: "2025-05-01T10:00:00", 3: "2025-05-02T00:00:00", 4: "2025-05-01T23:59:59", 6: "2025-04-30T23:59:59"}
    rows = [
        {"_seq": seq, "event_time": time, "event_date": time.date()}
        for seq, time in ((s, dt.datetime.fromisoformat(t).replace(tzinfo=dt.UTC)) for s, t in times.items())
    ]
    stage.lake.append(opened, key, pa.Table.from_pylist(rows, schema=schema), step=Step("t", 1), user_metadata="{}")

    found = resolve(stage, Selection(events=("2025-05-01", "2025-05-02T00:00:00Z")))

    assert seqs(found) == [1, 4]


def test_a_quarantined_row_counts_by_when_its_object_was_made(stage: Harness) -> None:
    key = paths.table("shop", "quarantine")
    opened = stage.lake.ensure(key, QUARANTINE_SCHEMA, user_metadata="{}", partition_by=["quarantine_date"])
    reason = Reason(ReasonCode.MALFORMED, "", "")
    rows = quarantine_rows(
        [RejectedEvent(2, 0, "day/2.json", b"{", None, (reason,))],
        batch_id=0,
        ingested_at_us=0,
        fingerprint="",
        retain_raw_bytes=10,
    )
    stage.lake.append(opened, key, rows, step=Step("t", 1), user_metadata="{}")

    assert seqs(resolve(stage, Selection(events=("2026-01-01", "2026-01-02")))) == [2]
    with pytest.raises(ConfigError, match="REPROCESS_EMPTY"):
        resolve(stage, Selection(events=("2026-01-02", "2026-01-03")))


def test_what_was_resolved_is_found_again_whatever_has_landed_since(stage: Harness) -> None:
    before = resolve(stage, Selection(files=("day/2.json", "day/7.json")))
    stage.complete(4)

    again = ObjectResolver(stage.lake, stage.objects, stage.spec).resolve_again(
        before.ranges, through_batch=before.through_batch
    )

    assert again == before
    assert resolve(stage, Selection(from_start=True)).through_batch == 4


def test_ranges_run_over_nothing_where_the_pipeline_has_read_another_place(stage: Harness) -> None:
    # Seq 5 is of the bucket that was read before: its rows are in the tables, and must stay there.
    former = stage.spec.model_copy(update={"source": FileSourceSpec(kind="s3_sqs", relay="landing", bucket="foreign")})
    records = PipelineHome(stage.objects, "shop").specs
    records.record_start(former, owner_epoch=1)
    records.record_start(stage.spec, owner_epoch=1)

    found = resolve(stage, Selection(from_start=True))

    assert found.ranges.ranges == ((1, 4), (6, 8))


def test_a_selection_in_too_many_pieces_is_refused(stage: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RANGES", 1)

    with pytest.raises(ConfigError, match="REPROCESS_TOO_FRAGMENTED"):
        resolve(stage, Selection(files=("day/1.json", "day/7.json")))


def test_a_selection_says_what_it_wants_in_one_way() -> None:
    for wrong in ({}, {"from_start": True, "files": ("a",)}, {"batches": (1, 2), "events": ("a", "b")}):
        with pytest.raises(ConfigError, match="REPROCESS_SELECTION_INVALID"):
            Selection(**wrong)  # type: ignore[arg-type]


def test_a_time_that_is_none_is_refused(stage: Harness) -> None:
    with pytest.raises(ConfigError, match="REPROCESS_SELECTION_INVALID"):
        resolve(stage, Selection(events=("yesterday", "2026-01-01")))
