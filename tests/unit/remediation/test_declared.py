"""Valid and invalid remediation declarations."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from deltaworks.specs.environment import EnvironmentSpec
from tests.unit.remediation.remediation_harness import declared


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"targets": ["a"]}, "at least two distinct targets"),
        ({"targets": ["a", "a"]}, "at least two distinct targets"),
        ({"floor": 0.6}, "cannot all have"),
        ({"step": 0.6}, "maximum step is 0.5"),
        ({"verify": {"after_minutes": 1, "min_improvement": 0.05}}, "ttl_seconds"),
        ({"rule": "cdn_slow"}, "pipeline.rule"),
        ({"action": {"kind": "webhook", "url": "traffic"}}, "https://"),
    ],
)
def test_an_invalid_remediation_is_rejected_with_a_suggestion(spec: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        declared(**spec)


def test_it_is_a_dry_run_unless_declared_otherwise() -> None:
    spec = declared().model_dump(mode="json", exclude_unset=True)
    del spec["dry_run"]
    assert declared(**spec | {"dry_run": True}).dry_run
    assert type(declared()).model_fields["dry_run"].default is True


def test_two_remediations_of_one_rule_are_refused() -> None:
    one, other = (declared(name=name).model_dump(mode="json") for name in ("one", "other"))
    storage = {"root": "file:///tmp/lake"}
    with pytest.raises(ValidationError, match="two would interfere"):
        EnvironmentSpec.model_validate(
            {"environment": "x", "lake": storage, "landing": storage, "messaging": {}, "remediations": [one, other]}
        )
