"""A purge window: deletes the rows of all waiting people from every table of their namespace.

A table that a stream writes is purged under its write turn, which prevents concurrent merges. Batches that were
prepared earlier have completed by then. Gold tables are not written: their changed dates are rebuilt, and the window
waits for the builds. An interrupted window continues where it stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import fs

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import WAIT_SECONDS, reread_lease
from deltaworks.control.locks.write_turn import write_turn
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import current_run
from deltaworks.control.records.erasure import ErasureRequest, ErasureWindow, ErasureWindows, PurgedTable
from deltaworks.control.records.reprocess import reprocess_ids
from deltaworks.errors import ConcurrencyError
from deltaworks.events.collector_sequence_numbers import CollectorSequenceNumbers
from deltaworks.maintenance.lost_events import find_collected_table
from deltaworks.privacy.erasure.person_resolution import MutationIntervals, Person, VaultIdentities, resolve_person
from deltaworks.privacy.erasure.purge_table import Mode, SequenceNumberRecorder, TablePurger, erasure_step
from deltaworks.privacy.erasure.requests import Namespace, read_person, require_privacy
from deltaworks.privacy.erasure.scan import ScanReport, personal_tables, remove_references
from deltaworks.privacy.erasure.token_search import TokenSearch, combine_searches
from deltaworks.privacy.paths import vault_identities, vault_links, vault_reveals
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.query import QUARANTINE
from deltaworks.tables.steps import read_last_replay


def sequence_number_recorder(spec: PipelineSpec, table: str) -> SequenceNumberRecorder | None:
    """Returns the recorder for rows of a table; None if the table's sequence numbers are not checked for losses."""
    collected = find_collected_table(spec)
    if collected is None or table not in (collected.table, QUARANTINE):
        return None

    def record_from_columns(rows: pa.RecordBatch, numbers: CollectorSequenceNumbers) -> None:
        columns = (_column_values(rows, name) for name in (collected.collector_column, collected.seq_column))
        for process, seq in zip(*columns, strict=True):
            numbers.add(process, seq)

    def record_from_raw(rows: pa.RecordBatch, numbers: CollectorSequenceNumbers) -> None:
        for raw in _column_values(rows, "raw"):
            numbers.add_raw(raw.encode() if isinstance(raw, str) else b"")

    return record_from_raw if table == QUARANTINE else record_from_columns


def _column_values(rows: pa.RecordBatch, name: str) -> list[object]:
    """Returns the values of a column; nulls if the file was written before the table had the column."""
    if name not in rows.schema.names:
        return [None] * rows.num_rows
    values: list[object] = rows.column(name).to_pylist()
    return values


#: Used instead of a pipeline's name for tables without one.
READERS, VAULT = "readers", "vault"


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeTarget:
    """A table to purge.

    Args:
        needs_write_turn: whether a stream writes the table.
        exemption_reason: why its rows are exempt; empty if they are purged.
        record_sequence_numbers: records the collector sequence numbers of purged rows.
    """

    lake: Lake
    objects: ObjectStore
    key: str
    pipeline: str
    table: str
    needs_write_turn: bool = False
    mode: Mode = "rows"
    exemption_reason: str = ""
    record_sequence_numbers: SequenceNumberRecorder | None = None


def purge_targets(namespace: Namespace) -> Iterator[PurgeTarget]:
    """Yields every table that may have rows of a person, except gold tables."""
    for spec in namespace.pipelines:
        yield from _pipeline_targets(namespace, spec)
    lake = namespace.lake
    selector = fs.FileSelector(arrow_path(lake.storage, paths.reader()), allow_not_found=True)
    for info in sorted(lake.filesystem.get_file_info(selector), key=lambda info: str(info.base_name)):
        if info.type is fs.FileType.Directory:
            key = paths.reader(info.base_name)
            yield PurgeTarget(lake=lake, objects=namespace.objects, key=key, pipeline=READERS, table=info.base_name)
    vault_modes: dict[str, Mode] = {vault_identities(): "rows", vault_links(): "rows"}
    # The records of reveals (look-ups of identities) stay, without the identity of the subject.
    vault_modes[vault_reveals()] = "identity"
    vault, objects = namespace.vault_lake, namespace.vault.objects
    for key, mode in vault_modes.items():
        yield PurgeTarget(lake=vault, objects=objects, key=key, pipeline=VAULT, table=key, mode=mode)


