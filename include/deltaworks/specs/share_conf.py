"""How a share becomes settings of Spark, for each kind of master: the only place that names them.

| master | a job is bounded by |
|---|---|
| `local[N]` | N, where the share says so, one more for gold beside a stream, and how it gives way to other processes |
| `spark://` | `spark.cores.max`, without which the first application takes every core there is |
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

MasterKind = Literal["local", "standalone", "yarn", "kubernetes", "other"]
_LOCAL = re.compile(r"^local(?:\[(?P<cores>\d+|\*)(?:,\s*(?P<failures>\d+))?\])?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """With what a job is started.

    Args:
        master: the master's URL; of one machine, with the cores of the share.
        conf: settings of Spark. The environment's own `spark.conf` has been laid over them.
        queue: of YARN; empty where that of the connection holds.
    """

    master: str
    conf: Mapping[str, str] = field(default_factory=dict)
    driver_memory: str
    queue: str = ""
    niceness: int = 0


def launch_settings(share: Share, master: str, environment: EnvironmentSpec) -> Launch:
    """With what a job of the share is started on a master. Pure."""
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
    """What the stream of a pipeline takes: its own share over that of its class, and what live tables add."""
    share = environment.shares.of_stream(spec.stream.share, live=bool(spec.aggregation_tables))
    share = replace(share, extra_tasks=extra_task_slots(spec))
    if "driver_memory" in spec.stream.model_fields_set or not share.driver_memory:
        return replace(share, driver_memory=spec.stream.driver_memory)
    return share


def extra_task_slots(*members: PipelineSpec) -> int:
    """For how many tasks beside those of batches a driver of these streams needs room.

    A task of a batch works for seconds, and a build of gold is some twenty small stages, one behind the other: each
    would wait for a batch's task to end.
    """
    return int(any(spec.gold.stream_refreshed_tables or spec.aggregation_tables for spec in members))


def master_kind(master: str) -> MasterKind:
    """Which kind of master a URL is of."""
    if master.startswith("local-cluster"):
        return "other"
    kinds: dict[str, MasterKind] = {"local": "local", "spark://": "standalone", "yarn": "yarn", "k8s://": "kubernetes"}
    return next((kind for start, kind in kinds.items() if master.startswith(start)), "other")


def _local_master(share: Share, master: str) -> tuple[str, dict[str, str]]:
    """The master and settings of a job on one machine: with the share's cores where it says so, never more than the
    master had, and room beside them. What is split is split for the cores, whatever runs beside."""
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
    """Executors that come and go, as many as there is work for, and one at least, by which a job keeps its place.

    Said in full, since the cluster's own defaults may be otherwise; which executor still holds what others read is
    tracked, so that no shuffle service is needed.
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
    """What YARN and Kubernetes have in common: they count containers, and end one that takes more than it said."""
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
