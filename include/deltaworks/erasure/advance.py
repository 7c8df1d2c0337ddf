"""Brings requests on: each as far as it can come now, the window and the scan once for all of them.

A state is written after its deed, so a run that died is repeated from the state before: every deed is idempotent. What
a request waits for is said in its result, and alerted on where somebody has to act (`ERASURE_BLOCKED`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import erasure_paths, vault_paths
from deltaworks.control.locks.exclusive import exclusive_lock
from deltaworks.control.provenance import current_run
from deltaworks.control.records.erasure import ErasureRequest, ErasureState
from deltaworks.control.records.erasure_window import ErasureWindows
from deltaworks.erasure.certify import certify
from deltaworks.erasure.counting import whom
from deltaworks.erasure.landing_sweep import LandingReport, LandingSweep, landing_detail
from deltaworks.erasure.namespace import Namespace
from deltaworks.erasure.receiving import forget_ended, note_person, person_of
from deltaworks.erasure.remnants import remove_gold_shadows
from deltaworks.erasure.scan import MOST_NAMED, ScanReport, scan_namespace
from deltaworks.erasure.suppress import sealed_before, streams_behind, suppress
from deltaworks.erasure.token_search import TokenSearch, all_of
from deltaworks.erasure.vacuum_purged import NamespaceVacuum, VacuumOutcome
from deltaworks.erasure.window import Window, next_window, unfinished_work
from deltaworks.errors import ConcurrencyError

BLOCKED = "ERASURE_BLOCKED"
#: By the state that a request is in, the deed that brings it to the next, with what that came to.
Steps = dict[ErasureState, Callable[[ErasureRequest], tuple[ErasureState, dict[str, Any]]]]
_WAIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureResult:
    """Where a request is after a run, and what it waits for; empty where the next run goes on."""

    request: str
    state: ErasureState
    deadline: str
    waits_for: str = ""


class _Waits(Exception):
    """A request cannot go on now; `blocked` where somebody has to act."""

    def __init__(self, reason: str, *, blocked: bool = False) -> None:
        super().__init__(reason)
        self.blocked = blocked


class Advance:
    """One run over the open requests of a namespace. Used by one thread.

    Args:
        windows: whether rows may be purged now; without, requests come as far as `shredded`.
        fault: called before and after each state is written, by tests.
    """

    def __init__(
        self,
        namespace: Namespace,
        *,
        now: datetime,
        windows: bool = True,
        fault: Callable[[str], None] = lambda point: None,
    ) -> None:
        self._namespace = namespace
        self._now = now
        self._windows = windows
        self._fault = fault
        self._vacuum_once = NamespaceVacuum(namespace, now=now)
        self._vacuums: dict[int, VacuumOutcome] = {}
        self._report = ScanReport()
        self._landing = LandingReport()

    def run(self) -> list[ErasureResult]:
        """Bring every open request as far as it can come. Idempotent; one run at a time.

        Raises:
            ConcurrencyError: ERASURE_RUNNING, another run is at it; TURN_NOT_GRANTED, TURN_LOST, COMMIT_CONTENDED.
            ContractError: ERASURE_MISCOUNTED, CERTIFICATES_BROKEN, and what reading tables raises.
        """
        name = self._namespace.name

        def lost() -> ConcurrencyError:
            return ConcurrencyError(
                "ERASURE_RUNNING",
                f"Another run brings the erasures of {name!r} on.",
                hint="Nothing: it does what this one would have done.",
            )

        key = erasure_paths.erasure_lease(name)
        with exclusive_lock(
            self._namespace.objects, key, name=name, wait_seconds=_WAIT_SECONDS, lost=lost, held=lambda _: lost()
        ) as lock:
            waits: dict[str, _Waits] = {}
            requests = {request.request_id: request for request in self._namespace.erasures.open()}
            for request_id, request in list(requests.items()):
                requests[request_id] = self._early(request, waits)
                lock.check()
            requests = self._purged(requests, waits)
            lock.check()
            for request_id, request in list(requests.items()):
                requests[request_id] = self._along(request, {"purged": self._vacuum}, waits)
                lock.check()
            self._scan([request for request in requests.values() if request.state == "vacuumed"])
            lock.check()
            for request_id, request in list(requests.items()):
                requests[request_id] = self._late(request, waits)
            forget_ended(self._namespace)
        return [self._result(request, waits.get(request_id)) for request_id, request in requests.items()]

    def _early(self, request: ErasureRequest, waits: dict[str, _Waits]) -> ErasureRequest:
        """From `received` to `shredded`, each request by itself."""
        steps: Steps = {
            "received": self._resolve,
            "resolved": self._suppress,
            "suppressed": self._shred,
        }
        return self._along(request, steps, waits)

    def _late(self, request: ErasureRequest, waits: dict[str, _Waits]) -> ErasureRequest:
        """From `vacuumed` to the end."""
        steps: Steps = {
            "vacuumed": self._verify,
            "verified": self._certify,
        }
        return self._along(request, steps, waits)

    def _scan(self, requests: list[ErasureRequest]) -> None:
        """One scan for all that VACUUM is done for."""
        if requests:
            search = all_of(map(self._search, requests))
            for spec in self._namespace.pipelines:
                # A refresh that was at work in the window may have died since.
                remove_gold_shadows(self._namespace, spec.pipeline, search)
            self._report = scan_namespace(self._namespace, search)
            # What has landed since the window has nobody to wait for.
            self._landing = self._swept({request.request_id: self._search(request) for request in requests})

    def _along(self, request: ErasureRequest, steps: Steps, waits: dict[str, _Waits]) -> ErasureRequest:
        while request.state in steps:
            try:
                state, detail = steps[request.state](request)
            except _Waits as waiting:
                waits[request.request_id] = waiting
                return request
            request = self._noted(request, state, detail)
        return request

    def _noted(self, request: ErasureRequest, state: ErasureState, detail: dict[str, Any]) -> ErasureRequest:
        self._fault(f"before {state}")
        request = self._namespace.erasures.append(request, state, by=current_run(), detail=detail)
        self._fault(f"after {state}")
        return request

    def _resolve(self, request: ErasureRequest) -> tuple[ErasureState, dict[str, Any]]:
        space = self._namespace
        received = person_of(space, request)
        person = whom(space, received.subjects[0])
        note_person(space, request, person)
        return "resolved", {"tokens": len(person.tokens), "tokens_sha256": person.digest, "shared": person.shared}

    def _suppress(self, request: ErasureRequest) -> tuple[ErasureState, dict[str, Any]]:
        record = suppress(self._namespace, request, person_of(self._namespace, request))
        self._fault("suppressing")
        behind = streams_behind(self._namespace, record, now=self._now)
        if behind:
            raise _Waits("; ".join(behind), blocked=any("held" in reason for reason in behind))
        return "suppressed", {"number": record.number}

    def _shred(self, request: ErasureRequest) -> tuple[ErasureState, dict[str, Any]]:
        person = person_of(self._namespace, request)
        # A job of the vault that began with an older list would make the key again.
        with self._namespace.vault.lock():
            self._namespace.vault.keys.shred(person.subjects)
        pages = sorted({vault_paths.page_of(subject) for subject in person.subjects})
        return "shredded", {"pages": pages}

    def _purged(self, requests: dict[str, ErasureRequest], waits: dict[str, _Waits]) -> dict[str, ErasureRequest]:
        """The window, for all who are shredded."""
        waiting = [request_id for request_id, request in requests.items() if request.state == "shredded"]
        if not waiting:
            return requests
        if not self._windows:
            return self._all_wait(requests, waiting, waits, _Waits("the window of the night"))
        unfinished = unfinished_work(self._namespace)
        if unfinished:
            wait = _Waits(f"{', '.join(unfinished)} to end", blocked=True)
            return self._all_wait(requests, waiting, waits, wait)
        searches = {request_id: self._search(requests[request_id]) for request_id in waiting}
        fixed = next_window(
            self._namespace, searches, scan=lambda: scan_namespace(self._namespace, all_of(searches.values()))
        )
        if fixed is None:
            return requests
        members = {request_id: searches[request_id] for request_id in fixed.requests if request_id in searches}
        window = Window(self._namespace, fixed, members, fault=self._fault)
        purged = window.run()
        behind = window.gold_behind()
        if behind:
            return self._all_wait(requests, waiting, waits, _Waits(f"gold to be built: {', '.join(behind)}"))
        landing = self._swept(members)
        for request_id in members:
            rows = sum(record.by_request.get(request_id, 0) for record in purged)
            detail: dict[str, Any] = {"window": fixed.number, "rows": rows, "hits_before": fixed.requests[request_id]}
            detail["landing"] = landing_detail(landing, request_id)
            requests[request_id] = self._noted(requests[request_id], "purged", detail)
        return requests

    def _swept(self, searches: dict[str, TokenSearch]) -> LandingReport:
        """Landed objects, gone through and put anew without these people."""
        return LandingSweep(self._namespace, searches, fault=self._fault).run()

    def _search(self, request: ErasureRequest) -> TokenSearch:
        return TokenSearch(person_of(self._namespace, request).tokens)

    def _all_wait(
        self, requests: dict[str, ErasureRequest], waiting: list[str], waits: dict[str, _Waits], wait: _Waits
    ) -> dict[str, ErasureRequest]:
        waits.update(dict.fromkeys(waiting, wait))
        return requests

    def _vacuum(self, request: ErasureRequest) -> tuple[ErasureState, dict[str, Any]]:
        step = request.step("purged")
        number = 0 if step is None else int(step.detail["window"])
        if number not in self._vacuums:
            purged = ErasureWindows(self._namespace.objects, self._namespace.name).tables(number)
            self._vacuums[number] = self._vacuum_once.delete(purged)
        outcome = self._vacuums[number]
        if self._now < outcome.due_at:
            raise _Waits(f"files of older versions, which are kept until {outcome.due_at:%Y-%m-%d %H:%M}")
        if not outcome.done:
            raise _Waits("; ".join((*outcome.holds, *outcome.left)), blocked=True)
        return "vacuumed", {"holds": list(outcome.holds), "due_at": outcome.due_at.isoformat()}

    def _verify(self, request: ErasureRequest) -> tuple[ErasureState, dict[str, Any]]:
        suppressed = request.step("suppressed")
        sealed = sealed_before(self._namespace, 0 if suppressed is None else int(suppressed.detail["number"]))
        if sealed:
            raise _Waits(sealed)
        tokens = person_of(self._namespace, request).tokens
        leaks = sorted(self._report.keys("leak", tokens))
        if leaks:
            raise _Waits(f"tokens are still in {', '.join(leaks[:MOST_NAMED])}", blocked=True)
        if self._landing.blocked:
            listed = ", ".join(self._landing.blocked)
            raise _Waits(f"landed objects that cannot be rewritten: {listed}", blocked=True)
        return "verified", {
            "landing": landing_detail(self._landing, request.request_id),
            "objects": self._report.objects,
            "bytes": self._report.bytes,
            "in_logs": len(self._report.keys("log", tokens)),
            "kept": len(self._report.keys("kept", tokens)),
            "damaged": list(self._report.damaged),
        }

    def _certify(self, request: ErasureRequest) -> tuple[ErasureState, dict[str, Any]]:
        certificate = certify(self._namespace, request, by=current_run())
        return "certified", {"number": certificate.number}

    def _result(self, request: ErasureRequest, waiting: _Waits | None) -> ErasureResult:
        subject = f"{request.namespace} {request.request_id}"
        if waiting is not None and waiting.blocked:
            raise_alert(
                self._namespace.objects,
                cause=BLOCKED,
                subject=subject,
                summary=f"It is {request.state} and waits for {waiting}. Due by {request.deadline_at:%Y-%m-%d}.",
                now=self._now,
            )
        else:
            resolve_alert(self._namespace.objects, cause=BLOCKED, subject=subject, now=self._now)
        return ErasureResult(
            request=request.request_id,
            state=request.state,
            deadline=request.deadline_at.isoformat(timespec="minutes"),
            waits_for="" if waiting is None else str(waiting),
        )
