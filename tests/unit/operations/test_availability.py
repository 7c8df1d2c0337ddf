"""Unavailable operations are not offered; partly available ones name their restrictions."""

from __future__ import annotations

from typing import Any

import pytest

from deltaworks.operations.dag_forms import restrictions, unavailable_reason
from deltaworks.operations.registry import OPERATIONS, get_operation
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.testing import pipeline_spec
from tests.unit.recovery.replay_harness import orders

SOURCES: dict[str, dict[str, Any]] = {
    "s3_sqs": {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"},
    "kafka": {"kind": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["events"]},
    "kinesis": {"kind": "kinesis", "stream": "events"},
    "delta": {"kind": "delta", "pipeline": "other", "table": "events"},
}


def reading(kind: str) -> PipelineSpec:
    return pipeline_spec(orders("int"), source=SOURCES[kind])


@pytest.mark.parametrize(
    ("kind", "never"),
    [
        ("s3_sqs", set()),
        ("kafka", {"recover_files"}),
        ("kinesis", {"recover_files"}),
        ("delta", {"reprocess", "recover_files"}),
    ],
)
def test_operations_the_source_does_not_support_are_unavailable(kind: str, never: set[str]) -> None:
    reasons = {name: unavailable_reason(declared, reading(kind)) for name, declared in OPERATIONS.items()}

    without = {"mutate_tables", "purge_deleted", "rebuild_gold", "refresh_gold", "replay_feed", "train_model"}
    assert {name for name, reason in reasons.items() if reason is not None} == never | without
    assert all(reason.endswith(".") for reason in reasons.values() if reason)


def test_a_page_names_tables_that_need_a_shadow() -> None:
    spec = load_catalog("local").pipeline("engagement")

    text = restrictions(get_operation("reprocess"), spec)

    assert unavailable_reason(get_operation("reprocess"), spec) is None
    assert "`activities`" in text
    assert "*Shadow*, or *Tables* to some of `requests`" in text
    assert "REPROCESS_MUTABLE" in text
    assert "Leave *Table* empty" in restrictions(get_operation("restore"), spec)
    assert restrictions(get_operation("vacuum_tables"), spec) == ""
    assert {restrictions(declared, reading("kafka")) for declared in OPERATIONS.values()} == {""}
