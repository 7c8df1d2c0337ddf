"""Renders the resources of a job (`Share`) as Spark settings for each kind of master. Only this module names these
settings.

| master | limit of a job |
|---|---|
| `local[N]` | N from the share, one more for gold in a stream's driver, and the process's niceness |
| `spark://` | `spark.cores.max`; without it the first application takes all cores |
| `yarn` | the number of executors, and the queue |
| `k8s://` | the number of executors, with request and limit of each |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.shares import Share
from deltaworks.specs.sql_server import SparkConnectSpec

MasterKind = Literal["local", "standalone", "yarn", "kubernetes", "other"]
_LOCAL = re.compile(r"^local(?:\[(?P<cores>\d+|\*)(?:,\s*(?P<failures>\d+))?\])?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Spark launch settings of a job.

    Args:
        master: URL of the master; for `local[N]` with the cores of the share.
        conf: Spark settings, with the environment's `spark.conf` merged.
        queue: YARN queue; empty for the connection's default.
    """

    master: str
    conf: Mapping[str, str] = field(default_factory=dict)
    driver_memory: str
    queue: str = ""
    niceness: int = 0


def launch_settings(share: Share, master: str, environment: EnvironmentSpec) -> Launch:
    """Returns the launch settings of a job with these resources on a master. Depends only on its arguments."""
    kind = master_kind(master)
    own = environment.spark.conf
    master, conf = _local_master(share, master) if kind == "local" else (master, _RENDERERS[kind](share))
    return Launch(
        master=master,
        conf={name: own.get(name, value) for name, value in conf.items()},
        driver_memory=share.driver_memory or environment.spark.driver_memory,
        queue=share.queue if kind == "yarn" else "",
        niceness=share.niceness,
    )


def stream_share(spec: PipelineSpec, environment: EnvironmentSpec) -> Share:
    """Returns the resources of a pipeline's stream: its own values replace those of its class, and live tables add to
    them.
    """
    share = environment.shares.of_stream(spec.stream.share, live=bool(spec.aggregation_tables))
    share = replace(share, extra_tasks=extra_task_slots(spec))
    if "driver_memory" in spec.stream.model_fields_set or not share.driver_memory:
        return replace(share, driver_memory=spec.stream.driver_memory)
    return share


def connect_share(server: SparkConnectSpec, environment: EnvironmentSpec) -> Share:
    """Returns the resources of the Spark Connect server: those of a stream, but idle executors are given back."""
    return replace(environment.shares.of_stream(server.share), driver_memory=server.driver_memory, dynamic=True)


def extra_task_slots(*members: PipelineSpec) -> int:
    """Returns how many task slots a driver of these streams needs for gold builds and live tables, in addition to
    batches.

    A batch's task runs for seconds, and a gold build has some twenty small sequential stages. Without a free slot each
    stage would wait for a batch's task.
    """
    return int(any(spec.gold.stream_refreshed_tables or spec.aggregation_tables for spec in members))


def master_kind(master: str) -> MasterKind:
    """Returns the kind of a master URL."""
    if master.startswith("local-cluster"):
        return "other"
    kinds: dict[str, MasterKind] = {"local": "local", "spark://": "standalone", "yarn": "yarn", "k8s://": "kubernetes"}
    return next((kind for start, kind in kinds.items() if master.startswith(start)), "other")


def _local_master(share: Share, master: str) -> tuple[str, dict[str, str]]:
    """Returns the master URL and the settings of a local job.

    It has the declared cores, at most those of the given master, plus the extra slots. Parallelism does not count the
    extra slots.
    """
    match = _LOCAL.match(master)
    if match is None or (match["cores"] == "*" and not share.is_size_declared):
        return master, {}
    limits = [share.cores] if share.is_size_declared else []
    if match["cores"] != "*":
        limits.append(int(match["cores"] or "1"))
    cores, failures = min(limits), f",{match['failures']}" if match["failures"] else ""
    conf = {"spark.default.parallelism": str(cores)} if share.extra_tasks else {}
    return f"local[{cores + share.extra_tasks}{failures}]", conf


def _no_settings(share: Share) -> dict[str, str]:
    return {}


def _executor_settings(share: Share) -> dict[str, str]:
    return {"spark.executor.cores": str(share.executor_cores), "spark.executor.memory": share.executor_memory}


def _dynamic_allocation_settings(share: Share) -> dict[str, str]:
    """Returns settings for dynamic allocation, with at least one executor so that the job always has resources.

    All settings are explicit because cluster defaults may differ. Shuffle tracking makes a shuffle service unnecessary.
    """
    if not share.uses_dynamic_allocation:
        return {"spark.dynamicAllocation.enabled": "false"}
    return {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "1",
        "spark.dynamicAllocation.initialExecutors": "1",
        "spark.dynamicAllocation.maxExecutors": str(share.executors),
    }


def _standalone_settings(share: Share) -> dict[str, str]:
    return {"spark.cores.max": str(share.cores)} | _executor_settings(share) | _dynamic_allocation_settings(share)


def _container_settings(share: Share) -> dict[str, str]:
    """Returns the settings that YARN and Kubernetes have in common. Both count containers and kill those above their
    memory limit.
    """
    number = {} if share.uses_dynamic_allocation else {"spark.executor.instances": str(share.executors)}
    return (
        number
        | _executor_settings(share)
        | {"spark.executor.memoryOverhead": share.python_memory}
        | _dynamic_allocation_settings(share)
    )


def _kubernetes_settings(share: Share) -> dict[str, str]:
    cores = str(share.executor_cores)
    return _container_settings(share) | {
        "spark.kubernetes.executor.request.cores": cores,
        "spark.kubernetes.executor.limit.cores": cores,
        "spark.kubernetes.driver.request.cores": "1",
    }


_RENDERERS: Mapping[MasterKind, Callable[[Share], dict[str, str]]] = {
    "standalone": _standalone_settings,
    "yarn": _container_settings,
    "kubernetes": _kubernetes_settings,
    "other": _no_settings,
}
