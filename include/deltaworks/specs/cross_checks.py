"""Checks a pipeline against its environment (files, relay, stream group, cluster, gold of other pipelines), and an
environment against the project (names in alert routes, rules of remediations).

A gold table of another pipeline that is read must exist. Pipelines must not form a cycle: Airflow rebuilds a pipeline's
gold after the gold that it reads, so a cycle would rebuild forever. The other pipelines' files are read without
validation, because their errors are reported with those pipelines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from deltaworks.errors import ConfigError
from deltaworks.specs.alert_channels import AlertsSpec, ChannelSpec, RouteSpec, SnsChannelSpec
from deltaworks.specs.alert_rule import RuleSpec
from deltaworks.specs.base import KeyPath, suggest_name
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.environment_sections import RemediationSpec
from deltaworks.specs.gold import MAX_REFERENCE_BYTES, GoldTableSpec, cross_pipeline_table
from deltaworks.specs.loading import read_declaration
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.shares import ClusterShares
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.specs.spec_errors import SpecError, closest_match
from deltaworks.specs.validation_errors import Declaration


def gold_input_problems(spec: PipelineSpec, folder: Path) -> Iterator[tuple[KeyPath, str]]:
    """Yields problems with the gold tables of other pipelines that a pipeline reads.

    Args:
        folder: the folder of all pipelines.
    """
    for index, gold in enumerate(spec.gold.tables):
        for position, read in enumerate(gold.reads):
            other = cross_pipeline_table(read)
            text = "" if other is None else _problem(spec.pipeline, gold, *other, folder)
            if text:
                yield ("gold", "tables", index, "reads", position), f"{gold.name!r} reads {read!r}: {text}"


def _problem(pipeline: str, reader: GoldTableSpec, other: str, table: str, folder: Path) -> str:
    if other == pipeline:
        return f"omit the name of the pipeline itself: write {table}"
    declared = _declared_gold_tables(folder, other)
    if declared is None:
        present = sorted(path.parent.name for path in folder.glob("*/pipeline.yaml"))
        return f"there is no pipeline {other!r}; {suggest_name(other, present)}"
    if table not in declared:
        return f"the pipeline {other!r} has no gold table of that name; {suggest_name(table, declared)}"
    if reader.affects == "same" and declared[table].get("partition_by") != reader.partition_by:
        return f"`affects: same` requires that it is partitioned by {reader.partition_by!r} too"
    cycle = _dependency_path(other, pipeline, folder, ())
    return f"cycle: gold of {' reads gold of '.join((pipeline, *cycle))}" if cycle else ""


def _dependency_path(start: str, end: str, folder: Path, visited: tuple[str, ...]) -> tuple[str, ...]:
    """Returns a path of pipelines from `start` to `end`, each of which reads gold of the next; empty if there
    is none."""
    if start == end:
        return (end,)
    for upstream in sorted(_upstream_pipelines(folder, start) - {start, *visited}):
        if cycle := _dependency_path(upstream, end, folder, (*visited, start)):
            return (start, *cycle)
    return ()


def _upstream_pipelines(folder: Path, pipeline: str) -> set[str]:
    reads = [
        str(read)
        for table in (_declared_gold_tables(folder, pipeline) or {}).values()
        for read in table.get("reads") or ()
    ]
    return {key_path[0] for read in reads if (key_path := cross_pipeline_table(read)) is not None}


def _declared_gold_tables(folder: Path, pipeline: str) -> dict[str, Mapping[str, Any]] | None:
    """Returns the gold tables in a pipeline's file by name, not validated; None if there is no such pipeline."""
    path = folder / pipeline / "pipeline.yaml"
    if not path.is_file():
        return None
    try:
        gold = read_declaration(path).data.get("gold")
    except ConfigError:
        return {}
    tables = gold.get("tables") if isinstance(gold, Mapping) else None
    return {str(table.get("name")): table for table in tables or () if isinstance(table, Mapping)}


def cross_check_errors(
    spec: PipelineSpec,
    declaration: Declaration,
    *,
    relays: Collection[str],
    invalid_relays: Mapping[str, ConfigError],
    shares: ClusterShares,
    groups: Collection[str] = (),
    channels: Mapping[str, str] | None = None,
) -> Iterator[SpecError]:
    """Yields all conflicts between a pipeline and its environment.

    Args:
        groups: the environment's stream groups; if it declares none, any name is valid.
        channels: the kind of each alert channel; None if the environment cannot be read.
    """
    group = spec.stream_group
    if groups and group is not None and group not in groups:
        text = f"the environment declares no group {group!r} below stream_groups; {suggest_name(group, groups)}"
        yield declaration.error_at(("stream_group",), text)
    problems = (
        *_declaration_problems(spec, declaration, relays, invalid_relays),
        *_share_problems(spec, shares),
        *_channel_problems(spec, channels),
        *_gold_input_problems(spec, declaration.path.parent.parent),
    )
    for key_path, text in problems:
        yield declaration.error_at(key_path, text)


