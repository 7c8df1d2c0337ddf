"""Runs chains of DAGs concurrently, and waits as long as they make progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deltaworks.airflow_client.api import AirflowApi, DagRun
from deltaworks.errors import TransientError
from deltaworks.operations.base import APPROVE_TASK
from sandbox.stack.home import StackHome
from sandbox.stack.processes import stack_processes
from sandbox.stack.waiting import busy_steps, wait_while_progressing

#: Maximum time without progress. Tasks start within seconds and use CPU time while they run.
PATIENCE_SECONDS = 300.0
_POLL_SECONDS = 2.0
_MARKER_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Job:
    """A DAG to run, with its params. If `must_succeed`, its failure ends the demo; `approve` approves its question.
    `then` is called after its end, before the next job of its chain.
    """

    dag_id: str
    form: Mapping[str, Any] = field(default_factory=dict)
    must_succeed: bool = True
    approve: bool = False
    then: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """A finished DAG run with the states of its tasks."""

    job: Job
    run: DagRun
    seconds: float
    tasks: tuple[str, ...]


class JobRuns:
    """Runs chains of jobs: the jobs of a chain in sequence, the chains concurrently."""

    def __init__(self, airflow: AirflowApi, home: StackHome, *, say: Callable[[str], None]) -> None:
        self._airflow = airflow
        self._home = home
        self._say = say
        self._running: dict[str, tuple[Job, DagRun, float]] = {}
        self._seen_questions: set[str] = set()
        self.ended: list[FinishedJob] = []

    def run(self, *chains: Sequence[Job]) -> list[FinishedJob]:
        """Runs all chains to completion and returns the runs finished in this call.

        Raises:
            TransientError: DAG_RUN_FAILED; DAG_RUN_TIMEOUT, nothing makes progress.
        """
        waiting, before = [list(chain) for chain in chains], len(self.ended)

        def all_ended() -> bool:
            self._collect()
            for chain in waiting:
                if chain and not self._run_chain(chain):
                    chain.pop(0)
                    if chain:
                        self._start(chain[0])
            return not any(waiting)

        for chain in waiting:
            self._start(chain[0])
        stalled = wait_while_progressing(
            all_ended,
            self._progress_marker,
            stall_seconds=PATIENCE_SECONDS,
            poll_seconds=_POLL_SECONDS,
            marker_seconds=_MARKER_SECONDS,
        )
        if stalled is not None:
            runs = ", ".join(f"{dag_id} ({run.run_id}, {run.state})" for dag_id, (_, run, _) in self._running.items())
            raise TransientError(
                "DAG_RUN_TIMEOUT",
                f"No progress for {stalled.seconds:.0f} s in {runs}.",
                hint=f"Look at the logs of its tasks under {self._home.airflow / 'logs'}.",
            )
        return self.ended[before:]

    def _run_chain(self, chain: Sequence[Job]) -> bool:
        return chain[0].dag_id in self._running

    def _start(self, job: Job) -> None:
        self._running[job.dag_id] = (job, self._airflow.trigger(job.dag_id, conf=job.form), time.monotonic())
        self._say(f"{job.dag_id}: started")

    def _collect(self) -> None:
        """Adds finished runs to `ended`."""
        for dag_id, (job, before, started) in list(self._running.items()):
            run = self._airflow.dag_run(dag_id, before.run_id)
            self._running[dag_id] = (job, run, started)
            if not run.is_finished:
                if job.approve:
                    self._approve(run)
                continue
            del self._running[dag_id]
            seconds = time.monotonic() - started
            tasks = self._airflow.task_instances(dag_id, run.run_id)
            said = tuple(f"{task.task_id}: {task.state} in {task.duration_seconds or 0:.0f} s" for task in tasks)
            self.ended.append(FinishedJob(job, run, seconds, said))
            self._say(f"{dag_id}: {run.state} after {seconds:.0f} s")
            if job.must_succeed and run.state != "success":
                raise TransientError(
                    "DAG_RUN_FAILED",
                    f"{dag_id} run {run.run_id} ended {run.state}.",
                    hint=f"Its task log is under {self._home.airflow / 'logs'}.",
                )
            job.then()

    def _approve(self, run: DagRun) -> None:
        """Approves a question that was seen before: Airflow's scheduler must know that the task waits, or it fails."""
        question = self._airflow.question(run.dag_id, run.run_id, APPROVE_TASK)
        if question is None or question["response_received"]:
            return
        if run.run_id not in self._seen_questions:
            self._seen_questions.add(run.run_id)
        else:
            self._airflow.answer(run.dag_id, run.run_id, APPROVE_TASK, "Approve")

    def _progress_marker(self) -> Hashable:
        jobs = busy_steps(process.pid for process in stack_processes(self._home) if process.kind == "job")
        states = tuple(
            (dag_id, run.state, *((task.task_id, task.state, task.try_number) for task in self._tasks(dag_id, run)))
            for dag_id, (_, run, _) in self._running.items()
        )
        return jobs, states

    def _tasks(self, dag_id: str, run: DagRun) -> Sequence[Any]:
        return self._airflow.task_instances(dag_id, run.run_id)
