"""A start over invalidates earlier replays of the quarantine, and no replay affects the new tables."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from deltaworks.recovery.quarantine import replay as quarantine_replay
from deltaworks.recovery.quarantine.open_rows import Quarantine, QuarantineFilter
from deltaworks.recovery.quarantine.replay import replay_quarantine
from deltaworks.recovery.start_over import start_over
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import pipeline_spec
from tests.unit.recovery.replay_harness import ReplayHarness, orders


class Died(Exception):
    """The process ends here."""


def spec(level: str) -> PipelineSpec:
    """`int` is the mistake that `string` mends."""
    return pipeline_spec({"name": "events", "catch_all": True}, orders(level), stream={"lease_ttl_seconds": 3})


BROKEN, MENDED = spec("int"), spec("string")
TWO = Counter([(1, 0), (1, 1)])


def replay(stage: ReplayHarness, **options: Any) -> int:
    return replay_quarantine(stage.catalog(MENDED), "shop", QuarantineFilter(), dry_run=False, **options).landed


def over(stage: ReplayHarness) -> None:
    start_over(stage.catalog(BROKEN), "shop", dry_run=False, max_rows=100)


def open_places(stage: ReplayHarness) -> Counter[tuple[int, int]]:
    keys = Quarantine(stage.lake, "shop").keys(QuarantineFilter()).to_pylist()
    return Counter((row["_seq"], row["_position"]) for row in keys)


@pytest.fixture
def stage(tmp_path: Path) -> ReplayHarness:
    """Two orders that are in quarantine, since their level is no number."""
    stage = ReplayHarness(tmp_path)
    body = "".join(json.dumps({"name": "order", "time": 1_700_000_000, "level": level}) for level in "ab")
    stage.ingest(BROKEN, body.encode())
    assert open_places(stage) == TWO
    return stage


def test_rows_that_had_been_replayed_are_open_in_the_new_generation_and_land_once(stage: ReplayHarness) -> None:
    assert replay(stage) == 2

    over(stage)
    assert (stage.places("orders"), open_places(stage)) == (Counter(), Counter())
    stage.read_from_the_start(BROKEN, generation=2)

    assert open_places(stage) == TWO
    assert replay(stage) == 2
    assert stage.places("orders") == stage.places("events") == TWO
    assert replay(stage) == 0


def test_a_replay_that_was_left_half_done_is_completed_in_what_is_given_up(stage: ReplayHarness) -> None:
    def die(point: str) -> None:
        if point == "committed:events":
            raise Died

    with pytest.raises(Died):
        replay(stage, fault=die)

    over(stage)
    stage.read_from_the_start(MENDED, generation=2)

    assert stage.places("orders") == stage.places("events") == TWO
    assert replay(stage) == 0


@pytest.mark.parametrize("point", ["files_written", "prepared", "committed:events"])
def test_a_replay_that_sleeps_through_it_adds_nothing_when_it_wakes_up(
    stage: ReplayHarness, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    held = contextlib.nullcontext
    monkeypatch.setattr(quarantine_replay, "exclusive_reread", lambda *arguments, **options: held())
    monkeypatch.setattr("deltaworks.recovery.start_over.exclusive_reread", lambda *arguments, **options: held())
    slept = []

    def sleep(reached: str) -> None:
        if reached == point and not slept:
            slept.append(reached)
            over(stage)

    replay(stage, fault=sleep)
    stage.read_from_the_start(MENDED, generation=2)

    assert slept
    assert stage.places("orders") == stage.places("events") == TWO
