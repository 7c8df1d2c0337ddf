"""Topic ids are fixed within a generation of a pipeline."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.generations import StartOver
from deltaworks.errors import ContractError
from deltaworks.sources.kafka.offsets import TopicIds
from tests.records import record_of


def first_id(objects: LocalObjects, pipeline: str) -> str:
    """The id a pipeline is held to, as the refusal of any other says it."""
    with pytest.raises(ContractError, match="KAFKA_TOPIC_REPLACED") as replaced:
        TopicIds(PipelineHome(objects, pipeline)).check({"orders": "another"})
    found = re.search(r"its id was (\w+),", replaced.value.message)
    assert found is not None
    return found[1]


def test_recorded_topic_ids_also_apply_to_the_next_run(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    TopicIds(PipelineHome(objects, "shop")).check({"orders": "one"})

    after = TopicIds(PipelineHome(objects, "shop"))
    after.check({"orders": "one", "refunds": "two"})
    with pytest.raises(ContractError, match=r"orders .* its id was one, now it is three") as replaced:
        after.check({"orders": "three", "refunds": "two"})

    assert replaced.value.condition == "KAFKA_TOPIC_REPLACED"


def test_a_new_generation_records_its_own_topic_ids(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    TopicIds(PipelineHome(objects, "shop")).check({"orders": "one"})
    begun = record_of(
        StartOver, pipeline="shop", generation=2, first_batch=5, start=None, reason="the topic was recreated"
    )
    PipelineHome(objects, "shop").generations.begin_generation(begun)

    TopicIds(PipelineHome(objects, "shop")).check({"orders": "two"})

    assert first_id(objects, "shop") == "two"


def test_another_pipeline_has_ids_of_its_own(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    TopicIds(PipelineHome(objects, "shop")).check({"orders": "one"})

    TopicIds(PipelineHome(objects, "stock")).check({"orders": "two"})

    assert (first_id(objects, "shop"), first_id(objects, "stock")) == ("one", "two")
