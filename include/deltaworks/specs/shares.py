"""Resources of jobs in a cluster (shares), one set per job class, and the Airflow pools that limit concurrency.

Values of a class that are not set default to values that fit the declared workers. `deltaworks.specs.share_conf`
renders shares as Spark settings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from deltaworks.specs.base import Name, Problem, Spec, raise_problems
from deltaworks.specs.spec_change_effects import NEXT_START

JobClass = Literal["stream", "gold", "maintenance", "mutation", "reprocess"]
JOB_CLASSES: Final[tuple[JobClass, ...]] = get_args(JobClass)
#: Memory in JVM notation: `512m`, `2g`.
Memory = Annotated[str, Field(pattern=r"^[1-9]\d*[mg]$")]
#: With this niceness, a busy stream gets nine tenths of a core for which maintenance competes on the same machine.
MAINTENANCE_NICENESS = 10


def memory_bytes(text: str) -> int:
    """Converts a JVM memory size such as `512m` or `2g` to bytes."""
    return int(text[:-1]) << {"m": 20, "g": 30}[text[-1]]


class ClusterSpec(Spec):
    """The workers of the cluster. Shares are checked against them."""

    workers: int = Field(ge=1)
    worker_cores: int = Field(ge=1, description="cores of a worker for executors")
    worker_memory: Memory

    @property
    def cores(self) -> int:
        """Cores of all workers."""
        return self.workers * self.worker_cores

    @property
    def memory_bytes(self) -> int:
        """Memory of all workers."""
        return self.workers * memory_bytes(self.worker_memory)


class PoolSpec(Spec):
    """An Airflow pool and its number of slots."""

    pool: Name | None = Field(default=None, description="name; classes can share a pool; by default one per class")
    slots: int | None = Field(default=None, ge=1, description="number of concurrent jobs")


class StreamShareSpec(Spec):
    """Resources of one pipeline's stream, in place of those of its class."""

    executors: Annotated[int | None, NEXT_START] = Field(default=None, ge=1)
    executor_cores: Annotated[int | None, NEXT_START] = Field(default=None, ge=1)
    executor_memory: Annotated[Memory | None, NEXT_START] = None


class ShareSpec(PoolSpec):
    """Resources of one job of a job class."""

    executors: int | None = Field(
        default=None, ge=1, description=("number of executors; the maximum with dynamic allocation")
    )
    executor_cores: int | None = Field(default=None, ge=1)
    executor_memory: Memory | None = Field(default=None, description="heap of an executor's JVM")
    python_memory: Memory | None = Field(
        default=None,
        description=("memory for Python workers outside the heap; part of the container on YARN and Kubernetes"),
    )
    driver_memory: Memory | None = Field(default=None, description="by default `spark.driver_memory`")
    dynamic: bool | None = Field(default=None, description="dynamic allocation of executors")
    queue: str = Field(default="", description="YARN queue; by default the connection's")


