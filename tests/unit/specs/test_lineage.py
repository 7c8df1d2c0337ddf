"""Lineage settings: OpenLineage's transports, and secrets only by reference."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.environment import LineageSpec


@pytest.mark.parametrize(
    ("transport", "messages"),
    [
        ({}, "unknown transport type"),
        ({"type": "htp"}, "did you mean 'http'?"),
        ({"type": "http"}, "needs url"),
        ({"type": "file"}, "needs log_file_path"),
        ({"type": "kafka", "topic": "lineage"}, "needs config"),
        ({"type": "http", "url": "http://m", "auth": {"type": "api_key", "apiKey": "the-key"}}, "apiKey is a secret"),
        ({"type": "kafka", "topic": "l", "config": {"sasl.password": "the-key"}}, "sasl.password is a secret"),
    ],
)
def test_invalid_transports_are_rejected(transport: dict[str, Any], messages: str) -> None:
    with pytest.raises(ValidationError) as caught:
        LineageSpec(transport=transport)
    text = str(caught.value.errors(include_input=False))
    assert messages in text
    assert "the-key" not in text


def test_references_are_resolved_when_it_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = LineageSpec(transport={"type": "kafka", "topic": "l", "config": {"sasl.password": "env:LINEAGE_PASSWORD"}})
    with pytest.raises(ConfigError, match="REFERENCE_UNRESOLVED"):
        spec.resolved_transport()
    monkeypatch.setenv("LINEAGE_PASSWORD", "p")
    assert spec.resolved_transport()["config"] == {"sasl.password": "p"}
