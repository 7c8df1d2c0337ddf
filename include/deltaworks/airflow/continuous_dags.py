"""Builds the DAGs of continuous processes: relays, streams, groups of streams, feeds, remediations, rules, SQL, Spark
Connect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from airflow.sdk import DAG

from deltaworks.airflow.dag_factory import DagKind, continuous_dag
from deltaworks.airflow.job_settings import continuous_retries, pool_settings
from deltaworks.airflow.operators import ProcessOperator, SparkJobOperator
from deltaworks.control.paths import RULES_PROCESS, SQL_SERVER_PROCESS
from deltaworks.specs.base import find_references
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.dag_ids import PROJECT
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.environment_sections import RemediationSpec
from deltaworks.specs.groups import GROUP_KIND, StreamGroup, stream_groups
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.share_conf import connect_share, extra_task_slots, stream_share
from deltaworks.specs.shares import RELAY_POOL, RELAY_PRIORITY, Share
from deltaworks.specs.sql_server import SparkConnectSpec, SqlServerSpec

T = TypeVar("T")


def relay_dag(relay: RelaySpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG of a relay."""
    with continuous_dag(
        relay.relay,
        "relay",
        description=relay.description or f"Relay of {', '.join(relay.buckets)}",
        owner=relay.owner,
        tags=("relay",),
        context={"spec": relay},
    ) as dag:
        _process_task("relay", "deltaworks.sources.objects.relay", environment, relay=relay.relay)
    return dag


