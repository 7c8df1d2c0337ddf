"""Erasure requests: append-only records, one object per state.

Each state is recorded after its work is complete. After a crash only the work of the next state is repeated. Records
contain no identifiers: the tokens of a request are in the vault, and a record has their digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Literal, get_args

from pydantic import Field

from deltaworks.control import paths
from deltaworks.control.clock import iso_now, parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import current_run
from deltaworks.control.records.store import Record, RecordKind, RecordStore
from deltaworks.control.summaries.base import log_failures
from deltaworks.control.summaries.erasures import ErasureRow, publish_request
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError
from deltaworks.privacy.paths import suppression_folder
from deltaworks.privacy.suppression import SuppressionRecord

ErasureState = Literal[
    "received",
    "resolved",
    "suppressed",
    "shredded",
    "purged",
    "vacuumed",
    "verified",
    "certified",
    "refused",
    "extended",
]
#: The states of a granted request, in order.
GRANTED_STATES: Final[tuple[ErasureState, ...]] = get_args(ErasureState)[:8]
#: Final states.
END_STATES: Final[tuple[ErasureState, ...]] = ("certified", "refused")
#: Article 12(3): the deadline may be extended once by this many days if the person is informed within the first month.
EXTENSION_DAYS: Final = 60


class ErasureStep(Record):
    """One state that a request has reached.

    Args:
        received_at: only in the first step: time of the person's request, from which deadlines count.
        subjects_digest: only in the first step: SHA-256 of the person's token.
        detail: result of the work, as plain JSON; never contains tokens or values.
    """

    kind: ClassVar[RecordKind] = RecordKind(
        noun="record of an erasure",
        unreadable_condition="ERASURE_UNREADABLE",
        hint="Restore it from the storage's versions, or run the release that wrote it.",
    )

    namespace: str
    request_id: str
    number: int
    state: ErasureState
    at: str
    by: str
    run: str
    received_at: str = ""
    purge_by: str = ""
    deadline_at: str = ""
    subjects_digest: str = ""
    detail: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """A request with all states it has reached, oldest first."""

    steps: tuple[ErasureStep, ...]

    @property
    def request_id(self) -> str:
        """The id of the request, unique within its namespace."""
        return self.steps[0].request_id

    @property
    def namespace(self) -> str:
        """The namespace of the person's tokens."""
        return self.steps[0].namespace

    @property
    def state(self) -> ErasureState:
        """The current state; an extension is not a state."""
        return next(step.state for step in reversed(self.steps) if step.state != "extended")

    @property
    def is_open(self) -> bool:
        """Whether the request is neither complete nor refused."""
        return self.state not in END_STATES

    @property
    def received_at(self) -> datetime:
        """Time of the person's request."""
        return _instant(self.steps[0].received_at)

    @property
    def purge_by(self) -> datetime:
        """Deadline for deleting the rows, early enough for VACUUM to finish in time."""
        return _instant(self._latest("purge_by"))

    @property
    def deadline_at(self) -> datetime:
        """Deadline for the complete erasure."""
        return _instant(self._latest("deadline_at"))

    @property
    def is_extended(self) -> bool:
        """Whether the deadline was extended."""
        return any(step.state == "extended" for step in self.steps)

    def summary_row(self) -> ErasureRow:
        """Returns the row of the request in the summary for pages."""
        return ErasureRow(
            request_id=self.request_id,
            state=self.state,
            since=self.steps[-1].at,
            received_at=self.received_at.isoformat(),
            purge_by=self.purge_by.isoformat(),
            deadline_at=self.deadline_at.isoformat(),
            is_extended=self.is_extended,
            steps=len(self.steps),
        )

    def step(self, state: ErasureState) -> ErasureStep | None:
        """Returns the step of a state; None if it has not been reached."""
        return next((step for step in self.steps if step.state == state), None)

    def reached_at(self, state: ErasureState) -> datetime:
        """Returns the time at which a state was reached.

        Raises:
            ContractError: ERASURE_UNREADABLE if it has not been reached.
        """
        step = self.step(state)
        return _instant("" if step is None else step.at)

    def has_reached(self, state: ErasureState) -> bool:
        """Whether the request has reached the given state or a later one."""
        return self.state in GRANTED_STATES and GRANTED_STATES.index(self.state) >= GRANTED_STATES.index(state)

    def _latest(self, name: str) -> str:
        return str(next(getattr(step, name) for step in reversed(self.steps) if getattr(step, name)))


def _instant(text: str) -> datetime:
    instant = parse_iso(text)
    if instant is None:
        raise ContractError("ERASURE_UNREADABLE", "A record of an erasure has no time.")
    return instant


