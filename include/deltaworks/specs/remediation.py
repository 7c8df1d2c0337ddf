"""Specs of remediations, which act automatically when a rule fires: they shift weights of targets within limits."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from deltaworks.specs.base import Name, Problem, SecretReference, Spec, TextOrReference, raise_problems

_RULE = re.compile(r"^[a-z][a-z0-9_]{0,62}\.[a-z][a-z0-9_]{0,62}$")


def _check_rule(value: str) -> str:
    if not _RULE.match(value):
        raise ValueError("write pipeline.rule, such as video_qos.cdn_slow")
    return value


class TrafficWebhookSpec(Spec):
    """A URL that stores the weights of targets: GET returns them, POST sets them."""

    kind: Literal["webhook"]
    url: TextOrReference
    token: SecretReference | None = Field(default=None, description="sent as a bearer token")
    timeout_seconds: float = Field(default=10.0, gt=0, le=60)

    @field_validator("url")
    @classmethod
    def _check_address(cls, value: Any) -> Any:
        if isinstance(value, str) and not value.startswith(("https://", "http://")):
            raise ValueError("write an address with https://, or a reference, env:NAME")
        return value


class VerifySpec(Spec):
    """When a shift is verified after it was made, and the relative improvement that it must bring."""

    after_minutes: float = Field(gt=0)
    min_improvement: float = Field(gt=0, lt=1)


class RemediationSpec(Spec):
    """A remediation: its rule, its action and its limits."""

    name: Name
    description: str = ""
    owner: str = "data-platform"
    queue_url: TextOrReference = Field(description="a queue of SQS that is subscribed to the topic of notifications")
    rule: Annotated[str, AfterValidator(_check_rule)] = Field(description="the rule, as pipeline.rule")
    label: Name = Field(description="the label of the rule whose values are targets")
    action: TrafficWebhookSpec
    targets: tuple[str, ...] = Field(description="values of the label, which are also the target names of the webhook")
    step: float = Field(gt=0, description="weight moved per shift; weights add up to 1")
    floor: float = Field(default=0.1, ge=0, description="minimum weight of each target")
    cooldown_minutes: float = Field(default=15, ge=1)
    max_per_day: int = Field(default=4, ge=1, le=100)
    ttl_seconds: float = Field(default=60, ge=0, description="TTL of the DNS records with the weights")
    verify: VerifySpec
    dry_run: bool = Field(default=True, description="only notifies about the action, without calling the webhook")

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        problems: list[Problem] = []
        if len(set(self.targets)) < max(2, len(self.targets)):
            problems.append((("targets",), "give at least two distinct targets"))
        if self.floor * len(self.targets) > 1:
            most = 1 / max(1, len(self.targets))
            problems.append(
                (("floor",), f"{len(self.targets)} targets cannot all have {self.floor:g}; write {most:g} at most")
            )
        if self.step > 0.5:
            problems.append((("step",), "the maximum step is 0.5: write 0.2, for example"))
        if 60 * self.verify.after_minutes <= self.ttl_seconds:
            text = f"clients see a shift up to {self.ttl_seconds:g} s later (ttl_seconds): verify after that"
            problems.append((("verify", "after_minutes"), text))
        raise_problems(problems)
        return self


def remediation_problems(remediations: tuple[RemediationSpec, ...]) -> list[Problem]:
    """Returns problems of remediations: names used twice, and rules with two remediations."""
    problems: list[Problem] = []
    for index, spec in enumerate(remediations):
        for other in remediations[:index]:
            if other.name == spec.name:
                problems.append(
                    (("remediations", index, "name"), (f"remediation {spec.name!r} is declared twice; rename one"))
                )
            elif other.rule == spec.rule:
                text = f"{other.name!r} already acts on {spec.rule}, and two would interfere; remove one"
                problems.append((("remediations", index, "rule"), text))
    return problems
