"""Builds the DAGs of continuous processes: relays, streams, groups of streams, feeds, remediations, rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airflow.sdk import DAG

from deltaworks.airflow import names
from deltaworks.airflow.job_settings import continuous_dag_settings, continuous_retries, pool_settings
from deltaworks.airflow.operators import ProcessOperator, SparkJobOperator
from deltaworks.airflow.runbooks import (
    feeds_runbook,
    group_runbook,
    relay_runbook,
    remediation_runbook,
    rules_runbook,
    stream_runbook,
)
from deltaworks.control.paths import RULES_PROCESS
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import PROJECT, RULES_DAG
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.groups import StreamGroup
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.remediation import RemediationSpec
from deltaworks.specs.share_conf import extra_task_slots, stream_share
from deltaworks.specs.shares import RELAY_POOL, RELAY_PRIORITY, Share


def relay_dag(relay: RelaySpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG of a relay."""
    with DAG(
        **names.dag_name(names.relay_dag_id(relay.relay)),
        description=relay.description or f"Relay of {', '.join(relay.buckets)}",
        doc_md=relay_runbook(relay),
        **continuous_dag_settings(relay.owner, tags=("relay", relay.relay)),
    ) as dag:
        _process_task("relay", "deltaworks.sources.objects.relay", environment, relay=relay.relay)
    return dag


def feeds_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG of a pipeline's feeds, one process for all of them."""
    with DAG(
        **names.dag_name(names.feeds_dag_id(spec.pipeline)),
        description=f"Feeds of {spec.pipeline}: {', '.join(feed.name for feed in spec.feeds)}",
        doc_md=feeds_runbook(spec),
        **continuous_dag_settings(spec.owner, tags=("feeds", spec.pipeline, *spec.tags)),
    ) as dag:
        _process_task("feeds", "deltaworks.feeds", environment, feeds=spec.pipeline)
    return dag


def remediation_dag(remediation: RemediationSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG of a remediation."""
    with DAG(
        **names.dag_name(names.remediation_dag_id(remediation.name)),
        description=remediation.description or f"Acts when {remediation.rule} fires",
        doc_md=remediation_runbook(remediation),
        **continuous_dag_settings(remediation.owner, tags=("remediation", remediation.name)),
    ) as dag:
        _process_task("remediation", "deltaworks.remediation", environment, remediation=remediation.name)
    return dag


def rules_dag(catalog: Catalog) -> DAG | None:
    """Returns the DAG of the process that evaluates the rules of all pipelines; None if no pipeline declares any."""
    pipelines = {name: spec for name, spec in catalog.pipelines.items() if spec.rules}
    if not pipelines:
        return None
    owners = ", ".join(sorted({spec.owner for spec in pipelines.values()}))
    with DAG(
        **names.dag_name(RULES_DAG),
        description=f"Evaluates the rules of {', '.join(pipelines)}",
        doc_md=rules_runbook(pipelines),
        **continuous_dag_settings(owners, tags=("rules", PROJECT, *pipelines)),
    ) as dag:
        _process_task("evaluate", "deltaworks.rules", catalog.environment, rules=RULES_PROCESS)
    return dag


def _process_task(task_id: str, module: str, environment: EnvironmentSpec, **subject: str) -> None:
    """Creates the only task of a DAG that runs a lightweight process, in the relays' pool."""
    ProcessOperator(
        task_id=task_id,
        module=module,
        environment=environment,
        arguments=[word for option, name in subject.items() for word in (f"--{option}", name)],
        **pool_settings(environment.shares.relay.pool or RELAY_POOL, priority=RELAY_PRIORITY),
        **continuous_retries(),
    )


def stream_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG of a pipeline's stream."""
    share = stream_share(spec, environment)
    with DAG(
        **names.dag_name(names.stream_dag_id(spec.pipeline)),
        description=spec.description,
        doc_md=stream_runbook(spec),
        **continuous_dag_settings(spec.owner, tags=("stream", spec.pipeline, *spec.tags)),
    ) as dag:
        _ingest_task("ingest_stream", environment, share, pipeline=spec.pipeline)
    return dag


def group_dag(group: StreamGroup, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG of a group of streams: one driver for all members, which have no DAGs of their own.

    It has the tags of its members, so that a search for a member finds it.
    """
    members = group.members.values()
    share = replace(
        environment.shares.of_stream(),
        driver_memory=group.settings.driver_memory,
        extra_tasks=extra_task_slots(*members),
    )
    tags = ("stream", group.name, *group.members, *(tag for spec in members for tag in spec.tags))
    with DAG(
        **names.dag_name(group.dag_id),
        description=f"Streams of {', '.join(group.members)}",
        doc_md=group_runbook(group),
        **continuous_dag_settings(", ".join(sorted({spec.owner for spec in members})), tags=tags),
    ) as dag:
        _ingest_task("ingest_group", environment, share, group=group.name)
    return dag


def _ingest_task(job: str, environment: EnvironmentSpec, share: Share, **subject: Any) -> None:
    """Creates the only task of a stream DAG. It has no timeout: the job ends itself."""
    SparkJobOperator(
        task_id="ingest",
        job=job,
        environment=environment,
        share=share,
        name="{{ dag.dag_id }}",
        **subject,
        **pool_settings(share.pool, priority=share.priority),
        execution_timeout=None,
        **continuous_retries(),
    )