class Erasures:
    """The requests of one namespace. Safe for concurrent use from threads and processes."""

    def __init__(self, objects: ObjectStore, namespace: str) -> None:
        self._objects = objects
        self._namespace = namespace
        self._records = RecordStore(objects, ErasureStep)

    def read(self, request_id: str) -> ErasureRequest | None:
        """Reads one request; None if it does not exist.

        Raises:
            ContractError: ERASURE_UNREADABLE.
        """
        steps: list[ErasureStep] = []
        while (step := self._records.read(self._key(request_id, len(steps) + 1))) is not None:
            steps.append(step)
        return ErasureRequest(tuple(steps)) if steps else None

    def request(self, request_id: str) -> ErasureRequest:
        """Returns the request with this id.

        Raises:
            ConfigError: ERASURE_UNKNOWN.
        """
        request = self.read(request_id)
        if request is None:
            raise ConfigError(
                "ERASURE_UNKNOWN",
                f"The namespace {self._namespace!r} has no request {request_id!r}.",
                hint=f"`deltaworks privacy erasures {self._namespace}` lists them.",
            )
        return request

    def all_requests(self) -> Iterator[ErasureRequest]:
        """Yields every request, oldest first. One listing, and a read per state."""
        folder = paths.erasure_requests(self._namespace)
        for request_id in sorted({key.removeprefix(folder).partition("/")[0] for key in self._objects.list(folder)}):
            request = self.read(request_id)
            if request is not None:
                yield request

    def open_requests(self) -> list[ErasureRequest]:
        """Returns the requests with remaining work."""
        return [request for request in self.all_requests() if request.is_open]

    def create(
        self, request_id: str, *, received_at: datetime, purge_by: datetime, deadline_at: datetime, digest: str, by: str
    ) -> ErasureRequest:
        """Creates a request; returns the stored one if the id already exists. Idempotent."""
        first = ErasureStep(
            namespace=self._namespace,
            request_id=request_id,
            number=1,
            state="received",
            at=iso_now(),
            by=by,
            run=current_run(),
            received_at=received_at.isoformat(),
            purge_by=purge_by.isoformat(),
            deadline_at=deadline_at.isoformat(),
            subjects_digest=digest,
        )
        self._records.get_or_create(self._key(request_id, 1), first)
        return self._publish(self.request(request_id))

    def record_state(
        self,
        request: ErasureRequest,
        state: ErasureState,
        *,
        by: str,
        detail: dict[str, Any] | None = None,
        purge_by: str = "",
        deadline_at: str = "",
    ) -> ErasureRequest:
        """Records that a request has reached a state.

        Args:
            purge_by, deadline_at: new deadlines of an extension.

        Raises:
            ConcurrencyError: another process recorded a state meanwhile.
        """
        step = ErasureStep(
            namespace=self._namespace,
            request_id=request.request_id,
            number=len(request.steps) + 1,
            state=state,
            at=iso_now(),
            by=by,
            run=current_run(),
            detail=detail or {},
            purge_by=purge_by,
            deadline_at=deadline_at,
        )
        if not self._records.create(self._key(request.request_id, step.number), step):
            raise ConcurrencyError(
                "ERASURE_CONTENDED", f"Another process has brought the erasure {request.request_id} on."
            )
        return self._publish(ErasureRequest((*request.steps, step)))

    def refuse(self, request: ErasureRequest, *, reason: str, by: str) -> ErasureRequest:
        """Refuses a request for good (article 17(3)), before any of its work is done.

        Raises:
            ConfigError: ERASURE_ENDED, ERASURE_STARTED, ERASURE_REASON_MISSING.
        """
        _reject_ended(request)
        if request.has_reached("suppressed") or self._is_suppressed(request.request_id):
            raise ConfigError(
                "ERASURE_STARTED",
                f"The erasure {request.request_id} has started: events of the person are already dropped.",
            )
        _require_reason(reason)
        return self.record_state(request, "refused", by=by, detail={"reason": reason})

    def _is_suppressed(self, request_id: str) -> bool:
        """Whether readers already drop the person's events.

        They do so from the suppression record on, which is written before the state `suppressed`.
        """
        keys = self._objects.list(suppression_folder(self._namespace))
        stored = ((key, self._objects.get(key)) for key in keys)
        records = (SuppressionRecord.decode(one.data, key=key) for key, one in stored if one is not None)
        return any(record.request_id == request_id for record in records)

    def extend(self, request: ErasureRequest, *, reason: str, by: str, now: datetime) -> ErasureRequest:
        """Extends the deadline by two months, once, within the first month (article 12(3)).

        Raises:
            ConfigError: ERASURE_ENDED, ERASURE_REASON_MISSING, ERASURE_NOT_EXTENDED.
        """
        _reject_ended(request)
        _require_reason(reason)
        if request.is_extended or now > request.deadline_at:
            why = "was extended before" if request.is_extended else f"was due by {request.deadline_at:%Y-%m-%d}"
            raise ConfigError(
                "ERASURE_NOT_EXTENDED",
                f"The erasure {request.request_id} {why}; a deadline can be extended once, before it has passed.",
            )
        by_days = timedelta(days=EXTENSION_DAYS)
        purge_by = (request.purge_by + by_days).isoformat()
        deadline_at = (request.deadline_at + by_days).isoformat()
        return self.record_state(
            request, "extended", by=by, detail={"reason": reason}, purge_by=purge_by, deadline_at=deadline_at
        )

    def _publish(self, request: ErasureRequest) -> ErasureRequest:
        """Updates the summary that pages read, and returns the request; the health check repeats failed updates."""
        with log_failures(f"How far the erasure {request.request_id} is, for pages,"):
            publish_request(self._objects, self._namespace, request.summary_row())
        return request

    def _key(self, request_id: str, number: int) -> str:
        return paths.erasure_step(self._namespace, request_id, number)


def _reject_ended(request: ErasureRequest) -> None:
    if not request.is_open:
        raise ConfigError(
            "ERASURE_ENDED", f"The erasure {request.request_id} is {request.state} and cannot be changed."
        )


def _require_reason(reason: str) -> None:
    if not reason.strip():
        raise ConfigError("ERASURE_REASON_MISSING", "A refusal or extension must be explained to the person.")
