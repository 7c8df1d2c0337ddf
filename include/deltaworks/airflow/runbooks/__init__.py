"""Renders the runbook of each DAG from a Markdown template: purpose, what to do after a failure, how to stop and start
it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template
from typing import Any

from deltaworks.airflow.names import server_path
from deltaworks.errors import DeltaworksError
from deltaworks.operations.base import Operation
from deltaworks.operations.dag_forms import DagForm, restrictions
from deltaworks.specs.dag_ids import split_dag_id
from deltaworks.specs.groups import StreamGroup
from deltaworks.specs.mutation import MutationsSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import CleanSpec, RelaySpec
from deltaworks.specs.remediation import RemediationSpec

_FOLDER = Path(__file__).parent


def _runbook(page: str, /, **values: Any) -> str:
    return _template(page).substitute(values, console=server_path("/deltaworks"))


@functools.cache
def _template(page: str) -> Template:
    return Template((_FOLDER / f"{page}.md").read_text(encoding="utf-8"))


@functools.cache
def _pages() -> frozenset[str]:
    return frozenset(path.stem for path in _FOLDER.glob("*.md"))


def training_runbook(spec: PipelineSpec) -> str:
    """Returns the runbook of `<pipeline>__models`."""
    listed = [f"- `{model.name}`: {model.description or model.label}" for model in spec.models]
    return _runbook("models", pipeline=spec.pipeline, models="\n".join(listed), owner=spec.owner)


def relay_runbook(relay: RelaySpec) -> str:
    """Returns the runbook of `<relay>__relay`."""
    return _runbook(
        "relay",
        relay=relay.relay,
        description=relay.description,
        buckets=", ".join(f"`{bucket}`" for bucket in relay.buckets),
        max_run_seconds=relay.max_run_seconds,
        owner=relay.owner,
    )


def rules_runbook(pipelines: Mapping[str, PipelineSpec]) -> str:
    """Returns the runbook of the `rules` DAG."""
    return _runbook(
        "rules",
        rules="; ".join(
            f"{', '.join(f'`{rule.name}`' for rule in spec.rules)} of {name}" for name, spec in pipelines.items()
        ),
        owner=", ".join(sorted({spec.owner for spec in pipelines.values()})),
    )


def feeds_runbook(spec: PipelineSpec) -> str:
    """Returns the runbook of `<pipeline>__feeds`."""
    listed = [f"- `{feed.name}` of `{feed.reads}`, to {feed.to.kind}: {feed.description}" for feed in spec.feeds]
    return _runbook("feeds", pipeline=spec.pipeline, feeds="\n".join(listed), owner=spec.owner)


def remediation_runbook(spec: RemediationSpec) -> str:
    """Returns the runbook of `<name>__remediation`."""
    return _runbook(
        "remediation",
        name=spec.name,
        description=spec.description,
        rule=spec.rule,
        targets=", ".join(f"`{target}`" for target in spec.targets),
        step=f"{spec.step:g}",
        floor=f"{spec.floor:g}",
        max_per_day=spec.max_per_day,
        dry_run=" **It is a dry run**: it logs what it would do and calls no endpoint." if spec.dry_run else "",
        owner=spec.owner,
    )


def clean_runbook(relay: RelaySpec, declared: CleanSpec) -> str:
    """Returns the runbook of `<relay>__clean`."""
    return _runbook(
        "clean",
        relay=relay.relay,
        what="Deletes" if declared.mode == "delete" else f"Moves to `{declared.archive_to}`",
        after_days=f"{declared.after_days:g}",
        only_counts=" **It only counts** until `clean.dry_run` is false." if declared.dry_run else "",
        owner=relay.owner,
    )


def lost_events_runbook(spec: PipelineSpec) -> str:
    """Returns the runbook of `<pipeline>__find_lost_events`."""
    return _runbook("find_lost_events", pipeline=spec.pipeline, owner=spec.owner)


def stream_runbook(spec: PipelineSpec) -> str:
    """Returns the runbook of `<pipeline>__stream`."""
    return _runbook(
        "stream",
        pipeline=spec.pipeline,
        description=spec.description,
        tables=len(spec.tables),
        trigger_seconds=f"{spec.stream.trigger_seconds:g}",
        max_run_seconds=spec.stream.max_run_seconds,
        owner=spec.owner,
    )


def group_runbook(group: StreamGroup) -> str:
    """Returns the runbook of `<group>__stream_group`."""
    listed = [f"- `{name}`: {spec.description}" for name, spec in group.members.items()]
    listed += [
        f"- `{name}` **has an invalid declaration and is not started**: {wrong.hint}"
        for name, wrong in group.invalid_members.items()
    ]
    return _runbook(
        "stream_group",
        group=group.name,
        members="\n".join(listed),
        non_outage_failures=group.settings.non_outage_failures,
        max_run_seconds=group.max_run_seconds,
    )


def invalid_runbook(dag_id: str, name: str, error: DeltaworksError) -> str:
    """Returns the runbook of a placeholder DAG for an invalid declaration."""
    # A code fence in an error would end the block that shows it.
    errors = error.message.replace("```", "` ` `")
    page = f"/dag/{dag_id}" if split_dag_id(dag_id)[1] in ("stream", "relay") else "/"
    return _runbook("invalid", page=page, name=name, errors=errors, hint=error.hint)


def health_runbook() -> str:
    """Returns the runbook of `deltaworks__health`."""
    return _runbook("health")


def gold_runbook(spec: PipelineSpec) -> str:
    """Returns the runbook of `<pipeline>__gold`."""
    tables = "\n".join(f"- `{table.name}` {table.description}" for table in spec.gold.tables)
    return _runbook("gold", pipeline=spec.pipeline, tables=tables, owner=spec.owner)


def maintenance_runbook(spec: PipelineSpec) -> str:
    """Returns the runbook of `<pipeline>__maintenance`."""
    return _runbook(
        "maintenance",
        pipeline=spec.pipeline,
        optimize_minutes=spec.maintenance.optimize_minutes,
        vacuum="only lists what it would delete" if spec.maintenance.vacuum_dry_run else "deletes",
        kept_hours=spec.maintenance.file_retention_hours,
        owner=spec.owner,
    )


def mutations_runbook(spec: PipelineSpec, declared: MutationsSpec) -> str:
    """Returns the runbook of `<pipeline>__mutations`."""
    return _runbook(
        "mutations",
        pipeline=spec.pipeline,
        tables=", ".join(f"`{table.name}`" for table in spec.tables if table.mutable is not None),
        requests=declared.requests,
        max_requests=f"{declared.max_requests:,}",
        max_turn_seconds=declared.max_turn_seconds,
        alert_after_minutes=declared.alert_after_minutes,
        owner=spec.owner,
    )


def namespace_runbook(form: DagForm, namespace: str, pipelines: Iterable[PipelineSpec]) -> str:
    """Returns the runbook of a DAG on a namespace of personal data. Each kind has a template of its own."""
    specs = tuple(pipelines)
    return _runbook(
        form.kind,
        namespace=namespace,
        pipelines=", ".join(f"`{spec.pipeline}`" for spec in specs),
        owner=", ".join(sorted({spec.owner for spec in specs})),
        **{f"command_{one.name}": f"{one.command} {namespace}" for one in form.operations},
        **{f"concurrency_{one.name}": one.concurrency_note() for one in form.operations},
    )


def form_runbook(form: DagForm, subject: str, owner: str, spec: PipelineSpec | None = None) -> str:
    """Returns the runbook of a DAG that runs operations when triggered: the common template, and the text of each
    operation that has one.

    Args:
        spec: the pipeline, whose restrictions are named; None for a relay.
    """
    pages = [_runbook(one.name, pipeline=subject, owner=owner) for one in form.operations if one.name in _pages()]
    limits = [restrictions(one, spec) for one in form.operations] if spec is not None else []
    return _runbook(
        "operation",
        kind=form.kind.replace("_", " "),
        subject=subject,
        operations="\n".join(_operation_line(form, one, subject) for one in form.operations),
        page="\n\n".join([*filter(None, limits), *pages]),
        owner=owner,
    )


def _operation_line(form: DagForm, operation: Operation, subject: str) -> str:
    steps = (
        'It counts first. With "Dry run" off a person then has to approve the counts: open the task `approve`, read, '
        "approve or reject. Nothing is done without an answer."
        if operation.waits_for_approval
        else 'It only counts unless "Dry run" is off.'
        if operation.destructive
        else "It may run at any time."
    )
    actions = ", ".join(f"**{action}**" for action in operation.actions) if form.actions else ""
    command = f"`deltaworks {operation.command} {subject}`"
    text = f"{operation.summary} {steps} {operation.concurrency_note()} Command: {command}."
    return f"- {actions}: {text}" if actions else text
