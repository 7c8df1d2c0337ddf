"""VACUUM of purged files: its due time, the holds that block it, and whether the files are deleted.

A VACUUM can succeed although it only counted files, skipped a table, or kept files for a reader. So each purged file is
checked individually, and a request advances only once all of its files are deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from deltaworks.control.provenance import user_metadata
from deltaworks.control.records.erasure import PurgedTable
from deltaworks.erasure.namespace import Namespace
from deltaworks.erasure.purge_window import PurgeTarget, purge_targets
from deltaworks.maintenance.vacuum import OPERATION, vacuum_tables
from deltaworks.maintenance.vacuum_files import vacuum_files
from deltaworks.maintenance.vacuum_holds import MARGIN_HOURS, MINIMUM_RETENTION_HOURS, holds_on
from deltaworks.tables.lake import arrow_path
from deltaworks.tables.protected_files import existing_files


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumOutcome:
    """Result of a VACUUM for erasures.

    Args:
        due_at: time from which purged files may be deleted.
        holds: descriptions of holds that block the VACUUM.
        remaining: files that still exist although they are due, as `<pipeline>.<table>: <why>`.
    """

    due_at: datetime
    holds: tuple[str, ...] = ()
    remaining: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all files are deleted."""
        return not self.holds and not self.remaining


def vacuum_due_at(namespace: Namespace, purged: Sequence[PurgedTable]) -> datetime:
    """Returns the time from which VACUUM may delete the files of these purges."""
    newest = max((record.at_ms for record in purged), default=0)
    retention = max(namespace.retention, timedelta(hours=MINIMUM_RETENTION_HOURS))
    return datetime.fromtimestamp(newest / 1000, tz=UTC) + retention


class NamespaceVacuum:
    """VACUUM within one erasure run, once for all windows that are due. Not thread-safe."""

    def __init__(self, namespace: Namespace, *, now: datetime) -> None:
        self._namespace = namespace
        self._now = now
        self._reasons: dict[str, str] | None = None

    def delete_purged_files(self, purged: Sequence[PurgedTable]) -> VacuumOutcome:
        """Deletes the files of these purges with a full VACUUM, which also deletes uncommitted files.

        Idempotent; safe with concurrent writers and readers. Does nothing before the due time.

        Raises:
            ConcurrencyError: MAINTENANCE_RUNNING, MAINTENANCE_LOCK_LOST.
        """
        due = vacuum_due_at(self._namespace, purged)
        if self._now < due:
            return VacuumOutcome(due_at=due)
        touched = [record for record in purged if record.removed_files]
        holds = tuple(blocking_holds(self._namespace, touched))
        if self._reasons is None:
            self._reasons = self._vacuum_all()
        remaining = tuple(remaining_files(self._namespace, touched, self._reasons))
        return VacuumOutcome(due_at=due, holds=holds, remaining=remaining)

    def _vacuum_all(self) -> dict[str, str]:
        """Vacuums every table; returns the reported reason by declared table."""
        reasons: dict[str, str] = {}
        for spec in self._namespace.pipelines:
            for result in vacuum_tables(None, self._namespace.catalog, spec.pipeline, dry_run=False, mode="full"):
                reasons[f"{spec.pipeline}.{result.table}"] = result.reason
        for target in purge_targets(self._namespace):
            # Tables of readers, of the vault, and shadow tables of a reprocess.
            if f"{target.pipeline}.{target.table}" not in reasons:
                _vacuum_undeclared(target, self._now)
        return reasons


def blocking_holds(namespace: Namespace, purged: Sequence[PurgedTable]) -> Iterator[str]:
    """Yields descriptions of readers, restores and write turns that began before the purges and need their files."""
    by_pipeline = {spec.pipeline: spec for spec in namespace.pipelines}
    for record in purged:
        if record.pipeline not in by_pipeline:
            continue
        purged_at = datetime.fromtimestamp(record.at_ms / 1000, tz=UTC)
        home = namespace.home(record.pipeline)
        for hold in holds_on(namespace.catalog, namespace.lake, home, record.table):
            if hold.since is None or hold.since - timedelta(hours=MARGIN_HOURS) < purged_at:
                yield f"{record.pipeline}.{record.table}: {hold.holder}"


def remaining_files(namespace: Namespace, purged: Sequence[PurgedTable], reasons: dict[str, str]) -> Iterator[str]:
    """Yields the tables of which purged files still exist, with the reason that VACUUM reported."""
    by_name = {(target.pipeline, target.table): target for target in purge_targets(namespace)}
    for record in purged:
        target = by_name.get((record.pipeline, record.table))
        if target is None:
            continue
        root = arrow_path(target.lake.storage, target.key)
        remaining = sum(1 for _ in existing_files(target.lake, [f"{root}/{path}" for path in record.removed_files]))
        if remaining:
            name = f"{record.pipeline}.{record.table}"
            reason = reasons.get(name) or "VACUUM gave no reason"
            yield f"{name}: {remaining} of {len(record.removed_files)} files; {reason}"


def _vacuum_undeclared(target: PurgeTarget, now: datetime) -> None:
    delta_table = target.lake.open(target.key)
    if delta_table is None:
        return
    hours = MINIMUM_RETENTION_HOURS
    metadata = user_metadata(
        pipeline=target.pipeline, batch=delta_table.version(), operation=OPERATION, retention_hours=hours, mode="full"
    )
    vacuum_files(
        target.lake, target.objects, target.key, hours=hours, full=True, dry_run=False, now=now, user_metadata=metadata
    )