def _pipeline_targets(namespace: Namespace, spec: PipelineSpec) -> Iterator[PurgeTarget]:
    mode = require_privacy(spec).erase.mode
    for table in personal_tables(spec, namespace.home(spec.pipeline)):
        yield PurgeTarget(
            lake=namespace.lake,
            objects=namespace.objects,
            key=paths.table(spec.pipeline, table.name),
            pipeline=spec.pipeline,
            table=table.name,
            needs_write_turn=table.needs_write_turn,
            mode=mode,
            exemption_reason=table.exemption_reason,
            record_sequence_numbers=sequence_number_recorder(spec, table.name),
        )


def unfinished_work(namespace: Namespace) -> list[str]:
    """Describes operations in progress that could restore rows after a window: restores, start overs, reprocesses,
    replays.
    """
    return [reason for spec in namespace.pipelines for reason in _unfinished_in_pipeline(namespace, spec.pipeline)]


def _unfinished_in_pipeline(namespace: Namespace, pipeline: str) -> Iterator[str]:
    home = namespace.home(pipeline)
    rollback = home.rollbacks.unfinished()
    if rollback is not None:
        yield f"the restore of {pipeline}.{rollback.table}"
    if not home.start_overs.newest()[1]:
        yield f"the start-over of {pipeline}"
    generation = home.generations.current()
    for name in reprocess_ids(home.objects, pipeline):
        records = home.reprocess(name)
        plan = records.plan()
        # A reprocess that has not read yet will use the current suppression list. A reprocess of another generation
        # never completes.
        has_read = plan is not None and plan.generation == generation and records.files() is not None
        if has_read and records.completion() is None:
            command = f"deltaworks reprocess {pipeline} --id {name} --no-dry-run"
            yield f"the reprocess {name} of {pipeline} (complete it with `{command}`)"
    yield from _unfinished_replays(namespace, home)


def _unfinished_replays(namespace: Namespace, home: PipelineHome) -> Iterator[str]:
    """Yields replays that read rows before a suppression: running ones, and interrupted ones with prepared rows."""
    try:
        # Replays that start later use the current suppression list.
        with reread_lease(home).held(wait_seconds=WAIT_SECONDS):
            ordinal = 1 + read_last_replay(namespace.lake, home.pipeline)
            if home.replays.read(ordinal) is not None:
                command = f"deltaworks quarantine replay {home.pipeline}"
                yield f"the replay {ordinal} of {home.pipeline} (complete it with `{command} --no-dry-run`)"
    except ConcurrencyError:
        yield f"another process that reads landed rows of {home.pipeline} again"


