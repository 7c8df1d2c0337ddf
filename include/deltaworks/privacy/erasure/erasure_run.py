"""Advances the erasure requests of a namespace; the purge window and the scan run once for all of them.

A state is recorded after its step. So an interrupted run repeats the step, and every step is idempotent. If a request
cannot advance, the result contains the reason; if an operator must act, the alert `ERASURE_BLOCKED` is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from deltaworks import __version__
from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.locks.exclusive import exclusive_lock
from deltaworks.control.provenance import current_run, user_metadata
from deltaworks.control.records.certificate import (
    Certificate,
    Certificates,
    CertifiedLanding,
    CertifiedScan,
    CertifiedTable,
)
from deltaworks.control.records.erasure import ErasureRequest, ErasureState, ErasureWindows, PurgedTable
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.maintenance.vacuum import OPERATION, vacuum_tables
from deltaworks.maintenance.vacuum_files import vacuum_files
from deltaworks.maintenance.vacuum_holds import MARGIN_HOURS, MINIMUM_RETENTION_HOURS, holds_on
from deltaworks.privacy.erasure.landing_sweep import LandingReport, LandingSweep, sweep_detail
from deltaworks.privacy.erasure.person_resolution import Person
from deltaworks.privacy.erasure.purge_window import (
    PurgeTarget,
    PurgeWindow,
    next_window,
    person_of_token,
    purge_targets,
    unfinished_work,
)
from deltaworks.privacy.erasure.requests import (
    Namespace,
    delete_ended_persons,
    read_person,
    require_privacy,
    write_person,
)
from deltaworks.privacy.erasure.scan import MAX_NAMED, ScanReport, log_clean_after, remove_gold_shadows, scan_namespace
from deltaworks.privacy.erasure.suppression import blocking_streams, pending_sealed_files, suppress_person
from deltaworks.privacy.erasure.token_search import TokenSearch, combine_searches
from deltaworks.privacy.paths import vault_page_of
from deltaworks.tables.lake import arrow_path
from deltaworks.tables.protected_files import existing_files


def certify(namespace: Namespace, request: ErasureRequest, *, by: str) -> Certificate:
    """Writes the certificate of a request in state `verified`. Idempotent.

    Raises:
        ContractError: ERASURE_MISCOUNTED, row counts of a table are inconsistent; CERTIFICATES_BROKEN.
    """
    certificates = Certificates(namespace.objects, namespace.name, namespace.vault.objects)
    existing = certificates.read(request.request_id)
    if existing is not None:
        return certificates.append(existing)
    number, previous = certificates.newest()
    certificate = _create_certificate(namespace, request, number=number + 1, previous=previous, by=by)
    wrong = [f"{table.pipeline}.{table.table}" for table in certificate.tables if not table.is_consistent]
    if wrong:
        raise ContractError(
            "ERASURE_MISCOUNTED",
            f"Row counts of {', '.join(wrong)} are inconsistent in window {certificate.window}: nothing is certified.",
            hint=("Compare the version of the purge with the previous one, and restore the table if rows are missing."),
        )
    return certificates.append(certificate)


def _create_certificate(
    namespace: Namespace, request: ErasureRequest, *, number: int, previous: str, by: str
) -> Certificate:
    detail = {step.state: step.detail for step in request.steps}
    window = int(detail["purged"]["window"])
    purged = ErasureWindows(namespace.objects, namespace.name).tables(window)
    verified = detail["verified"]
    purged_at = request.reached_at("purged")
    return Certificate(
        namespace=namespace.name,
        request_id=request.request_id,
        number=number,
        received_at=request.received_at.isoformat(),
        deadline_at=request.deadline_at.isoformat(),
        times={step.state: step.at for step in request.steps},
        tokens=int(detail["resolved"]["tokens"]),
        tokens_sha256=str(detail["resolved"]["tokens_sha256"]),
        shared_tokens=int(detail["resolved"]["shared"]),
        mode=" ".join(sorted({require_privacy(spec).erase.mode for spec in namespace.pipelines})),
        window=window,
        suppression=int(detail["suppressed"]["number"]),
        key_pages=tuple(detail["shredded"]["pages"]),
        tables=tuple(_certified_table(record, request.request_id) for record in purged),
        scan=CertifiedScan(
            objects=int(verified["objects"]),
            bytes=int(verified["bytes"]),
            hits_before=int(detail["purged"]["hits_before"]),
            hits=0,
            log_hits=int(verified["in_logs"]),
            retained=int(verified["kept"]),
            damaged=tuple(verified["damaged"]),
        ),
        holds=tuple(detail["vacuumed"]["holds"]),
        log_clean_after=log_clean_after(_log_retentions(namespace), purged_at).isoformat(),
        landing_clean_after=landing_clean_after(namespace, request.reached_at("suppressed")).isoformat(),
        landing=_certified_landing(detail["purged"], verified),
        code_version=__version__,
        by=by,
        previous_sha256=previous,
    )


def _certified_landing(purged: dict[str, Any], verified: dict[str, Any]) -> CertifiedLanding:
    """Returns the totals of both landing sweeps of a request."""
    last, first = verified["landing"], purged["landing"]

    def total(name: str) -> int:
        return int(last[name]) + int(first[name])

    return CertifiedLanding(
        objects=last["objects"],
        bytes=last["bytes"],
        rewritten=total("rewritten"),
        removed_versions=total("removed"),
        events=total("events"),
        unreadable_events=last["unreadable"],
    )


def _certified_table(record: PurgedTable, request_id: str) -> CertifiedTable:
    return CertifiedTable(
        pipeline=record.pipeline,
        table=record.table,
        version=record.version,
        rows_before=record.rows_before,
        rows_after=record.rows_after,
        erased_before=record.erased_before,
        erased_after=record.erased_after,
        other_rows_before=record.other_rows_before,
        other_rows_after=record.other_rows_after,
        person_rows=record.by_request.get(request_id, 0),
        files_removed=len(record.removed_files),
        retention_reason=record.retention_reason,
    )


def landing_clean_after(namespace: Namespace, suppressed_at: datetime) -> datetime:
    """Returns the time after which no object that landed before the suppression exists."""
    return suppressed_at + timedelta(days=max(require_privacy(spec).erase.landing_days for spec in namespace.pipelines))


def _log_retentions(namespace: Namespace) -> list[str]:
    retentions = []
    for spec in namespace.pipelines:
        for table in spec.tables:
            delta_table = namespace.lake.open(namespace.home(spec.pipeline).table(table.name))
            if delta_table is not None:
                retentions.append(delta_table.metadata().configuration.get("delta.logRetentionDuration") or "")
    return retentions


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


BLOCKED = "ERASURE_BLOCKED"
#: Handlers by current state. A handler returns the next state and its details.
StateHandlers = dict[ErasureState, Callable[[ErasureRequest], tuple[ErasureState, dict[str, Any]]]]
_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureResult:
    """The state of a request after a run, and why it waits; the reason is empty if the next run continues."""

    request: str
    state: ErasureState
    deadline: str
    waiting_for: str = ""


class _MustWait(Exception):
    """Raised if a request cannot advance now. `needs_action` is set if an operator must act."""

    def __init__(self, reason: str, *, needs_action: bool = False) -> None:
        super().__init__(reason)
        self.blocked = needs_action


class ErasureRun:
    """One run over the open requests of a namespace. Not thread-safe.

    Args:
        may_purge: whether rows may be purged now; otherwise requests advance to `shredded` at most.
        fault: test hook, called before and after each state is recorded.
    """

    def __init__(
        self,
        namespace: Namespace,
        *,
        now: datetime,
        may_purge: bool = True,
        fault: Callable[[str], None] = lambda point: None,
    ) -> None:
        self._namespace = namespace
        self._now = now
        self._may_purge = may_purge
        self._fault = fault
        self._namespace_vacuum = NamespaceVacuum(namespace, now=now)
        self._vacuums: dict[int, VacuumOutcome] = {}
        self._report = ScanReport()
        self._landing = LandingReport()

    def run(self) -> list[ErasureResult]:
        """Advances every open request as far as possible. Idempotent; exclusive per namespace.

        Raises:
            ConcurrencyError: ERASURE_RUNNING, another run is active; TURN_NOT_GRANTED, TURN_LOST, COMMIT_CONTENDED.
            ContractError: ERASURE_MISCOUNTED, CERTIFICATES_BROKEN, and errors of reading tables.
        """
        name = self._namespace.name

        def lost() -> ConcurrencyError:
            return ConcurrencyError("ERASURE_RUNNING", f"Another run is processing the erasures of {name!r}.")

        key = paths.erasure_lease(name)
        with exclusive_lock(
            self._namespace.objects,
            key,
            name=name,
            wait_seconds=_WAIT_SECONDS,
            lost_error=lost,
            held_error=lambda _: lost(),
        ) as lock:
            waits: dict[str, _MustWait] = {}
            requests = {request.request_id: request for request in self._namespace.erasures.open_requests()}
            for request_id, request in list(requests.items()):
                requests[request_id] = self._run_until_shredded(request, waits)
                lock.check()
            requests = self._run_window(requests, waits)
            lock.check()
            for request_id, request in list(requests.items()):
                requests[request_id] = self._run_handlers(request, {"purged": self._vacuum}, waits)
                lock.check()
            self._scan([request for request in requests.values() if request.state == "vacuumed"])
            lock.check()
            for request_id, request in list(requests.items()):
                requests[request_id] = self._run_from_vacuumed(request, waits)
            delete_ended_persons(self._namespace)
        return [self._result(request, waits.get(request_id)) for request_id, request in requests.items()]

    def _run_until_shredded(self, request: ErasureRequest, waits: dict[str, _MustWait]) -> ErasureRequest:
        """Advances a request from `received` to `shredded`."""
        steps: StateHandlers = {
            "received": self._resolve,
            "resolved": self._suppress,
            "suppressed": self._shred,
        }
        return self._run_handlers(request, steps, waits)

    def _run_from_vacuumed(self, request: ErasureRequest, waits: dict[str, _MustWait]) -> ErasureRequest:
        """Advances a request from `vacuumed` to its last state."""
        steps: StateHandlers = {
            "vacuumed": self._verify,
            "verified": self._certify,
        }
        return self._run_handlers(request, steps, waits)

    def _scan(self, requests: list[ErasureRequest]) -> None:
        """Scans once for all requests whose VACUUM is complete."""
        if requests:
            search = combine_searches(map(self._search, requests))
            for spec in self._namespace.pipelines:
                # A refresh that ran during the window may have died and left a shadow table.
                remove_gold_shadows(self._namespace, spec.pipeline, search)
            self._report = scan_namespace(self._namespace, search)
            # Objects that landed after the window are rewritten here.
            self._landing = self._sweep_landing({request.request_id: self._search(request) for request in requests})

    def _run_handlers(
        self, request: ErasureRequest, steps: StateHandlers, waits: dict[str, _MustWait]
    ) -> ErasureRequest:
        while request.state in steps:
            try:
                state, detail = steps[request.state](request)
            except _MustWait as waiting:
                waits[request.request_id] = waiting
                return request
            request = self._record_state(request, state, detail)
        return request

    def _record_state(self, request: ErasureRequest, state: ErasureState, detail: dict[str, Any]) -> ErasureRequest:
        self._fault(f"before {state}")
        request = self._namespace.erasures.record_state(request, state, by=current_run(), detail=detail)
        self._fault(f"after {state}")
        return request

    def _resolve(self, request: ErasureRequest) -> tuple[ErasureState, dict[str, Any]]:
        space = self._namespace
        received = read_person(space, request)
        person = person_of_token(space, received.subjects[0])
        write_person(space, request, person)
        detail: dict[str, Any] = {"tokens": len(person.tokens), "tokens_sha256": person.digest}
        detail |= {"shared": person.shared, "subjects": len(person.subjects), "others": person.others}
        return "resolved", detail

    def _suppress(self, request: ErasureRequest) -> tuple[ErasureState, dict[str, Any]]:
        person = read_person(self._namespace, request)
        if person.needs_confirmation(self._namespace.confirm_above) and not request.is_confirmed:
            raise _MustWait(_confirmation_reason(request, person), needs_action=True)
        record = suppress_person(self._namespace, request, person)
        self._fault("suppressing")
        blocking = blocking_streams(self._namespace, record, now=self._now)
        if blocking:
            raise _MustWait("; ".join(blocking), needs_action=any("held" in reason for reason in blocking))
        return "suppressed", {"number": record.number}

    def _shred(self, request: ErasureRequest) -> tuple[ErasureState, dict[str, Any]]:
        person = read_person(self._namespace, request)
        # A vault ingest with an older suppression list would create the key again.
        with self._namespace.vault.lock():
            self._namespace.vault.keys.shred(person.subjects)
        pages = sorted({vault_page_of(subject) for subject in person.subjects})
        return "shredded", {"pages": pages}

    def _run_window(
        self, requests: dict[str, ErasureRequest], waits: dict[str, _MustWait]
    ) -> dict[str, ErasureRequest]:
        """Runs the purge window for all requests in state `shredded`."""
        waiting = [request_id for request_id, request in requests.items() if request.state == "shredded"]
        if not waiting:
            return requests
        if not self._may_purge:
            return self._mark_waiting(requests, waiting, waits, _MustWait("the nightly purge window"))
        unfinished = unfinished_work(self._namespace)
        if unfinished:
            wait = _MustWait(f"{', '.join(unfinished)} to complete", needs_action=True)
            return self._mark_waiting(requests, waiting, waits, wait)
        searches = {request_id: self._search(requests[request_id]) for request_id in waiting}
        fixed = next_window(
            self._namespace, searches, scan=lambda: scan_namespace(self._namespace, combine_searches(searches.values()))
        )
        if fixed is None:
            return requests
        members = {request_id: searches[request_id] for request_id in fixed.requests if request_id in searches}
        window = PurgeWindow(self._namespace, fixed, members, fault=self._fault)
        purged = window.run()
        stale = window.stale_gold_tables()
        if stale:
            return self._mark_waiting(requests, waiting, waits, _MustWait(f"gold to be built: {', '.join(stale)}"))
        landing = self._sweep_landing(members)
        for request_id in members:
            rows = sum(record.by_request.get(request_id, 0) for record in purged)
            detail: dict[str, Any] = {"window": fixed.number, "rows": rows, "hits_before": fixed.requests[request_id]}
            detail["landing"] = sweep_detail(landing, request_id)
            requests[request_id] = self._record_state(requests[request_id], "purged", detail)
        return requests

    def _sweep_landing(self, searches: dict[str, TokenSearch]) -> LandingReport:
        """Rewrites landed objects without these people."""
        return LandingSweep(self._namespace, searches, fault=self._fault).run()

    def _search(self, request: ErasureRequest) -> TokenSearch:
        return TokenSearch(read_person(self._namespace, request).tokens)

    def _mark_waiting(
        self, requests: dict[str, ErasureRequest], waiting: list[str], waits: dict[str, _MustWait], wait: _MustWait
    ) -> dict[str, ErasureRequest]:
        waits.update(dict.fromkeys(waiting, wait))
        return requests

    def _vacuum(self, request: ErasureRequest) -> tuple[ErasureState, dict[str, Any]]:
        step = request.step("purged")
        number = 0 if step is None else int(step.detail["window"])
        if number not in self._vacuums:
            purged = ErasureWindows(self._namespace.objects, self._namespace.name).tables(number)
            self._vacuums[number] = self._namespace_vacuum.delete_purged_files(purged)
        outcome = self._vacuums[number]
        if self._now < outcome.due_at:
            raise _MustWait(f"VACUUM retention, until {outcome.due_at:%Y-%m-%d %H:%M}")
        if not outcome.is_complete:
            raise _MustWait("; ".join((*outcome.holds, *outcome.remaining)), needs_action=True)
        return "vacuumed", {"holds": list(outcome.holds), "due_at": outcome.due_at.isoformat()}

    def _verify(self, request: ErasureRequest) -> tuple[ErasureState, dict[str, Any]]:
        suppressed = request.step("suppressed")
        sealed = pending_sealed_files(self._namespace, 0 if suppressed is None else int(suppressed.detail["number"]))
        if sealed:
            raise _MustWait(sealed)
        tokens = read_person(self._namespace, request).tokens
        leaks = sorted(self._report.keys_with("leak", tokens))
        if leaks:
            raise _MustWait(f"tokens remain in {', '.join(leaks[:MAX_NAMED])}", needs_action=True)
        if self._landing.blocked:
            listed = ", ".join(self._landing.blocked)
            raise _MustWait(f"landed objects that cannot be rewritten: {listed}", needs_action=True)
        return "verified", {
            "landing": sweep_detail(self._landing, request.request_id),
            "objects": self._report.objects,
            "bytes": self._report.bytes,
            "in_logs": len(self._report.keys_with("log", tokens)),
            "kept": len(self._report.keys_with("kept", tokens)),
            "damaged": list(self._report.damaged),
        }

    def _certify(self, request: ErasureRequest) -> tuple[ErasureState, dict[str, Any]]:
        certificate = certify(self._namespace, request, by=current_run())
        return "certified", {"number": certificate.number}

    def _result(self, request: ErasureRequest, waiting: _MustWait | None) -> ErasureResult:
        subject = f"{request.namespace} {request.request_id}"
        if waiting is not None and waiting.blocked:
            raise_alert(
                self._namespace.objects,
                cause=BLOCKED,
                subject=subject,
                summary=(
                    f"The request is {request.state} and waits for: {waiting}. Deadline: "
                    f"{request.deadline_at:%Y-%m-%d}."
                ),
                now=self._now,
            )
        else:
            resolve_alert(self._namespace.objects, cause=BLOCKED, subject=subject, now=self._now)
        return ErasureResult(
            request=request.request_id,
            state=request.state,
            deadline=request.deadline_at.isoformat(timespec="minutes"),
            waiting_for="" if waiting is None else str(waiting),
        )


def _confirmation_reason(request: ErasureRequest, person: Person) -> str:
    """Returns what a second person has to confirm, and how."""
    what = f"it has {len(person.subjects):,} subjects"
    if person.others:
        what = f"its token is shared by {person.others:,} subjects, which are spared"
    return (
        f"a second person to confirm it, as {what}: "
        f"`deltaworks privacy advance {request.namespace} --confirm {request.request_id}`"
    )
