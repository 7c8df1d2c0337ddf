"""A standalone cluster with all kinds of jobs on S3: one worker machine is lost, and another one joins."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from deltaworks.control import paths
from tests.faults.harness.cluster_project import (
    CLUSTERED,
    JOBS,
    PIPELINES,
    READ,
    STARTED_WITHIN_SECONDS,
    ClusterProject,
)
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.mutable_rows import find_damage
from tests.faults.harness.oracle import commits_of, rows_in_folder
from tests.spark.engine.standalone import Cluster, standalone_cluster
from tests.waiting import eventually

MakeStage = Callable[..., FaultProject]
Line = Callable[..., None]


def names_with_cores(cluster: Cluster) -> set[str]:
    """Returns the applications that have an executor."""
    return {app["name"] for app in cluster.state()["activeapps"] if app["cores"]}


def lose_a_worker_and_add_one(stage: ClusterProject, cluster: Cluster) -> set[str]:
    """Kills a worker after a batch's files are written and before the driver knows them; returns the applications it
    ran.
    """
    met: set[str] = set()

    def all_have_begun() -> bool:
        met.update(names_with_cores(cluster))
        return len(met) == len(PIPELINES) + len(JOBS)

    eventually(all_have_begun, "three streams and three jobs have cores", seconds=STARTED_WITHIN_SECONDS)
    here = names_with_cores(cluster)
    stage.armed.touch()
    lost = stage.armed.with_suffix(".lost")
    eventually(lost.exists, "a batch of the stream is written", seconds=STARTED_WITHIN_SECONDS)
    eventually(lambda: cluster.state()["aliveworkers"] == 1, "the master misses the worker")
    cluster.add_worker()
    return here


def test_a_worker_lost_while_everything_runs_loses_and_doubles_nothing(
    make_stage: MakeStage, print_result: Line, tmp_path: Path
) -> None:
    s3 = make_stage(tables=4, storage="s3")
    with ExitStack() as stack:
        cluster = stack.enter_context(standalone_cluster(tmp_path, workers=2, cores=3, memory="2g"))
        stage = ClusterProject(s3, cluster.address)
        load = stage.load()
        stack.callback(load.close)
        streams = stack.enter_context(stage.streams())
        # Gives OPTIMIZE files to compact.
        streams.await_more(2)
        jobs = [stack.enter_context(stage.job(name)) for name in JOBS]

        met = lose_a_worker_and_add_one(stage, cluster)
        # The first batch may already have been in progress.
        streams.await_more(2)
        for job in jobs:
            job.run_to_end()
        load.close()
        stage.await_landed()
        stage.stop(streams)
        last = [stack.enter_context(stage.job(name)) for name in ("rebuild_gold", "mutate_tables")]
        for job in last:
            job.run_to_end()

    verdicts = stage.verdicts()
    events = sum(table == "events" for table, _ in stage.owed(READ))
    print_result(
        "worker lost",
        "protected",
        f"met {', '.join(sorted(met))}",
        f"drivers started again {streams.restarts}",
        f"ids {s3.ids}",
        f"lost {sum(verdict.lost.total() for verdict in verdicts.values())}",
        f"doubled {sum(verdict.doubled.total() for verdict in verdicts.values())}",
        f"gold counts {stage.answers()} of {events}",
    )
    assert load.failure is None
    assert {name: str(verdict) for name, verdict in verdicts.items() if not verdict.is_exact} == {}
    assert not find_damage(s3.lake, PIPELINE, stage.truth)
    assert stage.answers() == events
    assert any(
        "remove" in action for actions in commits_of(s3.lake, paths.table(CLUSTERED, "k01")) for action in actions
    )

    folder = rows_in_folder(s3.lake, READ, "events")
    doubled = sum(count - 1 for count in folder.values())
    print_result("worker lost", "WITHOUT the log: all files are read", "lost 0", f"doubled {doubled}")
    assert doubled > 0
