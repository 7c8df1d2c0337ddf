"""Requests of people to be erased: a record that is only appended to, one object a state.

A state is written after its deed, so that whoever finds a request in a state may rely on all before it, and does the
deed of the next one again where somebody died in it. Nothing here names a person: the tokens of a request lie in the
vault, and a record has their digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Literal, get_args

from pydantic import Field

from deltaworks.control import erasure_paths
from deltaworks.control.clock import iso_now, parse_iso
from deltaworks.control.objects import ObjectStore
from deltaworks.control.provenance import current_run
from deltaworks.control.records.store import Record, RecordKind, RecordStore
from deltaworks.control.summaries.base import log_failures
from deltaworks.control.summaries.erasures import publish_request
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError
from deltaworks.privacy import paths
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
#: The states of a request that is granted, in their order.
GRANTED_STATES: Final[tuple[ErasureState, ...]] = get_args(ErasureState)[:8]
#: States behind which nothing is done any more.
END_STATES: Final[tuple[ErasureState, ...]] = ("certified", "refused")
#: Article 12(3): by so many days the deadline may be moved, once, where the person is told within the first month.
EXTENSION_DAYS: Final = 60


class ErasureStep(Record):
    """One state that a request has reached.

    Args:
        received_at: of the first step: when the person asked, from which deadlines count.
        subjects_digest: of the first step: SHA-256 over the token it was received for.
        detail: what the deed came to, as plain JSON; never a token or a value.
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
    """A request with every state it has reached, oldest first."""

    steps: tuple[ErasureStep, ...]

    @property
    def request_id(self) -> str:
        """Its id, within its namespace."""
        return self.steps[0].request_id

    @property
    def namespace(self) -> str:
        """The namespace of the tokens it is about."""
        return self.steps[0].namespace

    @property
    def state(self) -> ErasureState:
        """How far it has come; an extension is no place on the way."""
        return next(step.state for step in reversed(self.steps) if step.state != "extended")

    @property
    def is_open(self) -> bool:
        """Whether anything is left to be done."""
        return self.state not in END_STATES

    @property
    def received_at(self) -> datetime:
        """When the person asked."""
        return _instant(self.steps[0].received_at)

    @property
    def purge_by(self) -> datetime:
        """Until when rows have to be gone from the newest versions of tables, so that VACUUM ends in time."""
        return _instant(self._latest("purge_by"))

    @property
    def deadline_at(self) -> datetime:
        """Until when the person has to have been erased."""
        return _instant(self._latest("deadline_at"))

    @property
    def is_extended(self) -> bool:
        """Whether its deadline was moved."""
        return any(step.state == "extended" for step in self.steps)

    def step(self, state: ErasureState) -> ErasureStep | None:
        """The step at which it reached a state; None where it has not."""
        return next((step for step in self.steps if step.state == state), None)

    def reached_at(self, state: ErasureState) -> datetime:
        """When it reached a state that it has reached.

        Raises:
            ContractError: ERASURE_UNREADABLE, no record says so.
        """
        step = self.step(state)
        return _instant("" if step is None else step.at)

    def has_reached(self, state: ErasureState) -> bool:
        """Whether it has come as far as this state of the way."""
        return self.state in GRANTED_STATES and GRANTED_STATES.index(self.state) >= GRANTED_STATES.index(state)

    def _latest(self, name: str) -> str:
        return str(next(getattr(step, name) for step in reversed(self.steps) if getattr(step, name)))


def _instant(text: str) -> datetime:
    instant = parse_iso(text)
    if instant is None:
        raise ContractError("ERASURE_UNREADABLE", "A record of an erasure has no time.", hint="Restore it.")
    return instant


