"""Writes the file event log: one idempotent commit per append, `seq` without gaps, each file event once.

`prepare` fixes the content of an append; `commit` may then be repeated. The append number is a step that is committed
once, so a commit with a lost reply is detected. Every commit carries the owner epoch. After a new owner has raised it,
the former relay can no longer write.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError

from deltaworks.control.clock import utc_now
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ContractError, FencedError
from deltaworks.sources.objects.file_event_log import (
    FILE_EVENT_SCHEMA,
    IDENTITY_COLUMNS,
    MESSAGE_QUARANTINE_SCHEMA,
    FileEventLog,
    IdentitySet,
    event_identity,
    file_events_key,
    message_quarantine_key,
    row_identity,
)
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.specs.descriptions import control_description
from deltaworks.specs.relay import Overwrites
from deltaworks.tables.commit import CommitOutcome, Step, commit_step, raise_owner_epoch, refresh
from deltaworks.tables.descriptions import ensure_described
from deltaworks.tables.files import WrittenFile, write_file
from deltaworks.tables.lake import Lake, arrow_path, rows_of

_LOGGER = logging.getLogger(__name__)
_COMPACTION_THRESHOLD_FILES = 500


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """A file event and how it was received: `origin` is `sqs` or `listing`."""

    event: FileEvent
    message_id: str
    received_at: datetime
    origin: str = "sqs"


@dataclass(frozen=True, slots=True)
class QuarantinedMessage:
    """A message that could not be parsed, with the reason."""

    message_id: str
    body: str
    reason: str
    received_at: datetime


@dataclass(slots=True)
class PendingAppend:
    """A prepared append: number, rows and, once written, their files. Empty if all events are in the log already."""

    number: int
    events: pa.Table
    messages: pa.Table
    identities: tuple[bytes, ...]
    duplicates: int
    event_file: WrittenFile | None = None
    message_file: WrittenFile | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.events.num_rows or self.messages.num_rows)


class FileEventLogWriter:
    """The only writer of a relay's log; the relay's lease provides its owner epoch. Not thread-safe.

    Opening creates the tables, fences former owners, and then loads the last `seq`, the append number and all
    identities. In this order, the loaded state includes the last commits of a former owner.

    Raises:
        FencedError: OWNER_FENCED, a later owner has taken over.
    """

    def __init__(self, lake: Lake, relay: str, *, epoch: int, overwrites: Overwrites = "latest") -> None:
        self._lake = lake
        self._relay = relay
        self._overwrites = overwrites
        self._owner = _owner_step(relay, epoch)
        self._in_doubt: PendingAppend | None = None
        created = user_metadata(pipeline=relay, batch=0, operation="create_relay_table")
        self._events = ensure_described(
            lake, file_events_key(relay), FILE_EVENT_SCHEMA, control_description("file_events"), user_metadata=created
        )
        self._messages = ensure_described(
            lake,
            message_quarantine_key(relay),
            MESSAGE_QUARANTINE_SCHEMA,
            control_description("message_quarantine"),
            user_metadata=created,
        )
        for table in (self._events, self._messages):
            self._raise_owner(table)
        self._compact_if_fragmented()
        self._append_number = max(
            self._events.transaction_version(self._event_step(0).app_id) or 0,
            self._messages.transaction_version(self._message_step(0).app_id) or 0,
        )
        self._last_seq, self._identities = self._load_events()
        self._message_ids = self._load_message_ids()

    @property
    def last_seq(self) -> int:
        """The highest committed `seq`."""
        return self._last_seq

    @property
    def append_number(self) -> int:
        """The number of the last append."""
        return self._append_number

    def append(self, events: Sequence[ReceivedEvent], messages: Sequence[QuarantinedMessage] = ()) -> PendingAppend:
        """Prepares and commits an append in one call. Callers that retry use `prepare` and `commit`."""
        pending = self.prepare(events, messages)
        self.commit(pending)
        return pending

    def prepare(self, events: Sequence[ReceivedEvent], messages: Sequence[QuarantinedMessage] = ()) -> PendingAppend:
        """Prepares the next append: drops events that the log has already, and numbers the others in order.

        Raises:
            ContractError: APPEND_OUTCOME_UNKNOWN, an earlier append is not committed; commit that one again.
        """
        if self._in_doubt is not None:
            raise ContractError(
                "APPEND_OUTCOME_UNKNOWN",
                f"It is unknown whether append {self._in_doubt.number} of relay {self._relay!r} was committed.",
            )
        number = self._append_number + 1
        new: dict[bytes, ReceivedEvent] = {}
        for received in events:
            identity = event_identity(received.event, overwrites=self._overwrites)
            if identity not in self._identities:
                new.setdefault(identity, received)
        new_messages = {m.message_id: m for m in reversed(messages) if m.message_id not in self._message_ids}
        return PendingAppend(
            number=number,
            events=_event_rows(new.values(), first_seq=self._last_seq + 1, number=number),
            messages=_message_rows(new_messages.values(), number=number),
            identities=tuple(new),
            duplicates=len(events) - len(new),
        )

    def commit(self, pending: PendingAppend) -> None:
        """Commits the append. After a transient error, call it again with the same append.

        Messages are committed before events. After a crash between the two commits all messages are redelivered, and
        the ids of those in the table identify them.

        Raises:
            FencedError: OWNER_FENCED, a successor has taken over; nothing was committed.
            ConcurrencyError: COMMIT_CONTENDED.
        """
        if pending.is_empty:
            return
        self._in_doubt = pending
        if pending.messages.num_rows:
            if pending.message_file is None:
                pending.message_file = self._write(message_quarantine_key(self._relay), pending.messages)
            step = self._message_step(pending.number)
            self._commit_file(self._messages, pending.message_file, step, "quarantine_messages")
        if pending.events.num_rows:
            if pending.event_file is None:
                pending.event_file = self._write(file_events_key(self._relay), pending.events)
            step = self._event_step(pending.number)
            self._commit_file(self._events, pending.event_file, step, "append_file_events")
        self._in_doubt = None
        self._append_number = pending.number
        self._last_seq += pending.events.num_rows
        for identity in pending.identities:
            self._identities.add(identity)
        self._message_ids.update(pending.messages.column("message_id").to_pylist())

    def _write(self, key: str, rows: pa.Table) -> WrittenFile:
        return write_file(self._lake.filesystem, arrow_path(self._lake.storage, key), rows, partition={})

    def _commit_file(self, table: DeltaTable, file: WrittenFile, step: Step, operation: str) -> None:
        metadata = self._metadata(operation, batch=step.version, step=step)
        outcome = commit_step(table, [file.add_action()], step=step, owner=self._owner, user_metadata=metadata)
        if not outcome.newly_committed:
            # The reply to our commit was lost, unless a new owner used the same number.
            self._check_still_owner(table)

    def _raise_owner(self, table: DeltaTable) -> None:
        metadata = self._metadata("raise_owner", batch=f"owner-{self._owner.version}", step=self._owner)
        outcome: CommitOutcome = raise_owner_epoch(table, self._owner, user_metadata=metadata)
        if not outcome.newly_committed:
            self._check_still_owner(table)

    def _check_still_owner(self, table: DeltaTable) -> None:
        current = table.transaction_version(self._owner.app_id) or 0
        if current > self._owner.version:
            raise FencedError(
                "OWNER_FENCED",
                f"{table.table_uri}: owner epoch {current} has taken over from epoch {self._owner.version}.",
            )

    def _compact_if_fragmented(self) -> None:
        """Compacts the small files of appends, so that opening and reading stay fast. Never fatal."""
        if len(FileEventLog(self._lake, self._relay).files()) <= _COMPACTION_THRESHOLD_FILES:
            return
        metadata = self._metadata("compact_file_events", batch=f"owner-{self._owner.version}")
        properties = CommitProperties(custom_metadata={"userMetadata": metadata})
        try:
            self._events.optimize.compact(commit_properties=properties)
        except (DeltaError, OSError) as error:
            _LOGGER.warning("The file event log of relay %s could not be compacted: %s", self._relay, error)
        refresh(self._events)

    def _load_events(self) -> tuple[int, IdentitySet]:
        log = FileEventLog(self._lake, self._relay)
        identities: list[bytes] = []
        position = 0
        for part in log.read_parts():
            position = part.column("seq")[-1].as_py()
            rows = zip(*(part.column(name).to_pylist() for name in IDENTITY_COLUMNS), strict=True)
            identities += (row_identity(row, overwrites=self._overwrites) for row in rows)
        return position, IdentitySet(identities)

    def _load_message_ids(self) -> set[str]:
        # SQS retains messages for at most 14 days, so older ones cannot be redelivered.
        recent = pc.field("received_at") > utc_now() - timedelta(days=15)
        rows = rows_of(self._lake, self._messages, columns=["message_id"], filters=recent)
        return set(rows.column("message_id").to_pylist())

    def _event_step(self, number: int) -> Step:
        return Step(f"{self._relay}/file_events", number)

    def _message_step(self, number: int) -> Step:
        return Step(f"{self._relay}/message_quarantine", number)

    def _metadata(self, operation: str, *, batch: str | int, step: Step | None = None) -> str:
        extra = {"step": step.app_id, "step_version": step.version} if step else {}
        return user_metadata(pipeline=self._relay, batch=batch, operation=operation, **extra)


def _owner_step(relay: str, epoch: int) -> Step:
    return Step(f"{relay}/owner", epoch)


def last_log_epoch(lake: Lake, relay: str) -> int:
    """Returns the highest owner epoch committed to the relay's tables; 0 before the first commit."""
    app_id = _owner_step(relay, 0).app_id
    tables = [lake.open(key) for key in (file_events_key(relay), message_quarantine_key(relay))]
    return max((table.transaction_version(app_id) or 0 for table in tables if table is not None), default=0)


def _event_rows(received: Iterable[ReceivedEvent], *, first_seq: int, number: int) -> pa.Table:
    rows = [
        {
            "seq": seq,
            "bucket": item.event.bucket,
            "key": item.event.key,
            "size": item.event.size,
            "etag": item.event.etag,
            "version_id": item.event.version_id,
            "event_time": item.event.event_time,
            "event_name": item.event.event_name,
            "sequencer": item.event.sequencer,
            "message_id": item.message_id,
            "origin": item.origin,
            "received_at": item.received_at,
            "batch": number,
        }
        for seq, item in enumerate(received, start=first_seq)
    ]
    return pa.Table.from_pylist(rows, schema=FILE_EVENT_SCHEMA)


def _message_rows(messages: Iterable[QuarantinedMessage], *, number: int) -> pa.Table:
    rows = [
        {
            "message_id": message.message_id,
            "body": message.body,
            "reason": message.reason,
            "received_at": message.received_at,
            "batch": number,
        }
        for message in messages
    ]
    return pa.Table.from_pylist(rows, schema=MESSAGE_QUARANTINE_SCHEMA)