class PurgeWindow:
    """Runs one window, under the namespace's lease. Not thread-safe.

    Args:
        requests: token search by request id.
        fault: test hook, called with `purged <pipeline>.<table>` and `noted <pipeline>.<table>`.
    """

    def __init__(
        self,
        namespace: Namespace,
        window: ErasureWindow,
        requests: dict[str, TokenSearch],
        *,
        fault: Callable[[str], None] = lambda point: None,
    ) -> None:
        self._namespace = namespace
        self._window = window
        self._requests = requests
        self._records = ErasureWindows(namespace.objects, namespace.name)
        self._fault = fault

    def run(self) -> list[PurgedTable]:
        """Purges all remaining tables. Returns the purges of all tables. Idempotent.

        Raises:
            ConcurrencyError: TURN_NOT_GRANTED, TURN_LOST, COMMIT_CONTENDED: run it again.
            ContractError: see `TablePurger.purge`.
        """
        purged = [self._purge_target(target) for target in purge_targets(self._namespace)]
        removed_files = {
            f"{record.pipeline}.{record.table}": frozenset(record.removed_files)
            for record in purged
            if record.removed_files
        }
        for spec in self._namespace.pipelines:
            remove_references(
                self._namespace, spec.pipeline, combine_searches(self._requests.values()), purged=removed_files
            )
        return purged

    def stale_gold_tables(self) -> list[str]:
        """Returns gold tables that are not rebuilt yet and still have rows of these people."""
        stale = []
        for spec in self._namespace.pipelines:
            for name in [table.name for table in spec.gold.tables]:
                key = paths.table(spec.pipeline, name)
                purger = TablePurger(
                    self._namespace.lake,
                    self._namespace.objects,
                    key,
                    pipeline=spec.pipeline,
                    table=name,
                    requests=self._requests,
                )
                if purger.survey().hits:
                    stale.append(f"{spec.pipeline}.{name}")
        return stale

    def _purge_target(self, target: PurgeTarget) -> PurgedTable:
        number = self._window.number
        recorded = self._records.table(number, target.pipeline, target.table)
        if recorded is not None:
            return recorded
        purger = TablePurger(
            target.lake,
            target.objects,
            target.key,
            pipeline=target.pipeline,
            table=target.table,
            requests=self._requests,
            record_sequence_numbers=target.record_sequence_numbers,
        )
        if target.exemption_reason:
            rows, why = purger.survey().rows, target.exemption_reason
            untouched = PurgedTable.unchanged(target.pipeline, target.table, rows=rows, retention_reason=why)
            return self._records.record_table(number, untouched)
        with contextlib.ExitStack() as stack:
            check: Callable[[], None] = lambda: None  # noqa: E731
            # A table without matching rows needs no write turn.
            if target.needs_write_turn and purger.survey().by_file:
                turn = write_turn(target.objects, target.pipeline, target.table, by=current_run())
                check = stack.enter_context(turn).check
            purge = purger.purge(
                erasure_step(target.pipeline, target.table, number), mode=target.mode, before_commit=check
            )
        self._fault(f"purged {target.pipeline}.{target.table}")
        recorded = self._records.record_table(number, purge)
        self._fault(f"noted {target.pipeline}.{target.table}")
        return recorded


def next_window(
    namespace: Namespace, waiting: Mapping[str, TokenSearch], *, scan: Callable[[], ScanReport]
) -> ErasureWindow | None:
    """Returns the interrupted window, or a new one for the waiting requests; None if there are no waiting requests.

    Args:
        waiting: token search by id of requests that are shredded and not purged.
        scan: scans the lake for all of them before the purge. The final scan is compared with this one.
    """
    records = ErasureWindows(namespace.objects, namespace.name)
    newest = records.newest()
    window = records.read(newest) if newest else None
    if window is not None and set(window.requests) & set(waiting):
        return window
    if not waiting:
        return None
    report = scan()
    return records.create_next(
        {request: report.count_objects(search.tokens) for request, search in sorted(waiting.items())}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonRowCount:
    """Rows of one person in one table, with their first and last date."""

    pipeline: str
    table: str
    rows: int
    first_date: str = ""
    last_date: str = ""
    exemption_reason: str = ""

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """The count as cells: table, rows, first date, last date, and why the rows are exempt."""
        exemption = f"kept: {self.exemption_reason}" if self.exemption_reason else ""
        return f"{self.pipeline}.{self.table}", f"{self.rows:,}", self.first_date, self.last_date, exemption


def person_of_token(namespace: Namespace, token: str) -> Person:
    """Resolves a token to a person, from the current content of the vault and the mutations."""
    origins = [MutationIntervals(namespace.lake, spec) for spec in namespace.pipelines]
    identities = VaultIdentities(namespace.vault)
    return resolve_person(token, identities, origins, kinds=namespace.subject_kinds)


def count_rows(namespace: Namespace, person: Person) -> Iterator[PersonRowCount]:
    """Yields the row count of a person for every table with rows."""
    search = {"person": TokenSearch(person.tokens)}
    for target in purge_targets(namespace):
        purger = TablePurger(
            target.lake, target.objects, target.key, pipeline=target.pipeline, table=target.table, requests=search
        )
        survey = purger.survey()
        if survey.hits:
            dates = sorted(survey.dates)
            yield PersonRowCount(
                pipeline=target.pipeline,
                table=target.table,
                rows=survey.hits,
                first_date=dates[0],
                last_date=dates[-1],
                exemption_reason=target.exemption_reason,
            )


def person_of_request(namespace: Namespace, request: ErasureRequest) -> Person:
    """Returns the person of an open request, as recorded, or resolved now if it is not recorded yet."""
    person = read_person(namespace, request)
    return person if request.has_reached("resolved") else person_of_token(namespace, person.subjects[0])
