"""The recomputed quarantine summary matches the table, and its failure affects no other job."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from deltaworks.control.clock import utc_now
from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import quarantine_summary
from deltaworks.control.summaries.base import read_summary
from deltaworks.control.summaries.quarantine import QuarantineCounter, QuarantineSummary
from deltaworks.recovery.quarantine import summary as module
from deltaworks.recovery.quarantine.open_rows import QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.recovery.quarantine.summary import recount_quarantine
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import pipeline_spec
from tests.unit.recovery.replay_harness import ReplayHarness, orders


def spec(level: str = "int") -> PipelineSpec:
    return pipeline_spec(orders(level))


@pytest.fixture
def stage(tmp_path: Path) -> ReplayHarness:
    stage = ReplayHarness(tmp_path)
    lines = [{"name": "order", "time": 1_700_000_000, "level": level} for level in ("one", "two", [3], 4)]
    lines.append({"name": "<b>shop</b>", "time": 1_700_000_000})
    stage.ingest(spec(), *(json.dumps(line).encode() for line in lines))
    return stage


def recount(stage: ReplayHarness) -> QuarantineSummary:
    recount_quarantine(stage.environment.lake, "shop")
    summary, _ = read_summary(
        QuarantineSummary, LocalObjects(Path(stage.environment.lake.prefix)), quarantine_summary("shop")
    )
    assert summary is not None
    return summary


def by_event(summary: QuarantineSummary) -> Counter[str]:
    counted = Counter[str]()
    for row in summary.open_rows:
        counted[f"{row.reason} {row.event}"] += row.rows
    return counted


def test_open_rows_are_counted_by_reason_and_event_and_a_replay_closes_them(stage: ReplayHarness) -> None:
    assert by_event(recount(stage)) == {"type_mismatch order": 3, "unknown_event <b>shop</b>": 1}

    replay_quarantine(stage.catalog(spec("string")), "shop", QuarantineFilter(), dry_run=False)

    assert sum(by_event(recount(stage)).values()) < 4
    assert by_event(recount(stage))["unknown_event <b>shop</b>"] == 1


def test_the_stream_adds_to_a_recount_what_it_has_not_counted(stage: ReplayHarness) -> None:
    counted = recount(stage)
    writer = QuarantineCounter(
        LocalObjects(Path(stage.environment.lake.prefix)), "shop", generation=counted.generation, spec="s"
    )
    for batch in (counted.through_batch, counted.through_batch + 1):
        writer.add(batch, [("malformed", "", 10)], at=utc_now())

    writer.write(force=True)

    summary, _ = read_summary(
        QuarantineSummary, LocalObjects(Path(stage.environment.lake.prefix)), quarantine_summary("shop")
    )
    assert summary is not None
    assert by_event(summary)["malformed "] == 10


def test_a_recount_without_any_row_does_not_forget_through_which_batch_it_was_counted(stage: ReplayHarness) -> None:
    objects, key = LocalObjects(Path(stage.environment.lake.prefix)), quarantine_summary("shop")
    objects.put(key, QuarantineSummary(pipeline="shop", at="", generation=1, through_batch=900).encode())

    assert recount(stage).through_batch == 900


def test_a_recount_that_fails_fails_nobody(stage: ReplayHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("the disk is full")

    before = recount(stage)
    monkeypatch.setattr(module, "Quarantine", refuse)

    assert recount(stage) == before, "what was counted last stands"
