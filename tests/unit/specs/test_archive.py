"""An archive has a retention and requires a source of records."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_change_effects import Effect
from deltaworks.specs.spec_diff import classify_changes
from deltaworks.testing import pipeline_spec
from tests.unit.recovery.replay_harness import orders

KAFKA = {"kind": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["events"]}
KINESIS = {"kind": "kinesis", "stream": "events"}


def declared(source: dict[str, Any] = KAFKA, **more: Any) -> PipelineSpec:
    return pipeline_spec(orders("int"), source=source, **more)


@pytest.mark.parametrize("source", [KAFKA, KINESIS])
def test_records_are_archived_for_the_declared_time(source: dict[str, Any]) -> None:
    spec = declared(source, archive={"retain_days": 90})

    assert spec.archive is not None
    assert spec.archive.retain_days == 90
    assert spec.engine_tables == ("quarantine", "archive")
    assert declared(source).engine_tables == ("quarantine",)


def test_an_archive_changes_the_fingerprint() -> None:
    assert declared().fingerprint() != declared(archive={"retain_days": 1}).fingerprint()


@pytest.mark.parametrize(
    ("more", "messages"),
    [
        ({"archive": {}}, "retain_days"),
        ({"archive": {"retain_days": 0}}, "retain_days"),
        (
            {"archive": {"retain_days": 1}, "source": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"}},
            "the bucket keeps objects",
        ),
        (
            {"archive": {"retain_days": 1}, "tables": [{**orders("int"), "name": "archive"}]},
            "the archive is a table called 'archive'",
        ),
    ],
)
def test_invalid_archives_are_rejected(more: dict[str, Any], messages: str) -> None:
    with pytest.raises(ValidationError, match=messages):
        PipelineSpec.model_validate(declared().model_dump(mode="json") | more)


def test_a_table_can_be_named_archive_without_an_archive() -> None:
    spec = PipelineSpec.model_validate(
        declared().model_dump(mode="json") | {"tables": [{**orders("int"), "name": "archive"}]}
    )

    assert spec.engine_tables == ("quarantine",)


def test_an_archive_needs_a_restart_and_its_retention_none() -> None:
    def effects(before: PipelineSpec, after: PipelineSpec) -> list[Effect]:
        return [change.effect for change in classify_changes(before, after)]

    assert effects(declared(), declared(archive={"retain_days": 1})) == [Effect.RESTART]
    assert effects(declared(archive={"retain_days": 1}), declared(archive={"retain_days": 9})) == [Effect.SAFE]
