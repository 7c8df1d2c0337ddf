"""Advances the erasure requests of a namespace; the purge window and the scan run once for all of them.

A state is recorded after its step. So an interrupted run repeats the step, and every step is idempotent. If a request
cannot advance, the result contains the reason; if an operator must act, the alert `ERASURE_BLOCKED` is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.locks.exclusive import exclusive_lock
from deltaworks.control.provenance import current_run
from deltaworks.control.records.erasure import ErasureRequest, ErasureState, ErasureWindows
from deltaworks.erasure.certification import certify
from deltaworks.erasure.landing_sweep import LandingReport, LandingSweep, sweep_detail
from deltaworks.erasure.namespace import Namespace
from deltaworks.erasure.purge_window import PurgeWindow, next_window, unfinished_work
from deltaworks.erasure.remaining_references import remove_gold_shadows
from deltaworks.erasure.requests import delete_ended_persons, read_person, write_person
from deltaworks.erasure.row_counts import person_of_token
from deltaworks.erasure.scan import MAX_NAMED, ScanReport, scan_namespace
from deltaworks.erasure.suppression import blocking_streams, pending_sealed_files, suppress_person
from deltaworks.erasure.token_search import TokenSearch, combine_searches
from deltaworks.erasure.vacuum_purged import NamespaceVacuum, VacuumOutcome
from deltaworks.errors import ConcurrencyError
from deltaworks.privacy.paths import vault_page_of

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
        return "resolved", {"tokens": len(person.tokens), "tokens_sha256": person.digest, "shared": person.shared}

    def _suppress(self, request: ErasureRequest) -> tuple[ErasureState, dict[str, Any]]:
        record = suppress_person(self._namespace, request, read_person(self._namespace, request))
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
