"""Checks that the cluster has room for all streams and, at the same time, one job of each class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from deltaworks.specs.base import KeyPath
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.groups import stream_dag_id
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.share_conf import stream_share
from deltaworks.specs.shares import ClusterSpec, JobClass, Share

_CLUSTER_KEY: KeyPath = ("shares", "cluster")


def cluster_warnings(environment: EnvironmentSpec, pipelines: Sequence[PipelineSpec]) -> Iterator[tuple[KeyPath, str]]:
    """Yields warnings about jobs that would wait for executors, with key paths in the environment.

    Streams never release their executors. A job that does not fit while all streams run waits forever. A job that fits
    only while other job classes are idle waits for them. Without a declared cluster only the stream pool's slots are
    checked.
    """
    cluster, stream = environment.shares.cluster, environment.shares.of("stream")
    slots = environment.shares.pools()[stream.pool].slots
    streams = _streams(environment, pipelines)
    if len(streams) > slots:
        number = f"{len(streams)} streams need as many slots, and the pool {stream.pool!r} has {slots}"
        yield ("shares", "stream", "slots"), f"{number}; some streams wait forever"
    if cluster is None:
        return
    jobs: dict[str, Share] = {name: environment.shares.of(name) for name in _job_classes(pipelines)}
    if (text := _capacity_excess(cluster, streams, {})) is not None:
        yield _CLUSTER_KEY, f"the streams do not fit: {text}; some wait forever"
        return
    blocked = {name: _capacity_excess(cluster, streams, {name: _minimum_share(share)}) for name, share in jobs.items()}
    for name, text in blocked.items():
        if text is not None:
            yield _CLUSTER_KEY, f"{text}; a {name} job waits forever"
    if not any(blocked.values()) and (text := _capacity_excess(cluster, streams, jobs)) is not None:
        yield _CLUSTER_KEY, f"{text}; jobs of one class wait for those of another"


def _streams(environment: EnvironmentSpec, pipelines: Sequence[PipelineSpec]) -> dict[str, Share]:
    """Returns the resources of all stream drivers by DAG id. A stream group has the resources of one stream."""
    return {
        stream_dag_id(spec.pipeline, spec.stream_group): (
            stream_share(spec, environment) if spec.stream_group is None else environment.shares.of_stream()
        )
        for spec in pipelines
    }


def _job_classes(pipelines: Sequence[PipelineSpec]) -> Iterator[JobClass]:
    """Yields the classes of jobs that these pipelines run, except streams."""
    if any(spec.gold.tables for spec in pipelines):
        yield "gold"
    if any(spec.mutations is not None for spec in pipelines):
        yield "mutation"
    yield from ("maintenance", "reprocess")


def _minimum_share(share: Share) -> Share:
    """Returns the least resources with which the job can start: one executor."""
    return replace(share, executors=1)


def _capacity_excess(cluster: ClusterSpec, streams: dict[str, Share], jobs: dict[str, Share]) -> str | None:
    """Returns the sum that exceeds the cluster, as text; None if all jobs fit at the same time."""
    shares = streams | jobs
    cores = {name: share.cores for name, share in shares.items()}
    if sum(cores.values()) > cluster.cores:
        return f"{_format_terms(cores)} are {sum(cores.values())} cores, and the cluster has {cluster.cores}"
    memory = {name: share.memory_bytes >> 20 for name, share in shares.items()}
    if sum(memory.values()) > cluster.memory_bytes >> 20:
        available = cluster.memory_bytes >> 20
        return f"{_format_terms(memory)} are {sum(memory.values())} MB of executors, and the cluster has {available}"
    return None


def _format_terms(parts: dict[str, int]) -> str:
    return " + ".join(f"{name} {number}" for name, number in parts.items())
