"""Shares of a cluster: job classes, rejected sizes, and the resulting pools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.errors import ConfigError
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.project import load_catalog
from deltaworks.specs.shares import (
    JOB_CLASSES,
    ClusterShares,
    JobClass,
    StreamShareSpec,
    airflow_pools,
    memory_bytes,
)
from tests.unit.specs.conftest import ENVIRONMENT, PIPELINE

SMALL = {"workers": 2, "worker_cores": 2, "worker_memory": "2g"}
LIVE = """\
live:
  - {name: orders_live, reads: orders}
"""


def shares(**declared: Any) -> ClusterShares:
    return ClusterShares.model_validate(declared)


def rejection_of(root: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_catalog("local", root=root)
    assert caught.value.condition == "SPEC_INVALID"
    return caught.value.message


def test_unset_values_of_a_class_have_defaults() -> None:
    declared = shares(gold={"executor_memory": "3g", "slots": 2})
    gold, untouched = declared.of("gold"), shares().of("gold")

    assert (gold.executor_memory, gold.slots) == ("3g", 2)
    assert (gold.executor_cores, gold.pool, gold.priority) == (2, "gold", untouched.priority)
    assert declared.of("maintenance") == shares().of("maintenance")


def test_only_declared_cores_limit_a_local_master() -> None:
    assert not shares().of("gold").is_size_declared
    assert not shares(gold={"executor_memory": "3g"}).of("gold").is_size_declared
    assert shares(gold={"executor_cores": 1}).of("gold").is_size_declared


def test_streams_keep_executors_and_batch_jobs_release_them() -> None:
    assert {name for name in JOB_CLASSES if not shares().of(name).dynamic} == {"stream"}
    assert shares(gold={"dynamic": False}).of("gold").dynamic is False


def test_gold_has_priority_and_maintenance_has_the_lowest() -> None:
    order = sorted(JOB_CLASSES, key=lambda name: -shares().of(name).priority)

    assert order == ["stream", "gold", "mutation", "reprocess", "maintenance"]
    assert {name for name in JOB_CLASSES if shares().of(name).niceness} == {"maintenance"}


def test_live_tables_add_an_executor_to_their_stream() -> None:
    declared = shares(stream={"executors": 2, "executor_cores": 1}, live={"executors": 1})

    assert declared.of_stream().cores == 2
    assert declared.of_stream(live=True).cores == 3
    assert shares(live={"executors": 0}).of_stream(live=True) == shares().of_stream()


def test_a_pipelines_own_share_replaces_that_of_its_class() -> None:
    own = StreamShareSpec(executors=3, executor_memory="4g")
    share = shares(stream={"executor_cores": 1, "executor_memory": "1g"}).of_stream(own)

    assert (share.executors, share.executor_cores, share.executor_memory) == (3, 1, "4g")


@given(
    workers=st.integers(1, 20),
    worker_cores=st.integers(1, 64),
    worker_memory=st.sampled_from(["512m", "1g", "2g", "64g"]),
)
def test_defaults_fit_every_cluster(workers: int, worker_cores: int, worker_memory: str) -> None:
    cluster = {"workers": workers, "worker_cores": worker_cores, "worker_memory": worker_memory}
    declared = shares(cluster=cluster)

    for name in JOB_CLASSES:
        share = declared.of(name)
        assert declared.size_problem(share) is None
        assert 1 <= share.executor_cores <= worker_cores
        assert share.cores <= workers * worker_cores
        assert memory_bytes(share.executor_memory) <= memory_bytes(worker_memory)


@pytest.mark.parametrize(
    ("declared", "key", "figures"),
    [
        ("gold: {executor_cores: 3}", "shares.gold.executor_cores", ("3 cores", "has 2")),
        ("reprocess: {executor_memory: 3g}", "shares.reprocess.executor_memory", ("of 3g", "has 2g")),
        ("stream: {executors: 5, executor_cores: 1}", "shares.stream.executors", ("are 5", "has 4 cores")),
    ],
)
def test_a_share_above_the_cluster_is_rejected_with_file_key_and_numbers(
    make_project: Callable[..., Path], declared: str, key: str, figures: tuple[str, ...]
) -> None:
    cluster = "  cluster: {workers: 2, worker_cores: 2, worker_memory: 2g}"
    message = rejection_of(make_project(environment=f"{ENVIRONMENT}shares:\n{cluster}\n  {declared}\n"))

    assert f"local.yaml:7: {key}: " in message
    for figure in figures:
        assert figure in message


@pytest.mark.parametrize(
    ("declared", "advice"),
    [
        ("maintainance: {executors: 1}", "did you mean 'maintenance'"),
        ("gold: {executor_core: 1}", "did you mean 'executor_cores'"),
        ("gold: {executor_memory: 2gb}", "write a number with m or g"),
        ("gold: {executor_cores: 0}", "1"),
        ("gold: {pool: Gold Jobs}", "lower-case"),
    ],
)
def test_a_typo_is_answered_with_the_closest_name(
    make_project: Callable[..., Path], declared: str, advice: str
) -> None:
    message = rejection_of(make_project(environment=f"{ENVIRONMENT}shares:\n  {declared}\n"))

    assert "local.yaml:6: shares." in message
    assert advice in message


def test_a_pipelines_share_above_the_cluster_is_rejected_at_its_key(
    make_project: Callable[..., Path],
) -> None:
    small = f"{ENVIRONMENT}shares:\n  cluster: {{workers: 2, worker_cores: 2, worker_memory: 2g}}\n"
    line = PIPELINE.count("\n") + 1
    greedy = PIPELINE + "  share: {executors: 5, executor_cores: 1}\n"

    message = rejection_of(make_project(environment=small, pipeline=greedy))

    assert f"pipeline.yaml:{line}: stream.share.executors: 5 executors of 1 cores are 5" in message
    assert load_catalog("local", root=make_project(pipeline=greedy)).pipelines, "nobody says how large the cluster is"


def test_executors_for_live_tables_count_towards_the_share(make_project: Callable[..., Path]) -> None:
    small = f"{ENVIRONMENT}shares:\n  cluster: {{workers: 2, worker_cores: 2, worker_memory: 2g}}\n"
    whole = PIPELINE + "  share: {executors: 4, executor_cores: 1}\n"

    assert load_catalog("local", root=make_project(environment=small, pipeline=whole)).pipelines
    assert "stream.share.executors" in rejection_of(make_project(environment=small, pipeline=whole + LIVE))


def test_by_default_a_pipeline_has_no_share_of_its_own(make_project: Callable[..., Path]) -> None:
    spec = load_catalog("local", root=make_project()).pipeline("shop")

    assert spec.stream.share is None


def test_each_class_has_a_pool_of_its_own() -> None:
    pools = shares().pools()

    assert {name: pool.slots for name, pool in pools.items()} == {
        "relays": 4,
        "processes": 4,
        "streams": 8,
        "gold": 1,
        "maintenance": 1,
        "mutations": 1,
        "reprocess": 1,
    }


def test_classes_that_share_a_pool_share_its_slots() -> None:
    declared = shares(
        maintenance={"pool": "jobs", "slots": 2}, mutation={"pool": "jobs"}, relay={"pool": "intake", "slots": 9}
    )
    pools = declared.pools()

    assert pools["jobs"].slots == 2
    assert "maintenance or mutation" in pools["jobs"].description
    assert pools["intake"].slots == 9
    assert pools.keys().isdisjoint({"maintenance", "mutations", "relays"})


def test_two_sizes_of_one_pool_are_an_error(make_project: Callable[..., Path]) -> None:
    declared = "shares:\n  maintenance: {pool: jobs, slots: 2}\n  mutation: {pool: jobs, slots: 3}\n"

    message = rejection_of(make_project(environment=ENVIRONMENT + declared))

    assert "shares.mutation.slots: the pool 'jobs' has 2 slots from shares.maintenance.slots" in message


def test_deferred_tasks_hold_no_slot() -> None:
    imported = airflow_pools(shares())

    assert imported["gold"] == {"slots": 1, "description": imported["gold"]["description"], "include_deferred": False}
    assert all(set(pool) == {"slots", "description", "include_deferred"} for pool in imported.values())


def test_every_operation_has_a_job_class() -> None:
    classes = {name: declared.job_class for name, declared in OPERATIONS.items()}

    assert set(classes.values()) == set(get_args(JobClass)) - {"stream"}
    assert {name for name, job_class in classes.items() if job_class == "gold"} == {
        "rebuild_gold",
        "refresh_gold",
        "verify_gold",
    }
    assert classes["optimize_tables"] == "maintenance"
    assert classes["mutate_tables"] == "mutation"
    assert classes["reprocess"] == "reprocess"


def test_the_documented_defaults_match_the_code() -> None:
    text = (PROJECT_ROOT / "docs" / "how-to/deploy.md").read_text()
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in text.splitlines()]
    table = {row[0]: row[2:] for row in rows if row[0] in (*JOB_CLASSES, "live") and len(row) == 8}

    assert table.pop("live")[0] == str(shares().live.executors)
    assert table == {
        name: [
            str(share.executors),
            str(share.executor_cores),
            share.executor_memory,
            share.python_memory,
            "yes" if share.dynamic else "no",
            f"{share.pool}`, {share.slots}",
        ]
        for name, share in ((name, shares().of(name)) for name in JOB_CLASSES)
    }
