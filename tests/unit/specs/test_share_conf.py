"""A share rendered for each kind of master: common settings and limits."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyspark
import pytest

from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.share_conf import extra_task_slots, launch_settings, master_kind, stream_share
from deltaworks.specs.shares import JOB_CLASSES, JobClass
from deltaworks.specs.spark_conf import submit_conf
from deltaworks.testing import declare_pipeline, environment_spec

JARS = Path(pyspark.__file__).parent / "jars"
CLUSTERS = {"standalone": "spark://spark-master:7077", "yarn": "yarn", "kubernetes": "k8s://https://kubernetes.default"}
MASTERS = {"local": "local[4]", **CLUSTERS}
on_each_master = pytest.mark.parametrize("master", MASTERS.values(), ids=MASTERS)
on_each_cluster = pytest.mark.parametrize("master", CLUSTERS.values(), ids=CLUSTERS)
of_each_class = pytest.mark.parametrize("job_class", JOB_CLASSES)
SPEC: dict[str, Any] = declare_pipeline(
    {"name": "orders", "catch_all": True}, event={"name": {"path": "name"}, "time": {"path": "time"}}
)
#: Where Spark says by which names it is configured.
SETTINGS_OF = ("spark-core_", "spark-kubernetes_", "spark-yarn_")


def environment(spark: dict[str, Any] | None = None, **shares: Any) -> EnvironmentSpec:
    return environment_spec("", spark=spark or {}, shares=shares)


def conf_of(job_class: JobClass, master: str, **shares: Any) -> dict[str, str]:
    declared = environment(**shares)
    return dict(launch_settings(declared.shares.of(job_class), master, declared).conf)


@cache
def names_of_spark() -> bytes:
    """Every class file that declares settings, one after the other."""
    parts = []
    for jar in (path for path in JARS.glob("*.jar") if path.name.startswith(SETTINGS_OF)):
        with zipfile.ZipFile(jar) as archive:
            names = [name for name in archive.namelist() if "config" in name.lower() and name.endswith(".class")]
            parts += [archive.read(name) for name in names]
    return b"".join(parts)


@on_each_cluster
@of_each_class
def test_a_job_on_a_cluster_is_limited_to_its_share(master: str, job_class: JobClass) -> None:
    share = environment().shares.of(job_class)
    conf = conf_of(job_class, master)

    assert conf["spark.executor.cores"] == str(share.executor_cores)
    assert conf["spark.executor.memory"] == share.executor_memory
    bounds = {
        int(conf["spark.cores.max"]) // share.executor_cores
        if "spark.cores.max" in conf
        else int(conf.get("spark.executor.instances") or conf["spark.dynamicAllocation.maxExecutors"])
    }
    assert bounds == {share.executors}


@on_each_cluster
@of_each_class
def test_dynamic_allocation_is_explicit(master: str, job_class: JobClass) -> None:
    conf = conf_of(job_class, master, **{job_class: {"executors": 3, "dynamic": job_class != "stream"}})

    assert conf["spark.dynamicAllocation.enabled"] == str(job_class != "stream").lower()
    if job_class != "stream":
        assert conf["spark.dynamicAllocation.shuffleTracking.enabled"] == "true", "there is no shuffle service"
        assert conf["spark.dynamicAllocation.minExecutors"] == "1", "a job keeps its place"
        assert conf["spark.dynamicAllocation.maxExecutors"] == "3"
        assert "spark.executor.instances" not in conf


@on_each_cluster
def test_a_single_executor_is_not_dynamic(master: str) -> None:
    assert conf_of("gold", master)["spark.dynamicAllocation.enabled"] == "false"


@on_each_master
@of_each_class
def test_every_setting_exists_in_spark(master: str, job_class: JobClass) -> None:
    conf = conf_of(job_class, master, **{job_class: {"executors": 3, "dynamic": True}})

    assert [name for name in conf if name.encode() not in names_of_spark()] == []


def test_an_unknown_spark_setting_would_be_detected() -> None:
    assert b"spark.cores.maximum" not in names_of_spark()


@on_each_master
@of_each_class
def test_driver_memory_and_niceness_do_not_depend_on_the_master(master: str, job_class: JobClass) -> None:
    declared = environment({"driver_memory": "3g"}, gold={"driver_memory": "5g"})
    launch = launch_settings(declared.shares.of(job_class), master, declared)

    assert launch.driver_memory == ("5g" if job_class == "gold" else "3g")
    assert (launch.niceness > 0) == (job_class == "maintenance")


@on_each_cluster
def test_the_master_is_unchanged(master: str) -> None:
    declared = environment(gold={"executor_cores": 1})

    assert launch_settings(declared.shares.of("gold"), master, declared).master == master


@on_each_cluster
def test_settings_of_the_environment_take_precedence(master: str) -> None:
    declared = environment({"conf": {"spark.executor.memory": "7g", "spark.sql.ansi.enabled": "false"}})
    launch = launch_settings(declared.shares.of("gold"), master, declared)

    assert launch.conf["spark.executor.memory"] == "7g"
    assert "spark.sql.ansi.enabled" not in launch.conf, "what is no part of the share is set by the session"


@pytest.mark.parametrize(
    ("master", "share", "rendered"),
    [
        ("local[4]", {}, "local[4]"),
        ("local[*]", {}, "local[*]"),
        ("local[4]", {"executor_cores": 2}, "local[2]"),
        ("local[4]", {"executors": 2, "executor_cores": 1}, "local[2]"),
        ("local[4]", {"executor_cores": 16}, "local[4]"),
        ("local[*]", {"executor_cores": 3}, "local[3]"),
        ("local[4,2]", {"executor_cores": 1}, "local[1,2]"),
        ("local", {"executor_cores": 3}, "local[1]"),
    ],
)
def test_a_local_job_has_the_masters_cores_or_fewer_by_its_share(
    master: str, share: dict[str, Any], rendered: str
) -> None:
    declared = environment(gold=share)
    launch = launch_settings(declared.shares.of("gold"), master, declared)

    assert launch.master == rendered
    assert launch.conf == {}


@pytest.mark.parametrize(
    ("master", "share", "rendered", "cores"),
    [
        ("local[2]", {}, "local[3]", "2"),
        ("local[4,2]", {"executor_cores": 1}, "local[2,2]", "1"),
        ("local[*]", {"executor_cores": 3}, "local[4]", "3"),
        ("local", {}, "local[2]", "1"),
        ("local[*]", {}, "local[*]", None),
    ],
)
def test_gold_in_a_streams_driver_has_a_free_core_during_a_batch(
    master: str, share: dict[str, Any], rendered: str, cores: str | None
) -> None:
    declared = environment(stream=share)
    launch = launch_settings(replace(declared.shares.of("stream"), extra_tasks=1), master, declared)

    assert launch.master == rendered
    assert launch.conf.get("spark.default.parallelism") == cores


def test_only_streams_with_gold_or_live_tables_need_an_extra_core() -> None:
    table = {"name": "daily", "sql": "gold/daily.sql", "reads": ["orders"], "partition_by": "event_date"}
    live = {"name": "now", "reads": "orders", "window_minutes": 5, "watermark_minutes": 10}
    plain, scheduled, refreshed, counted = (
        PipelineSpec.model_validate({**SPEC, **more})
        for more in (
            {},
            {"gold": {"tables": [table]}},
            {"gold": {"tables": [{**table, "lag": "1m"}]}},
            {"live": [live]},
        )
    )
    concurrent = [stream_share(spec, environment()).extra_tasks for spec in (plain, scheduled, refreshed, counted)]

    assert concurrent == [0, 0, 1, 1]
    assert (extra_task_slots(plain, scheduled), extra_task_slots(plain, counted)) == (0, 1)


def test_a_job_never_takes_all_cores_of_a_standalone_cluster() -> None:
    conf = conf_of("stream", CLUSTERS["standalone"], stream={"executors": 2, "executor_cores": 3})

    assert (conf["spark.cores.max"], conf["spark.executor.cores"]) == ("6", "3")


def test_a_queue_of_yarn_is_that_of_the_class() -> None:
    declared = environment(maintenance={"queue": "night"})

    assert launch_settings(declared.shares.of("maintenance"), "yarn", declared).queue == "night"
    assert launch_settings(declared.shares.of("maintenance"), "k8s://https://k", declared).queue == ""
    assert launch_settings(declared.shares.of("gold"), "yarn", declared).queue == ""


@pytest.mark.parametrize("master", [CLUSTERS["yarn"], CLUSTERS["kubernetes"]])
def test_containers_have_memory_for_python_outside_the_heap(master: str) -> None:
    assert conf_of("stream", master, stream={"python_memory": "3g"})["spark.executor.memoryOverhead"] == "3g"


def test_kubernetes_requests_equal_limits() -> None:
    conf = conf_of("gold", CLUSTERS["kubernetes"], gold={"executor_cores": 4})

    assert conf["spark.kubernetes.executor.request.cores"] == "4"
    assert conf["spark.kubernetes.executor.limit.cores"] == "4"


@pytest.mark.parametrize(
    ("master", "kind"), [*((url, kind) for kind, url in MASTERS.items()), ("local-cluster[2,1,1024]", "other")]
)
def test_a_master_is_known_by_its_url(master: str, kind: str) -> None:
    assert master_kind(master) == kind


def test_submitted_settings_contain_the_share_and_the_clusters_settings() -> None:
    own = {"spark.kubernetes.container.image": "lake:1", "spark.kubernetes.authenticate.oauthToken": "hidden"}
    declared = environment({"conf": own, "driver_memory": "3g"})
    launch = launch_settings(declared.shares.of("gold"), CLUSTERS["kubernetes"], declared)
    conf = submit_conf(declared, Path("/checkout"), launch)

    assert launch.conf.items() <= conf.items()
    assert conf["spark.driver.memory"] == "3g"
    assert conf["spark.kubernetes.container.image"] == "lake:1"
    assert "hidden" not in conf.values(), "it ends on a command line"


@pytest.mark.parametrize(
    ("pipeline", "share", "memory"),
    [
        ({}, {}, "1g"),
        ({}, {"driver_memory": "3g"}, "3g"),
        ({"driver_memory": "2g"}, {"driver_memory": "3g"}, "2g"),
        ({"driver_memory": "2g"}, {}, "2g"),
    ],
)
def test_driver_memory_of_the_pipeline_precedes_that_of_the_class(
    pipeline: dict[str, str], share: dict[str, str], memory: str
) -> None:
    spec = PipelineSpec.model_validate({**SPEC, "stream": pipeline})

    assert stream_share(spec, environment(stream=share)).driver_memory == memory


def test_a_stream_has_its_own_share_and_what_its_live_tables_add() -> None:
    live = [{"name": "orders_live", "reads": "orders"}]
    spec = PipelineSpec.model_validate({**SPEC, "live": live, "stream": {"share": {"executors": 2}}})

    assert stream_share(spec, environment(stream={"executor_cores": 1})).cores == 3
