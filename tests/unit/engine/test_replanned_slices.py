"""Spark may plan a batch anew after files of its checkpoint were lost: what it planned beyond ours is never skipped."""

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
from tests.unit.engine.hold_stage import Stage

NOTHING = ObjectSlice([], [], {}, opener=lambda reference: reference)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage.at(tmp_path)
    PipelineHome(stage.objects, "shop").generations.current_checkpoint(last_completed=None, end_offset=None)
    stage.objects.put(f"{paths.checkpoint('shop', 1, 1)}/metadata", b'{"id":"x"}')
    return stage


def next_checkpoint(stage: Stage) -> Generations:
    ledger = Ledger(stage.lake, "shop", 1)
    last = ledger.last_completed()
    assert last is not None
    return PipelineHome(stage.objects, "shop").generations.current_checkpoint(
        last_completed=last, end_offset=ledger.end_offset(last)
    )


def replanned(stage: Stage, spark_batch_id: int, end: dict[str, Any]) -> None:
    """Meet a batch of Spark's that ends elsewhere than it did."""
    processor = stage.processor()
    processor._end_offset = lambda generations, batch: end
    with pytest.raises(TransientError, match="CHECKPOINT_SUPERSEDED"):
        processor.process(NOTHING, spark_batch_id)


def test_a_complete_batch_that_is_planned_larger_ends_its_checkpoint(stage: Stage) -> None:
    processor = stage.processor()
    for batch_id in range(2):
        stage.land(processor, batch_id)

    replanned(stage, 1, {"seq": 50})

    following = next_checkpoint(stage).current
    assert (following.ordinal, following.first_batch, following.start) == (2, 2, {"seq": 1})
    assert stage.landed("orders") == stage.expected(0, 1)


def test_a_torn_batch_that_is_planned_larger_lands_as_it_was_fixed_and_ends_its_checkpoint(stage: Stage) -> None:
    stage.land(stage.processor(), 0)
    stage.prepare(1)

    replanned(stage, 1, {"seq": 50})

    following = next_checkpoint(stage).current
    assert (following.first_batch, following.start) == (2, {"seq": 1})
    assert stage.landed("orders") == stage.expected(0, 1)


def test_a_batch_before_the_last_ends_its_checkpoint(stage: Stage) -> None:
    processor = stage.processor()
    for batch_id in range(3):
        stage.land(processor, batch_id)

    replanned(stage, 1, {"seq": 1})

    assert next_checkpoint(stage).current.first_batch == 3


def test_the_last_batch_repeated_as_it_was_is_skipped(stage: Stage) -> None:
    processor = stage.processor()
    for batch_id in range(2):
        stage.land(processor, batch_id)

    assert stage.processor().process(NOTHING, 1) is None

    known = PipelineHome(stage.objects, "shop").generations.read()
    assert known is not None
    assert not known.current.retired
