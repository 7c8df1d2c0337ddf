"""Spark may plan a batch again after checkpoint files were lost; the additional part of its slice is never skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.generations import Generations
from deltaworks.engine.ledger import Ledger
from deltaworks.errors import TransientError
from deltaworks.sources.base import ObjectSlice
from deltaworks.testing import present
from tests.unit.engine.hold_harness import Harness

NOTHING = ObjectSlice([], [], {}, opener=lambda reference: reference)


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    harness = Harness.at(tmp_path)
    PipelineHome(harness.objects, "shop").generations.current_checkpoint(last_completed=None, end_offset=None)
    harness.objects.put(f"{paths.checkpoint('shop', 1, 1)}/metadata", b'{"id":"x"}')
    return harness


def next_checkpoint(harness: Harness) -> Generations:
    ledger = Ledger(harness.lake, "shop", 1)
    last = present(ledger.last_completed())
    return PipelineHome(harness.objects, "shop").generations.current_checkpoint(
        last_completed=last, end_offset=ledger.end_offset(last)
    )


def replanned(harness: Harness, spark_batch_id: int, end: dict[str, Any]) -> None:
    """Processes a Spark batch with a changed end offset."""
    processor = harness.processor()
    processor._end_offset = lambda generations, batch: end
    with pytest.raises(TransientError, match="CHECKPOINT_SUPERSEDED"):
        processor.process(NOTHING, spark_batch_id)


def test_a_complete_batch_that_is_replanned_larger_ends_its_checkpoint(harness: Harness) -> None:
    processor = harness.processor()
    for batch_id in range(2):
        harness.land(processor, batch_id)

    replanned(harness, 1, {"seq": 50})

    following = next_checkpoint(harness).current
    assert (following.ordinal, following.first_batch, following.start) == (2, 2, {"seq": 1})
    assert harness.landed("orders") == harness.expected(0, 1)


def test_a_prepared_batch_that_is_replanned_larger_is_committed_as_prepared_and_ends_its_checkpoint(
    harness: Harness,
) -> None:
    harness.land(harness.processor(), 0)
    harness.prepare(1)

    replanned(harness, 1, {"seq": 50})

    following = next_checkpoint(harness).current
    assert (following.first_batch, following.start) == (2, {"seq": 1})
    assert harness.landed("orders") == harness.expected(0, 1)


def test_a_batch_before_the_last_ends_its_checkpoint(harness: Harness) -> None:
    processor = harness.processor()
    for batch_id in range(3):
        harness.land(processor, batch_id)

    replanned(harness, 1, {"seq": 1})

    assert next_checkpoint(harness).current.first_batch == 3


def test_an_unchanged_repeat_of_the_last_batch_is_skipped(harness: Harness) -> None:
    processor = harness.processor()
    for batch_id in range(2):
        harness.land(processor, batch_id)

    assert harness.processor().process(NOTHING, 1) is None

    known = present(PipelineHome(harness.objects, "shop").generations.read())
    assert not known.current.retired