class LiveShareSpec(Spec):
    """Additional executors of a stream with live tables."""

    executors: int = Field(default=1, ge=0, description="additional executors of a stream with live tables")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Resources of one job, with all defaults applied.

    Args:
        is_size_declared: the size is declared; otherwise a single-machine master uses its own defaults.
        driver_memory: empty for the environment's default.
        priority: a higher priority is scheduled first.
        niceness: CPU niceness compared with other processes of the machine.
        extra_tasks: cores on a single machine for tasks that run while a batch uses all others.
    """

    job_class: JobClass
    executors: int
    executor_cores: int
    executor_memory: str
    python_memory: str
    driver_memory: str = ""
    dynamic: bool
    queue: str = ""
    pool: str
    slots: int
    priority: int
    niceness: int = 0
    extra_tasks: int = 0
    is_size_declared: bool = False

    @property
    def cores(self) -> int:
        """Number of cores over all executors."""
        return self.executors * self.executor_cores

    @property
    def uses_dynamic_allocation(self) -> bool:
        """Whether executors are allocated dynamically. One executor always stays, so a share of one executor
        does not."""
        return self.dynamic and self.executors > 1

    @property
    def memory_bytes(self) -> int:
        """Heap memory over all executors, in bytes."""
        return self.executors * memory_bytes(self.executor_memory)


def _default(job_class: JobClass, *, pool: str, priority: int, **more: int | bool) -> Share:
    values: dict[str, int | bool] = {"executors": 1, "slots": 1, "dynamic": True, **more}
    sizes = {"executor_cores": 2, "executor_memory": "2g", "python_memory": "1g"}
    return Share(job_class=job_class, pool=pool, priority=priority, **sizes, **values)  # type: ignore[arg-type]


#: Streams do not allocate executors dynamically. They would release them after each batch and wait for new ones.
DEFAULTS: Final[Mapping[JobClass, Share]] = {
    "stream": _default("stream", pool="streams", priority=100, slots=8, dynamic=False),
    "gold": _default("gold", pool="gold", priority=50),
    "mutation": _default("mutation", pool="mutations", priority=40),
    "reprocess": _default("reprocess", pool="reprocess", priority=20, executors=2),
    "maintenance": _default("maintenance", pool="maintenance", priority=10, niceness=MAINTENANCE_NICENESS),
}
#: The environment variable with the default number of concurrent streams; the embedded stack sets it by its memory.
STREAM_SLOTS_VARIABLE: Final = "DELTAWORKS_STREAM_SLOTS"
RELAY_POOL, RELAY_SLOTS = "relays", 4
#: Tasks of any job class that run as a process without Spark, so that a count or a restore of seconds does not wait
#: until a Spark job has ended.
PROCESS_POOL, PROCESS_SLOTS = "processes", 4
#: Relays are not Spark jobs. Without free slots they are scheduled first, like streams.
RELAY_PRIORITY = DEFAULTS["stream"].priority


@dataclass(frozen=True, slots=True)
class Pool:
    """The desired state of an Airflow pool."""

    slots: int
    description: str


class ClusterShares(Spec):
    """The shares of all job classes, and the cluster's workers."""

    cluster: ClusterSpec | None = Field(
        default=None, description=("the cluster's size; without it shares are not checked")
    )
    relay: PoolSpec = PoolSpec.defaults()
    process: PoolSpec = PoolSpec.defaults()
    stream: ShareSpec = ShareSpec.defaults()
    live: LiveShareSpec = LiveShareSpec.defaults()
    gold: ShareSpec = ShareSpec.defaults()
    maintenance: ShareSpec = ShareSpec.defaults()
    mutation: ShareSpec = ShareSpec.defaults()
    reprocess: ShareSpec = ShareSpec.defaults()

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        raise_problems([*self._size_problems(), *self._pool_problems()])
        return self

    def of(self, job_class: JobClass) -> Share:
        """Returns the resources of one job of this class."""
        declared: ShareSpec = getattr(self, job_class)
        default = self._limit_to_cluster(DEFAULTS[job_class])
        values = {name: value for name, value in declared if value not in (None, "")}
        if job_class == "stream" and os.environ.get(STREAM_SLOTS_VARIABLE, "").isdigit():
            values = {"slots": int(os.environ[STREAM_SLOTS_VARIABLE])} | values
        return replace(default, **values, is_size_declared=declares_size(declared))

    def of_stream(self, own: StreamShareSpec | None = None, *, live: bool = False) -> Share:
        """Returns the resources of a stream.

        Args:
            own: the resources that the pipeline declares for its stream.
            live: whether the stream has live tables.
        """
        share = self.of("stream")
        if own is not None:
            values = {name: value for name, value in own if value is not None}
            share = replace(share, **values, is_size_declared=share.is_size_declared or declares_size(own))
        return replace(share, executors=share.executors + self.live.executors) if live else share

    def pools(self) -> dict[str, Pool]:
        """Returns all Airflow pools by name. A pool of several classes has the slots that one of them declares."""
        users: dict[str, list[tuple[str, int, bool]]] = {}
        for name, pool, slots, declared in self._pool_uses():
            users.setdefault(pool, []).append((name, slots, declared))
        return {
            pool: Pool(
                slots=next((slots for _, slots, declared in uses if declared), max(slots for _, slots, _ in uses)),
                description=f"One slot per job of class {' or '.join(name for name, _, _ in uses)}.",
            )
            for pool, uses in users.items()
        }

    @property
    def process_pool(self) -> str:
        """Pool of tasks that run as a process without Spark."""
        return self.process.pool or PROCESS_POOL

    def size_problem(self, share: Share) -> tuple[str, str] | None:
        """Returns key and message if a share does not fit the cluster; None if it fits."""
        cluster = self.cluster
        if cluster is None:
            return None
        if share.executor_cores > cluster.worker_cores:
            limit = f"a worker has {cluster.worker_cores} (shares.cluster.worker_cores)"
            return "executor_cores", f"no worker can start an executor of {share.executor_cores} cores: {limit}"
        if memory_bytes(share.executor_memory) > memory_bytes(cluster.worker_memory):
            limit = f"a worker has {cluster.worker_memory} (shares.cluster.worker_memory)"
            return "executor_memory", f"no worker can start an executor of {share.executor_memory}: {limit}"
        if share.cores > cluster.cores:
            total = f"{share.executors} executors of {share.executor_cores} cores are {share.cores}"
            return "executors", f"{total}, and the cluster has {cluster.cores} cores (shares.cluster)"
        return None

    def _limit_to_cluster(self, share: Share) -> Share:
        """Reduces a default share to what the declared workers provide."""
        cluster = self.cluster
        if cluster is None:
            return share
        cores = min(share.executor_cores, cluster.worker_cores)
        memory = min(share.executor_memory, cluster.worker_memory, key=memory_bytes)
        return replace(
            share,
            executors=min(share.executors, max(1, cluster.cores // cores)),
            executor_cores=cores,
            executor_memory=memory,
        )

    def _pool_uses(self) -> Iterator[tuple[str, str, int, bool]]:
        """Yields, per job class, the class, its pool, its slots, and whether the slots are declared."""
        relay = self.relay
        yield "relay", relay.pool or RELAY_POOL, relay.slots or RELAY_SLOTS, relay.slots is not None
        process = self.process
        yield "process", self.process_pool, process.slots or PROCESS_SLOTS, process.slots is not None
        for job_class in JOB_CLASSES:
            share, spec = self.of(job_class), getattr(self, job_class)
            yield job_class, share.pool, share.slots, spec.slots is not None

    def _size_problems(self) -> Iterator[Problem]:
        for job_class in JOB_CLASSES:
            if (excess := self.size_problem(self.of(job_class))) is not None:
                key, text = excess
                yield (job_class, key), text

    def _pool_problems(self) -> Iterator[Problem]:
        slots: dict[str, tuple[str, int]] = {}
        for name, pool, own, declared in self._pool_uses():
            if not declared:
                continue
            other, number = slots.setdefault(pool, (name, own))
            if number != own:
                text = (
                    f"the pool {pool!r} has {number} slots from shares.{other}.slots: declare them once, or use "
                    "another pool"
                )
                yield (name, "slots"), text


def airflow_pools(shares: ClusterShares) -> dict[str, dict[str, Any]]:
    """Returns the pools in the format of `airflow pools import`. Deferred tasks, which wait for a person, hold
    no slot."""
    return {
        name: {"slots": pool.slots, "description": pool.description, "include_deferred": False}
        for name, pool in shares.pools().items()
    }


def declares_size(declared: ShareSpec | StreamShareSpec) -> bool:
    """Returns whether a spec sets the number of executors or cores."""
    return declared.executors is not None or declared.executor_cores is not None
