"""Checks of an environment against the project: names in alert routes, and rules of remediations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from deltaworks.specs.alert_channels import AlertsSpec, ChannelSpec, RouteSpec, SnsChannelSpec
from deltaworks.specs.alert_rule import RuleSpec
from deltaworks.specs.base import KeyPath, suggest_name
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.remediation import RemediationSpec


@dataclass(frozen=True, kw_only=True)
class ProjectNames:
    """The names that an environment may refer to.

    Args:
        pipelines: the valid pipelines that were read. Rules and owners are checked if these are all.
        declared: names of all pipelines, read or not.
        owners: owner of each relay, collector and remediation by name, empty where its spec is invalid.
    """

    pipelines: Mapping[str, PipelineSpec]
    declared: Iterable[str]
    owners: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether all declared pipelines were read."""
        return set(self.declared) <= set(self.pipelines)

    @property
    def rules(self) -> dict[str, RuleSpec]:
        """The rules of all pipelines that were read, by `pipeline.rule`."""
        return {f"{name}.{rule.name}": rule for name, spec in self.pipelines.items() for rule in spec.rules}


def environment_problems(environment: EnvironmentSpec, names: ProjectNames) -> Iterator[tuple[KeyPath, str]]:
    """Yields each unknown name in routes and each remediation that would never act, with its key path."""
    for index, route in enumerate(environment.alerts.routes):
        for key, position, text in _route_problems(route, names):
            yield ("alerts", "routes", index, key, position), text
    for index, spec in enumerate(environment.remediations):
        for key, text in _remediation_problems(spec, environment.alerts, names):
            yield ("remediations", index, key), text


def _route_problems(route: RouteSpec, names: ProjectNames) -> Iterator[tuple[str, int, str]]:
    processes = sorted({*names.declared, *names.owners})
    yield from _unmatched("pipelines", "pipeline, relay, collector or remediation", route.pipelines, processes)
    if names.is_complete:
        people = sorted({*filter(None, names.owners.values()), *(spec.owner for spec in names.pipelines.values())})
        yield from _unmatched("owners", "owner", route.owners, people)
        yield from _unmatched("rules", "rule", route.rules, sorted(names.rules))


def _unmatched(key: str, noun: str, globs: tuple[str, ...], names: list[str]) -> Iterator[tuple[str, int, str]]:
    for position, glob in enumerate(globs):
        if not any(fnmatchcase(name, glob) for name in names):
            yield key, position, f"there is no {noun} {glob!r}; {suggest_name(glob, names)}"


def _remediation_problems(spec: RemediationSpec, alerts: AlertsSpec, names: ProjectNames) -> Iterator[tuple[str, str]]:
    pipeline = spec.rule.partition(".")[0]
    rule = names.rules.get(spec.rule)
    if rule is None:
        if names.is_complete or pipeline not in names.declared:
            yield "rule", f"there is no rule {spec.rule!r}; {suggest_name(spec.rule, names.rules)}"
        return
    if spec.label not in rule.labels:
        yield "label", f"the rule {spec.rule} has no label {spec.label!r}; {suggest_name(spec.label, rule.labels)}"
    topics = [channel for channel in alerts.channels if isinstance(channel, SnsChannelSpec)]
    if not topics:
        text = "its alerts reach no queue: declare a channel of kind sns below alerts.channels"
        yield "rule", f"{text}, and subscribe {spec.queue_url} to its topic"
    elif not any(_reaches(channel, alerts, names.pipelines[pipeline], spec.rule, rule) for channel in topics):
        listed = ", ".join(f"{channel.name} (from {channel.min_severity})" for channel in topics)
        text = f"the rule's severity is {rule.severity}, and neither min_severity nor routes let it reach {listed}"
        yield "rule", f"{text}, whose topics feed the queue: raise the rule's severity, or add the channel to its route"


def _reaches(channel: ChannelSpec, alerts: AlertsSpec, pipeline: PipelineSpec, name: str, rule: RuleSpec) -> bool:
    return alerts.sends_to(
        channel, severity=rule.severity, owner=pipeline.owner, pipelines=(pipeline.pipeline,), rule=name
    )
