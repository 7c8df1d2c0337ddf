"""Every task runs in the pool of its job class, and every Spark job with that class's resources, in all DAGs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deltaworks.airflow.operators import SparkJobOperator
from deltaworks.operations.dag_forms import form_by_kind
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.specs.share_conf import launch_settings, stream_share
from deltaworks.specs.shares import ClusterShares, JobClass

REPOSITORY = Path(__file__).resolve().parents[2]
#: Every class has a different size and pool, so that none can be mistaken for another.
APART = ClusterShares.model_validate(
    {
        name: {"executors": 1, "executor_cores": cores, "pool": f"pool_{name}", "slots": cores}
        for cores, name in enumerate(("stream", "gold", "maintenance", "mutation", "reprocess"), start=2)
    }
    | {"relay": {"pool": "pool_relay", "slots": 7}}
)


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    read = load_catalog("local", root=REPOSITORY)
    environment = read.environment.model_copy(update={"shares": APART})
    return Catalog(environment=environment, relays=read.relays, pipelines=read.pipelines, root=read.root)


@pytest.fixture(scope="module")
def dags(catalog: Catalog) -> dict[str, Any]:
    """All DAGs, built like the files in dags/ do."""
    return {dag.dag_id: dag for dag in build_dags(catalog)}


def build_dags(catalog: Catalog) -> Iterator[Any]:
    from deltaworks.airflow import continuous_dags, maintenance_dags, scheduled_dags
    from deltaworks.airflow.operation_dags import triggered_dag
    from deltaworks.operations.dag_forms import pipeline_forms, relay_forms

    environment = catalog.environment
    for spec in catalog.pipelines.values():
        yield continuous_dags.stream_dag(spec, environment)
        yield maintenance_dags.maintenance_dag(spec, environment)
        if spec.gold.tables:
            yield scheduled_dags.gold_dag(spec, environment)
        if spec.mutations is not None:
            yield scheduled_dags.mutation_dag(spec, environment)
        yield from (triggered_dag(form, spec, environment) for form in pipeline_forms(spec))
    for relay in catalog.relays.values():
        yield continuous_dags.relay_dag(relay, environment)
        yield from (triggered_dag(form, relay, environment) for form in relay_forms())
        if relay.clean is not None:
            yield scheduled_dags.clean_dag(relay, environment)


def class_of(dag_id: str, task_id: str) -> JobClass:
    kind = dag_id.rpartition("__")[2]
    if kind == "stream":
        return "stream"
    name = {"record_night": "snapshot_health"}.get(task_id, task_id)
    return (OPERATIONS[name] if name in OPERATIONS else form_by_kind(kind).operations[0]).job_class


def test_every_task_has_the_pool_and_priority_of_its_class(dags: dict[str, Any]) -> None:
    assert {dag_id.rpartition("__")[2] for dag_id in dags} >= {"stream", "relay", "gold", "maintenance", "mutations"}
    for dag_id, dag in dags.items():
        for task in dag.tasks:
            if dag_id.endswith("__relay"):
                assert task.pool == "pool_relay"
                continue
            if dag_id.rpartition("__")[2].startswith("control"):
                assert (task.pool, task.priority_weight) == ("default_pool", 200), "an operator waits for no job"
                continue
            share = APART.of(class_of(dag_id, task.task_id))
            assert task.pool == share.pool, (dag_id, task.task_id)
            assert task.priority_weight == share.priority, (dag_id, task.task_id)
            assert task.weight_rule == "absolute", "no matter what follows in its DAG"


def test_every_spark_job_is_submitted_with_the_share_of_its_class(catalog: Catalog, dags: dict[str, Any]) -> None:
    jobs = [(dag_id, task) for dag_id, dag in dags.items() for task in dag.tasks if isinstance(task, SparkJobOperator)]
    assert {class_of(dag_id, task.task_id) for dag_id, task in jobs} == {
        "stream",
        "gold",
        "maintenance",
        "mutation",
        "reprocess",
    }
    for dag_id, task in jobs:
        job_class = class_of(dag_id, task.task_id)
        expected = APART.of(job_class)
        if job_class == "stream":
            expected = stream_share(catalog.pipelines[dag_id.rpartition("__")[0]], catalog.environment)
        assert task.share == expected, (dag_id, task.task_id)
        conf = launch_settings(task.share, "spark://master:7077", catalog.environment).conf
        assert conf["spark.cores.max"] == str(expected.cores), (dag_id, task.task_id)


def test_gold_at_the_end_of_a_night_waits_for_gold_alone(dags: dict[str, Any]) -> None:
    night = dags["games__maintenance"]

    assert night.get_task("rebuild_gold").pool == "pool_gold"
    assert {task.pool for task in night.tasks} == {"pool_gold", "pool_maintenance"}


def test_gold_never_shares_a_pool_with_its_upstream() -> None:
    for name in ("local", "compose", "aws"):
        shares = load_catalog(name, root=REPOSITORY, only=()).environment.shares
        others = {shares.of(other).pool for other in ("stream", "maintenance", "mutation", "reprocess")}  # type: ignore[arg-type]
        assert shares.of("gold").pool not in others, name