def _gold_input_problems(spec: PipelineSpec, folder: Path) -> Iterator[tuple[KeyPath, str]]:
    if spec.gold.cross_pipeline_inputs:
        # Imported lazily: few pipelines read gold of others.

        yield from gold_input_problems(spec, folder)


def _channel_problems(spec: PipelineSpec, channels: Mapping[str, str] | None) -> Iterator[tuple[KeyPath, str]]:
    """Yields views whose `announce.channel` is not an SNS channel of the environment."""
    topics = [name for name, kind in (channels or {}).items() if kind == "sns"]
    for index, view in enumerate(spec.views):
        name = view.announce.channel if view.announce is not None and channels is not None else None
        if name is None or name in topics:
            continue
        key_path = ("views", index, "announce", "channel")
        if channels is not None and name in channels:
            kind = channels[name]
            yield (
                key_path,
                f"the channel {name!r} has kind {kind}, and views are announced on topics: use one of kind sns",
            )
        else:
            location = "below alerts.channels of the environment"
            yield key_path, f"there is no channel {name!r} of kind sns {location}; {suggest_name(name, topics)}"


def _share_problems(spec: PipelineSpec, shares: ClusterShares) -> Iterator[tuple[KeyPath, str]]:
    """Yields a problem if the cluster cannot provide the resources that the stream declares."""
    own_share = spec.stream.share
    excess = (
        shares.size_problem(shares.of_stream(own_share, live=bool(spec.aggregation_tables)))
        if own_share is not None
        else None
    )
    if excess is not None:
        key, text = excess
        yield ("stream", "share", key), text


def _declaration_problems(
    spec: PipelineSpec, declaration: Declaration, relays: Collection[str], invalid_relays: Mapping[str, ConfigError]
) -> Iterator[tuple[KeyPath, str]]:
    folder = declaration.path.parent
    if spec.pipeline != folder.name:
        yield (
            ("pipeline",),
            f"the folder is {folder.name!r} and the pipeline {spec.pipeline!r}: give both the same name",
        )
    if isinstance(spec.source, FileSourceSpec) and spec.source.relay not in relays:
        name = spec.source.relay
        invalid = invalid_relays.get(name)
        if invalid is not None:
            yield ("source", "relay"), f"the relay {name!r} is invalid: {invalid.message}"
        else:
            yield ("source", "relay"), f"there is no relay {name!r} in include/relays; {suggest_name(name, relays)}"
    yield from _file_problems(spec, folder)


def _file_problems(spec: PipelineSpec, folder: Path) -> Iterator[tuple[KeyPath, str]]:
    """Yields referenced files that are missing, outside the folder or too large."""
    files: list[tuple[KeyPath, str, str]] = [
        (("gold", "tables", index, "sql"), f"gold table {gold.name!r}", gold.sql)
        for index, gold in enumerate(spec.gold.tables)
    ]
    files += [(("views", index, "sql"), f"view {view.name!r}", view.sql) for index, view in enumerate(spec.views)]
    files += [
        (("models", index, "label"), f"model {model.name!r}", model.label) for index, model in enumerate(spec.models)
    ]
    files += [
        (("dashboards", index, "panels", number, "sql"), f"panel {panel.title!r}", panel.sql)
        for index, dashboard in enumerate(spec.dashboards)
        for number, panel in enumerate(dashboard.panels)
        if panel.sql
    ]
    files += [
        (("dashboards", index, "choices"), f"dashboard {dashboard.name!r}", dashboard.choices)
        for index, dashboard in enumerate(spec.dashboards)
        if dashboard.choices
    ]
    files += [(("rules", index, "sql"), f"rule {rule.name!r}", rule.sql) for index, rule in enumerate(spec.rules)]
    files += [
        (("references", index, "file"), f"reference table {reference.name!r}", reference.file)
        for index, reference in enumerate(spec.references)
        if reference.file is not None
    ]
    for key_path, owner, name in files:
        path = folder / name
        if not path.is_file():
            yield (
                key_path,
                (f"{owner} refers to {name}, which does not exist in its folder; {_suggest_file(folder, name)}"),
            )
        elif key_path[0] in ("references", "dashboards", "rules") and not path.resolve().is_relative_to(
            folder.resolve()
        ):
            yield key_path, f"{owner} refers to {name} outside its folder; move the file into the folder"
        elif key_path[0] == "references" and path.stat().st_size > MAX_REFERENCE_BYTES:
            most = MAX_REFERENCE_BYTES >> 20
            yield (
                key_path,
                f"{owner} refers to {name}, which exceeds {most} MiB; ingest it as events of a pipeline instead",
            )


def _suggest_file(folder: Path, name: str) -> str:
    present = [path.relative_to(folder).as_posix() for path in folder.rglob(f"*{Path(name).suffix}")]
    nearest = closest_match(name, present)
    return f"did you mean {nearest!r}?" if nearest is not None else "create it"


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