class Erasures:
    """The requests of one namespace. Safe to use from several threads and processes."""

    def __init__(self, objects: ObjectStore, namespace: str) -> None:
        self._objects = objects
        self._namespace = namespace
        self._records = RecordStore(objects, ErasureStep)

    def read(self, request_id: str) -> ErasureRequest | None:
        """One request, None where there is none.

        Raises:
            ContractError: ERASURE_UNREADABLE.
        """
        steps: list[ErasureStep] = []
        while (step := self._records.read(self._key(request_id, len(steps) + 1))) is not None:
            steps.append(step)
        return ErasureRequest(tuple(steps)) if steps else None

    def request(self, request_id: str) -> ErasureRequest:
        """One request.

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
        """Every request, the oldest first. One listing, and a read for each state of each."""
        folder = erasure_paths.erasure_requests(self._namespace)
        for request_id in sorted({key.removeprefix(folder).partition("/")[0] for key in self._objects.list(folder)}):
            request = self.read(request_id)
            if request is not None:
                yield request

    def open_requests(self) -> list[ErasureRequest]:
        """Those of which something is left to be done."""
        return [request for request in self.all_requests() if request.is_open]

    def create(
        self, request_id: str, *, received_at: datetime, purge_by: datetime, deadline_at: datetime, digest: str, by: str
    ) -> ErasureRequest:
        """Note a request. Idempotent: one of this id that is there already is returned as it is."""
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
        """Note that a request has reached a state.

        Args:
            purge_by, deadline_at: the instants of an extension.

        Raises:
            ConcurrencyError: ERASURE_CONTENDED, another process noted a state meanwhile.
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
                "ERASURE_CONTENDED",
                f"Another process has brought the erasure {request.request_id} on.",
                hint="Nothing: run it again, and it continues from there.",
            )
        return self._publish(ErasureRequest((*request.steps, step)))

    def refuse(self, request: ErasureRequest, *, reason: str, by: str) -> ErasureRequest:
        """Refuse a request for good (article 17(3)), before anything of it is done.

        Raises:
            ConfigError: ERASURE_ENDED, ERASURE_STARTED, ERASURE_REASON_MISSING.
        """
        _reject_ended(request)
        if request.has_reached("suppressed") or self._is_suppressed(request.request_id):
            raise ConfigError(
                "ERASURE_STARTED",
                f"The erasure {request.request_id} has begun: events of the person are dropped, for good.",
                hint="Let it end. A refusal is decided before the first run.",
            )
        _require_reason(reason)
        return self.record_state(request, "refused", by=by, detail={"reason": reason})

    def _is_suppressed(self, request_id: str) -> bool:
        """Whether readers drop the person's events: they do from before the request is said to be suppressed."""
        keys = self._objects.list(paths.suppressions(self._namespace))
        stored = ((key, self._objects.get(key)) for key in keys)
        records = (SuppressionRecord.decode(one.data, key=key) for key, one in stored if one is not None)
        return any(record.request_id == request_id for record in records)

    def extend(self, request: ErasureRequest, *, reason: str, by: str, now: datetime) -> ErasureRequest:
        """Move the deadline by two months, once, within the first month (article 12(3)).

        Raises:
            ConfigError: ERASURE_ENDED, ERASURE_REASON_MISSING, ERASURE_NOT_EXTENDED.
        """
        _reject_ended(request)
        _require_reason(reason)
        if request.is_extended or now > request.deadline_at:
            why = "was extended before" if request.is_extended else f"was due by {request.deadline_at:%Y-%m-%d}"
            raise ConfigError(
                "ERASURE_NOT_EXTENDED",
                f"The erasure {request.request_id} {why}; a deadline moves once, and only before it has passed.",
                hint="Bring it to its end: `deltaworks privacy erasures` says what it waits for.",
            )
        by_days = timedelta(days=EXTENSION_DAYS)
        purge_by = (request.purge_by + by_days).isoformat()
        deadline_at = (request.deadline_at + by_days).isoformat()
        return self.record_state(
            request, "extended", by=by, detail={"reason": reason}, purge_by=purge_by, deadline_at=deadline_at
        )

    def _publish(self, request: ErasureRequest) -> ErasureRequest:
        """The request, once pages may know of it; the health check notes what could not be noted here."""
        with log_failures(f"How far the erasure {request.request_id} is, for pages,"):
            publish_request(self._objects, request)
        return request

    def _key(self, request_id: str, number: int) -> str:
        return erasure_paths.erasure_step(self._namespace, request_id, number)


def _reject_ended(request: ErasureRequest) -> None:
    if not request.is_open:
        raise ConfigError(
            "ERASURE_ENDED",
            f"The erasure {request.request_id} is {request.state}; nothing of it can be changed.",
            hint="Receive a new request, if the person asks again.",
        )


def _require_reason(reason: str) -> None:
    if not reason.strip():
        raise ConfigError(
            "ERASURE_REASON_MISSING",
            "A refusal and an extension have to be explained to the person.",
            hint="Give `--reason` with the ground, such as `invoices are kept by law`.",
        )
