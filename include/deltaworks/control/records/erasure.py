"""Records of erasure: requests, the windows that purge their rows, and the state of the vault's job.

Records are append-only, one object per state. Each state is recorded after its work is complete. After a crash only the
work of the next state is repeated. Records contain no identifiers: the tokens of a request are in the vault, and a
record has their digest.

A purge costs as much as the files it rewrites, so a hundred pending requests cost about as much as one. A window purges
all open requests together. They are fixed before it begins, so a run that continues it purges the same requests. A
table is recorded once its purge is done.

The vault's state is recorded in the lake for processes that must not open the vault.
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
from deltaworks.control.provenance import SCHEDULER, current_run
from deltaworks.control.records.store import Record, RecordKind, RecordStore
from deltaworks.control.summaries.base import log_failures
from deltaworks.control.summaries.erasures import ErasureRow, publish_request
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError
from deltaworks.privacy.paths import suppression_folder
from deltaworks.privacy.tokens.suppression import SuppressionRecord

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
    "confirmed",
]
#: The states of a granted request, in order.
GRANTED_STATES: Final[tuple[ErasureState, ...]] = get_args(ErasureState)[:8]
#: Final states.
END_STATES: Final[tuple[ErasureState, ...]] = ("certified", "refused")
#: Steps that do not change the state.
NOT_STATES: Final[tuple[ErasureState, ...]] = ("extended", "confirmed")
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
        """The current state; extensions and confirmations are not states."""
        return next(step.state for step in reversed(self.steps) if step.state not in NOT_STATES)

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

    @property
    def is_confirmed(self) -> bool:
        """Whether a second person confirmed the erasure of the resolved subjects."""
        return self.step("confirmed") is not None

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

    def confirm(self, request: ErasureRequest, *, by: str) -> ErasureRequest:
        """Records that a second person confirms the resolved subjects of a request. Idempotent.

        Raises:
            ConfigError: ERASURE_ENDED, ERASURE_NOT_CONFIRMED.
        """
        _reject_ended(request)
        if request.is_confirmed:
            return request
        why = ""
        if request.state != "resolved":
            why = f"it is {request.state}, and its subjects are confirmed while it is resolved"
        elif by in (request.steps[0].by, SCHEDULER):
            why = f"{by} received it, and another person has to confirm" if by != SCHEDULER else "no person did it"
        if why:
            raise ConfigError("ERASURE_NOT_CONFIRMED", f"The erasure {request.request_id} is not confirmed: {why}.")
        return self.record_state(request, "confirmed", by=by)

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


# Erasure windows.

_WINDOW_KIND = RecordKind(
    noun="record of a window of erasures",
    unreadable_condition="ERASURE_UNREADABLE",
    hint="Restore it from the storage's versions, or run the release that wrote it.",
)


class ErasureWindow(Record):
    """A window: the requests it purges, each with the number of objects that contained the person's tokens before the
    purge.
    """

    kind: ClassVar[RecordKind] = _WINDOW_KIND

    namespace: str
    number: int
    requests: dict[str, int]
    at: str


class PurgedTable(Record):
    """Result of a purge for one table: total, erased and other rows, before and after.

    Args:
        version: the purge's commit; None if there was nothing to do.
        removed_files: paths below the table that VACUUM must delete.
        bytes_written: size of the files that the purge wrote, with the remaining rows of rewritten files.
        collector_numbers: collector sequence numbers of the erased events, packed.
    """

    kind: ClassVar[RecordKind] = _WINDOW_KIND

    pipeline: str
    table: str
    version: int | None
    at_ms: int
    rows_before: int
    erased_before: int
    rows_after: int
    erased_after: int
    other_rows_before: int
    other_rows_after: int
    by_request: dict[str, int] = Field(default_factory=dict)
    dates: dict[str, int] = Field(default_factory=dict)
    removed_files: tuple[str, ...] = ()
    bytes_written: int = 0
    retention_reason: str = ""
    collector_numbers: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def unchanged(cls, pipeline: str, table: str, *, rows: int, retention_reason: str = "") -> PurgedTable:
        """Builds the result of a table without rows to erase."""
        return cls(
            pipeline=pipeline,
            table=table,
            version=None,
            at_ms=0,
            rows_before=rows,
            erased_before=0,
            rows_after=rows,
            erased_after=0,
            other_rows_before=rows,
            other_rows_after=rows,
            retention_reason=retention_reason,
        )


class ErasureWindows:
    """The windows of one namespace, numbered from 1 without gaps."""

    def __init__(self, objects: ObjectStore, namespace: str) -> None:
        self._objects = objects
        self._namespace = namespace
        self._windows = RecordStore(objects, ErasureWindow)
        self._tables = RecordStore(objects, PurgedTable)

    def newest(self) -> int:
        """Returns the highest number; 0 before the first. One listing."""
        folder = paths.erasure_window(self._namespace, 1).rpartition("/")[0] + "/"
        names = (key.removeprefix(folder).partition("/")[0].removesuffix(".json") for key in self._objects.list(folder))
        return max((int(name) for name in names if name.isdigit()), default=0)

    def read(self, number: int) -> ErasureWindow | None:
        """Reads one window.

        Raises:
            ContractError: ERASURE_UNREADABLE.
        """
        return self._windows.read(paths.erasure_window(self._namespace, number))

    def create_next(self, requests: dict[str, int]) -> ErasureWindow:
        """Creates the next window; returns the stored one if another process was first."""
        number = self.newest() + 1
        window = ErasureWindow(namespace=self._namespace, number=number, requests=requests, at=iso_now())
        return self._windows.get_or_create(paths.erasure_window(self._namespace, number), window)

    def table(self, number: int, pipeline: str, table: str) -> PurgedTable | None:
        """Returns the result for a table; None if the table is not purged yet."""
        return self._tables.read(paths.erasure_window_table(self._namespace, number, pipeline, table))

    def record_table(self, number: int, purged: PurgedTable) -> PurgedTable:
        """Records the result for a table. Idempotent."""
        key = paths.erasure_window_table(self._namespace, number, purged.pipeline, purged.table)
        return self._tables.get_or_create(key, purged)

    def collector_numbers_since(self, at: datetime) -> Iterator[dict[str, str]]:
        """Yields the packed collector numbers of rows purged by windows that were open at the given time or began
        later.
        """
        for number in range(self.newest(), 0, -1):
            window = self.read(number)
            for purged in self.tables(number):
                if purged.collector_numbers:
                    yield purged.collector_numbers
            started_at = None if window is None else parse_iso(window.at)
            if started_at is not None and started_at < at:
                return

    def tables(self, number: int) -> list[PurgedTable]:
        """Returns the results of a window so far. One listing, and a read per table."""
        folder = paths.erasure_window(self._namespace, number).removesuffix(".json") + "/"
        results = (self._tables.read(key) for key in self._objects.list(folder))
        return [purged for purged in results if purged is not None]


# The state of the vault's job.

_VAULT_KIND = RecordKind(
    noun="record of the vault",
    unreadable_condition="VAULT_RECORD_UNREADABLE",
    hint="Run the release that the vault's job runs, or a later one.",
)


class VaultHeartbeat(Record):
    """The state of a namespace's vault. Times are ISO 8601 in UTC; empty if unknown.

    Args:
        caught_up_at: start of the last run that ingested all readable files.
        suppression: number of the suppression list at the start of that run.
        waiting: encrypted files that the last run left.
        unreadable: some of the files that cannot be decrypted; they stay in place.
        failure_condition: condition of the last failed run, since `failing_since`.
        epoch: number of the current key epoch; epoch_at: its start.
    """

    kind: ClassVar[RecordKind] = _VAULT_KIND

    namespace: str
    written_at: str
    caught_up_at: str = ""
    suppression: int = 0
    waiting: int = 0
    unreadable: tuple[str, ...] = ()
    failure_condition: str = ""
    failing_since: str = ""
    epoch: int = 0
    epoch_at: str = ""


def read_vault_heartbeat(objects: ObjectStore, namespace: str) -> VaultHeartbeat | None:
    """Reads the heartbeat of a namespace; None if its job has never run.

    Raises:
        ContractError: VAULT_RECORD_UNREADABLE.
    """
    return RecordStore(objects, VaultHeartbeat).read(paths.vault_heartbeat(namespace))
