"""Commits the steps of a mutation batch, once each under a Delta transaction, with retries after conflicts."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.control.provenance import MUTATE, user_metadata
from deltaworks.errors import ConfigError
from deltaworks.mutations.merge import transaction_settings
from deltaworks.tables.commit import Step
from deltaworks.tables.files_commit import FilesCommit
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import CommitInfo, TableState, commit_history
from deltaworks.tables.rewrite import DataFiles, Rewrite, commit_rewrite
from deltaworks.tables.spark_session import USER_METADATA, override_settings, retry_conflicts
from deltaworks.tables.steps import mutation_step

log = logging.getLogger(__name__)
#: Maximum number of commits that are searched for a step. A stream that catches up after the mutation adds only a few.
MAX_SEARCHED_COMMITS = 500


class StepCommits:
    """Makes the commits of one batch without Spark. Not thread-safe.

    Args:
        before_commit: called before each commit; its errors end the batch.
    """

    def __init__(self, lake: Lake, pipeline: str, batch: int, *, before_commit: Callable[[], None]) -> None:
        self._lake = lake
        self._pipeline = pipeline
        self._batch = batch
        self._before_commit = before_commit

    def step(self, table: str) -> Step:
        """Returns the transaction (application id and version) of a table in this batch."""
        return mutation_step(self._pipeline, table, self._batch)

    def has_committed(self, table: str) -> bool:
        """Returns whether the table has committed this batch's step or a later one."""
        return self._has_step(self._lake.open(paths.table(self._pipeline, table)), table)

    def _has_step(self, delta_table: DeltaTable | None, table: str) -> bool:
        version = None if delta_table is None else delta_table.transaction_version(self.step(table).app_id)
        return version is not None and version >= self._batch

    def commit_once_with_delta_rs(
        self, table: str, write: Callable[[DeltaTable, Step, str], None], *, check: Callable[[], None]
    ) -> int:
        """Runs `write`, which makes one commit to the table by delta-rs, under this batch's step.

        `write` receives a snapshot without the step, the step, and the `userMetadata`. It commits from that snapshot
        and raises DELTA_CONFLICT if the table has a newer version.

        Returns the number of attempts; 0 if the step was committed before.

        Args:
            check: called before each attempt, after `before_commit`.

        Raises:
            ConcurrencyError: DELTA_CONFLICT if every attempt conflicted; errors of `check`.
        """
        step = self.step(table)

        def attempt(opened: DeltaTable | None) -> None:
            if opened is None:
                raise ConfigError(
                    "TABLE_UNKNOWN",
                    f"Table {self._pipeline}.{table} was removed while a mutation batch was merged into it.",
                    hint="Run the job again: it skips missing tables.",
                )
            write(opened, step, self._metadata(step))

        return self._retry_commit(table, attempt, check=check)

    def append_once(self, table: str, rows: pa.Table) -> None:
        """Appends rows to an existing table as one commit under this batch's step, unless it was committed before.

        Raises:
            ConcurrencyError: COMMIT_CONTENDED.
        """
        key, step = paths.table(self._pipeline, table), self.step(table)
        opened = self._lake.open(key)
        if opened is None or self._has_step(opened, table):
            return
        self._before_commit()
        self._lake.append(opened, key, rows, step=step, user_metadata=self._metadata(step))

    def rewrite_once(self, table: str, rewrite: Callable[[TableState, DataFiles], Rewrite | None]) -> None:
        """Commits a rewrite of files under this batch's step, unless it was committed before; see `commit_rewrite`.

        Raises:
            ConcurrencyError: COMMIT_CONTENDED.
            SparkRequiredError: this process cannot read a file of the table.
        """
        key, step = paths.table(self._pipeline, table), self.step(table)
        commit = FilesCommit(
            step=step,
            user_metadata=self._metadata(step),
            operation="WRITE",
            marks_change=False,
            action=f"commit {step.app_id} at {step.version}",
        )
        commit_rewrite(self._lake, self._lake.objects, key, rewrite, commit=commit, before_commit=self._before_commit)

    def _retry_commit(
        self, table: str, write: Callable[[DeltaTable | None], None], *, check: Callable[[], None]
    ) -> int:
        attempts = 0
        for attempt in retry_conflicts(table):
            with attempt:
                # The conflicting commit may be this step, committed by a process that was presumed dead.
                delta_table = self._lake.open(paths.table(self._pipeline, table))
                if self._has_step(delta_table, table):
                    return attempts
                self._before_commit()
                check()
                attempts += 1
                write(delta_table)
        return attempts

    def _metadata(self, step: Step) -> str:
        return user_metadata(
            pipeline=self._pipeline,
            batch=self._batch,
            operation=MUTATE,
            step=step.app_id,
            step_version=step.version,
        )

    def find_commit(self, table: str) -> CommitInfo | None:
        """Returns the commit of this batch's step from the table's log, or None."""
        key, step = paths.table(self._pipeline, table), self.step(table)
        delta_table = self._lake.open(key)
        for commit in (
            commit_history(self._lake, key, newest=delta_table.version(), limit=MAX_SEARCHED_COMMITS)
            if delta_table
            else ()
        ):
            if (commit.metadata.get("step"), commit.metadata.get("step_version")) == (step.app_id, step.version):
                return commit
        return None


class SparkStepCommits(StepCommits):
    """Makes the commits of one batch with Spark as well. Not thread-safe.

    Args:
        session: a session used only for this batch, because its settings apply to the commits.
    """

    def __init__(
        self, session: SparkSession, lake: Lake, pipeline: str, batch: int, *, before_commit: Callable[[], None]
    ) -> None:
        super().__init__(lake, pipeline, batch, before_commit=before_commit)
        self._session = session

    def commit_once(
        self,
        table: str,
        write: Callable[[], None],
        *,
        check: Callable[[], None] = lambda: None,
        settings: Mapping[str, str] | None = None,
    ) -> int:
        """Runs `write`, which makes one commit to the table, under this batch's step.

        Returns the number of attempts; 0 if the step was committed before.

        Args:
            check: called before each attempt, after `before_commit`.
            settings: additional session settings for this commit.

        Raises:
            ConcurrencyError: DELTA_CONFLICT if every attempt conflicted; errors of `check`.
        """
        step = self.step(table)
        commit_settings = {
            **(settings or {}),
            **transaction_settings(step.app_id, step.version),
            USER_METADATA: self._metadata(step),
        }

        def attempt(opened: DeltaTable | None) -> None:
            with override_settings(self._session, commit_settings):
                write()

        return self._retry_commit(table, attempt, check=check)


def merge_metric(commit: CommitInfo | None, name: str) -> int:
    """Returns a metric of a MERGE commit by its Spark name, also for delta-rs (snake case); 0 without a commit or
    metric.
    """
    snake = re.sub("[A-Z]", lambda capital: f"_{capital[0].lower()}", name)
    return 0 if commit is None else int(commit.metrics.get(name, commit.metrics.get(snake, 0)))


def engine_of(commit: CommitInfo | None) -> str:
    """Returns the engine of a commit: `spark`, `delta_rs`, or an empty string without a commit."""
    if commit is None:
        return ""
    return "delta_rs" if commit.engine.startswith("delta-rs") else "spark"