def feeds_dag(spec: PipelineSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG of a pipeline's feeds, one process for all of them."""
    with continuous_dag(
        spec.pipeline,
        "feeds",
        description=f"Feeds of {spec.pipeline}: {', '.join(feed.name for feed in spec.feeds)}",
        owner=spec.owner,
        tags=("feeds", *spec.tags),
        context={"spec": spec},
    ) as dag:
        _process_task("feeds", "deltaworks.feeds", environment, feeds=spec.pipeline)
    return dag


def remediation_dag(remediation: RemediationSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG of a remediation."""
    with continuous_dag(
        remediation.name,
        "remediation",
        description=remediation.description or f"Acts when {remediation.rule} fires",
        owner=remediation.owner,
        tags=("remediation",),
        context={"spec": remediation},
    ) as dag:
        _process_task("remediation", "deltaworks.remediation", environment, remediation=remediation.name)
    return dag


def rules_dag(pipelines: Sequence[PipelineSpec], environment: EnvironmentSpec) -> DAG:
    """Returns the DAG of the process that evaluates the rules of all pipelines."""
    names = [spec.pipeline for spec in pipelines]
    with continuous_dag(
        PROJECT,
        "rules",
        description=f"Evaluates the rules of {', '.join(names)}",
        owner=_owners(pipelines),
        tags=("rules", *names),
        context={"pipelines": pipelines},
    ) as dag:
        _process_task("evaluate", "deltaworks.rules", environment, rules=RULES_PROCESS)
    return dag


def sql_server_dag(server: SqlServerSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG of the SQL server."""
    with continuous_dag(
        PROJECT,
        "sql_server",
        description=f"SQL for BI tools on {server.listen.host}:{server.listen.port}",
        owner="deltaworks",
        tags=("sql",),
        context={"server": server},
    ) as dag:
        _process_task("serve", "deltaworks.sql_server", environment, sql_server=SQL_SERVER_PROCESS)
    return dag


def spark_connect_dag(server: SparkConnectSpec, environment: EnvironmentSpec) -> DAG:
    """Returns the DAG of the Spark Connect server, a Spark job in the pool of streams."""
    share = connect_share(server, environment)
    with continuous_dag(
        PROJECT,
        "spark_connect",
        description=f"Remote Spark sessions on {server.listen.host}:{server.listen.port}",
        owner="deltaworks",
        tags=("spark",),
        context={"server": server},
    ) as dag:
        variables = {reference.name for _, reference in find_references([server, server.storage(environment.lake)])}
        _spark_task("serve", "serve_spark_connect", environment, share, variables=variables)
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
    with continuous_dag(
        spec.pipeline,
        "stream",
        description=spec.description,
        owner=spec.owner,
        tags=("stream", *spec.tags),
        context={"spec": spec},
    ) as dag:
        _spark_task("ingest", "ingest_stream", environment, share, pipeline=spec.pipeline)
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
    with continuous_dag(
        group.name,
        GROUP_KIND,
        description=f"Streams of {', '.join(group.members)}",
        owner=_owners(members),
        tags=("stream", *group.members, *(tag for spec in members for tag in spec.tags)),
        context={"group": group},
    ) as dag:
        _spark_task("ingest", "ingest_group", environment, share, group=group.name)
    return dag


def _owners(pipelines: Iterable[PipelineSpec]) -> str:
    return ", ".join(sorted({spec.owner for spec in pipelines}))


def _spark_task(task_id: str, job: str, environment: EnvironmentSpec, share: Share, **subject: Any) -> None:
    """Creates the only task of a DAG that runs a continuous Spark job. It has no timeout: the job ends itself."""
    SparkJobOperator(
        task_id=task_id,
        job=job,
        environment=environment,
        share=share,
        name="{{ dag.dag_id }}",
        **subject,
        **pool_settings(share.pool, priority=share.priority),
        execution_timeout=None,
        **continuous_retries(),
    )


def _ungrouped(catalog: Catalog, pipelines: Mapping[str, T]) -> dict[str, T]:
    """Returns the pipelines that are not in a group of streams."""
    groups = stream_groups(catalog).values()
    grouped = {name for group in groups for name in (*group.members, *group.invalid_members)}
    return {name: item for name, item in pipelines.items() if name not in grouped}


RELAY: Final = DagKind(
    kind="relay",
    # On a cluster relays are pods and have no DAG.
    subjects=lambda catalog: catalog.relays.values() if catalog.environment.kubernetes is None else (),
    build=relay_dag,
    invalid=lambda catalog: catalog.invalid_relays(),
    task_ids=("relay",),
)
FEEDS: Final = DagKind(
    kind="feeds",
    subjects=lambda catalog: [spec for spec in catalog.pipelines.values() if spec.feeds],
    build=feeds_dag,
    invalid=lambda catalog: catalog.invalid_pipelines("feeds"),
    task_ids=("feeds",),
)
REMEDIATION: Final = DagKind(
    kind="remediation", subjects=lambda catalog: catalog.environment.remediations, build=remediation_dag
)
#: One process for all pipelines that declare rules, if any.
RULES: Final = DagKind(
    kind="rules",
    subjects=lambda catalog: [specs] if (specs := [spec for spec in catalog.pipelines.values() if spec.rules]) else [],
    build=rules_dag,
)
#: The SQL server, if the environment declares it.
SQL_SERVER: Final = DagKind(
    kind="sql_server",
    subjects=lambda catalog: [] if catalog.environment.sql_server is None else [catalog.environment.sql_server],
    build=sql_server_dag,
)
#: The Spark Connect server, if the environment declares it.
SPARK_CONNECT: Final = DagKind(
    kind="spark_connect",
    subjects=lambda catalog: [] if catalog.environment.spark_connect is None else [catalog.environment.spark_connect],
    build=spark_connect_dag,
)
STREAM: Final = DagKind(
    kind="stream",
    subjects=lambda catalog: _ungrouped(catalog, catalog.pipelines).values(),
    build=stream_dag,
    invalid=lambda catalog: _ungrouped(catalog, catalog.invalid_pipelines()),
    task_ids=("ingest",),
)
#: A group with no valid member has a placeholder.
STREAM_GROUP: Final = DagKind(
    kind=GROUP_KIND,
    subjects=lambda catalog: [group for group in stream_groups(catalog).values() if group.members],
    build=group_dag,
    invalid=lambda catalog: {
        group.name: next(iter(group.invalid_members.values()))
        for group in stream_groups(catalog).values()
        if not group.members
    },
    task_ids=("ingest",),
)
