"""VACUUM of what windows took out: when its retention has passed, what holds it back, and whether the files are gone.

Time decides nothing here: a VACUUM that only counts, one that leaves a table out, and one that keeps more for a reader
all end without an error. So the files that the purges took out are looked for one by one, and as long as one is there
no request that needed it goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from deltaworks.control.provenance import user_metadata
from deltaworks.control.records.erasure_window import PurgedTable
from deltaworks.erasure.namespace import Namespace
from deltaworks.erasure.purge_window import PurgeTarget, purge_targets
from deltaworks.maintenance.vacuum import OPERATION, vacuum_tables
from deltaworks.maintenance.vacuum_files import vacuum_files
from deltaworks.maintenance.vacuum_holds import MARGIN_HOURS, MINIMUM_RETENTION_HOURS, holds_on
from deltaworks.tables.lake import arrow_path
from deltaworks.tables.protected_files import existing_files


@dataclass(frozen=True, slots=True, kw_only=True)
class VacuumOutcome:
    """What became of a VACUUM for erasures.

    Args:
        due_at: from when it may delete what was purged; it has not begun before.
        holds: who holds files back, in words.
        left: files that are still there though their time has passed, as `<pipeline>.<table>: <why>`.
    """

    due_at: datetime
    holds: tuple[str, ...] = ()
    remaining: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether all of it is gone."""
        return not self.holds and not self.remaining


def vacuum_due_at(namespace: Namespace, purged: Sequence[PurgedTable]) -> datetime:
    """From when VACUUM may delete what these purges took out."""
    newest = max((record.at_ms for record in purged), default=0)
    retention = max(namespace.retention, timedelta(hours=MINIMUM_RETENTION_HOURS))
    return datetime.fromtimestamp(newest / 1000, tz=UTC) + retention


class NamespaceVacuum:
    """VACUUM of one run over requests: once, however many windows are due. Used by one thread."""

    def __init__(self, namespace: Namespace, *, now: datetime) -> None:
        self._namespace = namespace
        self._now = now
        self._reasons: dict[str, str] | None = None

    def delete_purged_files(self, purged: Sequence[PurgedTable]) -> VacuumOutcome:
        """Delete the files that these purges took out, by listing folders: what no commit ever named goes as well.

        Idempotent; safe beside writers and readers, as any VACUUM is. Before its time it does nothing.

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
        left = tuple(remaining_files(self._namespace, touched, self._reasons))
        return VacuumOutcome(due_at=due, holds=holds, remaining=left)

    def _vacuum_all(self) -> dict[str, str]:
        """VACUUM of every table; what it said of each that its pipeline declares."""
        reasons: dict[str, str] = {}
        for spec in self._namespace.pipelines:
            for result in vacuum_tables(None, self._namespace.catalog, spec.pipeline, dry_run=False, mode="full"):
                reasons[f"{spec.pipeline}.{result.table}"] = result.reason
        for place in purge_targets(self._namespace):
            # Readers, the vault, and copies that a reprocess made.
            if f"{place.pipeline}.{place.table}" not in reasons:
                _vacuum_undeclared(place, self._now)
        return reasons


def blocking_holds(namespace: Namespace, purged: Sequence[PurgedTable]) -> Iterator[str]:
    """Who needs files that these purges took out: readers, restores and turns that began before, in words."""
    by_pipeline = {spec.pipeline: spec for spec in namespace.pipelines}
    for record in purged:
        if record.pipeline not in by_pipeline:
            continue
        at = datetime.fromtimestamp(record.at_ms / 1000, tz=UTC)
        home = namespace.home(record.pipeline)
        for hold in holds_on(namespace.catalog, namespace.lake, home, record.table):
            if hold.since is None or hold.since - timedelta(hours=MARGIN_HOURS) < at:
                yield f"{record.pipeline}.{record.table}: {hold.by}"


def remaining_files(namespace: Namespace, purged: Sequence[PurgedTable], reasons: dict[str, str]) -> Iterator[str]:
    """The tables of which files that these purges took out are still there, with what VACUUM said of each."""
    by_name = {(place.pipeline, place.table): place for place in purge_targets(namespace)}
    for record in purged:
        place = by_name.get((record.pipeline, record.table))
        if place is None:
            continue
        root = arrow_path(place.lake.storage, place.key)
        remaining = sum(1 for _ in existing_files(place.lake, [f"{root}/{path}" for path in record.removed_files]))
        if remaining:
            name = f"{record.pipeline}.{record.table}"
            yield f"{name}: {remaining} of {len(record.removed_files)} files; {reasons.get(name) or 'VACUUM gave no reason'}"


def _vacuum_undeclared(target: PurgeTarget, now: datetime) -> None:
    opened = target.lake.open(target.key)
    if opened is None:
        return
    hours = MINIMUM_RETENTION_HOURS
    metadata = user_metadata(
        pipeline=target.pipeline, batch=opened.version(), operation=OPERATION, retention_hours=hours, mode="full"
    )
    vacuum_files(
        target.lake, target.objects, target.key, hours=hours, full=True, dry_run=False, now=now, user_metadata=metadata
    )
