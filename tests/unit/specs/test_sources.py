"""One of several sources, selected by name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.specs.pipeline import PipelineSpec

FILES = {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"}
KAFKA = {"kind": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["events"]}


def pipeline(**source: Any) -> dict[str, Any]:
    return {
        "pipeline": "shop",
        "description": "d",
        "owner": "o",
        "event": {"name": {"path": "name"}, "time": {"path": "time"}},
        "tables": [{"name": "all", "catch_all": True}],
        **source,
    }


def test_one_line_changes_what_a_pipeline_reads() -> None:
    sources = {"files": FILES, "kafka": KAFKA}
    read = {name: PipelineSpec.model_validate(pipeline(source=name, sources=sources)) for name in sources}

    assert [spec.source.kind for spec in read.values()] == ["s3_sqs", "kafka"]
    inline = PipelineSpec.model_validate(pipeline(source=KAFKA))
    assert inline == read["kafka"], "a source is the same whether it is written in place or chosen by name"
    assert inline.fingerprint() == read["kafka"].fingerprint()


@pytest.mark.parametrize(
    ("source", "sources", "messages"),
    [
        ("kafca", {"kafka": KAFKA, "files": FILES}, "did you mean 'kafka'"),
        ("zzz", {"kafka": KAFKA, "files": FILES}, "known sources: kafka, files"),
        (FILES, {"kafka": KAFKA}, "with `sources` it must be the name of one of them, not"),
        (
            "files",
            {"files": FILES, "kafka": KAFKA | {"topics": ["a b"]}},
            "(?s)kafka.*'a b' is not a valid topic name",
        ),
        (
            "files",
            {"files": FILES, "kafka": {"kind": "kafka"}},
            "(?s)bootstrap_servers.*Field required",
        ),
        ("files", {}, "write a mapping from names to sources"),
    ],
)
def test_an_invalid_choice_is_rejected_with_advice(source: Any, sources: dict[str, Any], messages: str) -> None:
    with pytest.raises(ValidationError, match=messages):
        PipelineSpec.model_validate(pipeline(source=source, sources=sources))
