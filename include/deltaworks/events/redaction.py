"""Redacts personal data in the parser, before events are converted or rejected.

Tables and the `raw` column of quarantine contain redacted events only. Input that cannot be parsed cannot be redacted:
it is encrypted (sealed) with a key per day, and quarantine stores its length, its digest and the reason.
"""

from __future__ import annotations

import copy
import hashlib
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from deltaworks.errors import ConfigError
from deltaworks.events.columnar_redaction import ColumnarRedaction
from deltaworks.events.events import EventReader
from deltaworks.events.lossless_numbers import dump_lossless, has_rounded_number, parse_lossless
from deltaworks.events.reasons import Reason, RejectedEvent
from deltaworks.events.source_fields import RECORD_FIELD
from deltaworks.events.task_findings import TaskFindings
from deltaworks.privacy.key_service import Context, DataKey, DestroyedKey
from deltaworks.privacy.tokens.envelope_encryption import Identity, SealedKind, Sealer
from deltaworks.privacy.tokens.redactor import RedactionOutcome, RedactionResult, Redactor
from deltaworks.privacy.tokens.suppression import NO_SUPPRESSION, Suppression
from deltaworks.specs.pipeline import PipelineSpec

#: Maximum bytes of unreadable input that a task seals. Of further input only digests are stored.
MAX_UNREADABLE_BYTES: Final = 16 << 20
#: Identities per encrypted frame, which is decrypted as a unit.
_IDENTITIES_PER_FRAME: Final = 10_000
#: Record metadata that is not stored in quarantine, because producers put personal ids there.
_PRODUCER_FIELDS: Final = frozenset({"key", "headers"})


@dataclass(frozen=True, slots=True)
class SealKeys:
    """Keys, namespace and day with which one parse encrypts (seals) identities and unreadable input.

    Args:
        day_key: public key of the day, for unreadable input, which tasks cannot decrypt again.
    """

    namespace: str
    writer: str
    batch: str
    data_key: DataKey
    day: str
    day_key: bytes

    def new_key(self, context: Context) -> DataKey:
        """Returns the data key created by the driver."""
        return self.data_key

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        """Not supported: tasks only seal."""
        raise NotImplementedError("tasks can only seal")

    def destroy(self, key_id: str) -> DestroyedKey:
        """Not supported: tasks only seal."""
        raise NotImplementedError("tasks can only seal")

    def sealer(self) -> Sealer:
        """Returns an encryptor with these keys."""
        return Sealer(self, namespace=self.namespace, writer=self.writer, day_key=lambda _day: self.day_key)


@dataclass(frozen=True, slots=True)
class RedactionKeys:
    """Keys for redaction: the namespace's token key and the suppression list. Sent to tasks.

    Without `seal` nothing is encrypted: identities of events that are read again were sealed the first time.
    """

    token_key: bytes = field(repr=False)
    suppression: Suppression = NO_SUPPRESSION
    seal: SealKeys | None = None


def create_redaction(
    spec: PipelineSpec, keys: RedactionKeys | None, reader: EventReader, findings: TaskFindings
) -> EventRedaction | NoRedaction:
    """Returns the redaction for a pipeline's events; `NoRedaction` if it declares no personal data.

    Raises:
        ConfigError: REDACTION_KEYS_MISSING. Events are never parsed unredacted because keys are missing.
    """
    if spec.privacy is None:
        return NoRedaction()
    if keys is None:
        raise ConfigError(
            "REDACTION_KEYS_MISSING",
            f"Pipeline {spec.pipeline} declares personal data, but the keys to redact it are missing.",
        )
    return EventRedaction(spec, keys, reader, findings)


class NoRedaction:
    """Leaves events unchanged, for pipelines without personal data."""

    columnar = None

    def start(self, read_at_us: int) -> None:
        """Does nothing."""

    def arrival_ms(self, arrived_at_us: int | None) -> int:
        """Returns 0, because nothing depends on the arrival time."""
        return 0

    def may_contain(self, record: Mapping[str, Any]) -> bool:
        """Returns False: no text has to be scanned."""
        return False

    def snapshot_counts(self) -> Mapping[str, int]:
        """Returns no counts."""
        return {}

    def restore_counts(self, snapshot: Mapping[str, int]) -> None:
        """Does nothing."""

    def redact_event(self, event: dict[str, Any], arrived_at_us: int | None, raw: bytes) -> bool:
        """Returns True: every event is kept unchanged."""
        return True

    def record_dropped(self, value: Any) -> None:
        """Does nothing."""

    def redact_reread(self, event: Any) -> Any:
        """Returns the event unchanged."""
        return event

    def redact_rejected(self, rows: list[RejectedEvent]) -> list[RejectedEvent]:
        """Returns the rows unchanged."""
        return rows

    def redact_raw(self, raw: bytes) -> tuple[bytes, int]:
        """Returns the bytes unchanged, and their length."""
        return raw, len(raw)

    def seal_identities(self) -> None:
        """Does nothing."""


class EventRedaction:
    """Redacts the events of one parse, and collects their identities for the vault. Not thread-safe."""

    def __init__(self, spec: PipelineSpec, keys: RedactionKeys, reader: EventReader, findings: TaskFindings) -> None:
        if spec.privacy is None:
            raise TypeError(f"{spec.pipeline} has no personal data")
        self._redactor = Redactor(spec.privacy, keys.token_key, suppression=keys.suppression)
        self._reader = reader
        self._findings = findings
        self._seal_keys = keys.seal
        self._sealer = None if keys.seal is None else keys.seal.sealer()
        self._is_json = spec.source.format == "json"
        self._retain_raw_bytes = spec.quarantine.retain_raw_bytes
        self._result = RedactionResult(counts=findings.privacy)
        self._sealed_identities: set[Identity] = set()
        self._earliest_ms: dict[tuple[str, str, str, str | None], int] = {}
        #: State of the columnar redaction.
        self.columnar = ColumnarRedaction(self._redactor, self._record_identity)
        self._unreadable_bytes = 0
        self._read_at_ms = 0

    def start(self, read_at_us: int) -> None:
        """Sets the time of reading, used for events without a recorded arrival time."""
        self._read_at_ms = read_at_us // 1000

    def redact_event(self, event: dict[str, Any], arrived_at_us: int | None, raw: bytes) -> bool:
        """Redacts an event in place. Returns False if it must be dropped (opt-out or erased subject); dropped events
        are counted.

        Args:
            raw: the bytes from which the event was parsed.
        """
        at_ms, scanner = self.arrival_ms(arrived_at_us), self._redactor.scanner
        # The raw bytes do not contain the record's metadata.
        scans = scanner is not None and (not self._is_json or RECORD_FIELD in event or scanner.may_contain(raw))
        is_accepted = (
            self._redactor.redact(event, at_ms=at_ms, result=self._result, scan_texts=scans) is RedactionOutcome.KEPT
        )
        if not is_accepted:
            self._findings.dropped_sequence_numbers.add_event(event)
        return is_accepted

    def record_dropped(self, value: Any) -> None:
        """Records the collector's sequence number of an event that columnar redaction dropped."""
        self._findings.dropped_sequence_numbers.add_event(self._reader.read_event(value))

    def arrival_ms(self, arrived_at_us: int | None) -> int:
        """Returns an event's arrival time in milliseconds since 1970."""
        return self._read_at_ms if arrived_at_us is None else arrived_at_us // 1000

    def may_contain(self, record: Mapping[str, Any]) -> bool:
        """Returns whether a record's metadata may contain emails or phone numbers."""
        counts: Counter[str] = Counter()
        if self._redactor.scanner is not None:
            self._redactor.scanner.scan(copy.deepcopy(dict(record)), counts)
        return bool(counts)

    def snapshot_counts(self) -> Mapping[str, int]:
        """Returns a copy of the counts, for `restore_counts`."""
        return dict(self._result.counts)

    def restore_counts(self, snapshot: Mapping[str, int]) -> None:
        """Resets the counts to a snapshot, because the same events are redacted and counted again."""
        self._result.counts.clear()
        self._result.counts.update(snapshot)

    def _record_identity(self, subject: str, kind: str, token: str, value: str | None, at_ms: int) -> None:
        """Records an identity of decoded events once, with its earliest arrival time."""
        identity_key = (subject, kind, token, value)
        if at_ms < self._earliest_ms.get(identity_key, at_ms + 1):
            self._earliest_ms[identity_key] = at_ms
            self._result.identities.append(Identity(*identity_key, at_ms))

    def redact_reread(self, event: Any) -> Any:
        """Redacts an event that was accepted before and is read again from its bytes."""
        return self._redactor.redact_reread(event, at_ms=self._read_at_ms)

    def redact_rejected(self, rows: Sequence[RejectedEvent]) -> list[RejectedEvent]:
        """Redacts rows for quarantine. Events that must be dropped get no row and are counted."""
        redacted = []
        for row in rows:
            result = self._redact_row(row) if row.raw else row
            if result is not None:
                redacted.append(replace(result, record=_without_producer_fields(result.record)))
        return redacted

    def redact_raw(self, raw: bytes) -> tuple[bytes, int]:
        """Returns the bytes of an event that quarantine may store, and the length of the original."""
        if not self._is_json:
            return b"", len(raw)
        outcome, text = self._redact_bytes(raw, self._read_at_ms)
        return (b"", len(raw)) if text is None or outcome is not RedactionOutcome.KEPT else (text, len(text))

    def seal_identities(self) -> None:
        """Encrypts the identities of this parse into frames, which the driver writes to the vault."""
        # The earliest arrival time of equal identities is kept, so the result does not depend on the order of events.
        earliest = sorted(dict.fromkeys(self._result.identities), key=lambda item: item.at_ms)
        new = [item for item in earliest if self._is_new(item)]
        self._result.identities.clear()
        self._earliest_ms.clear()
        if self._sealer is None or self._seal_keys is None:
            return
        for start in range(0, len(new), _IDENTITIES_PER_FRAME):
            name = f"{self._seal_keys.batch}/{uuid.uuid4().hex}"
            payload = self._sealer.seal_identities(new[start : start + _IDENTITIES_PER_FRAME], name=name)
            self._findings.sealed_frames.append((SealedKind.IDENTITIES, payload))

    def _is_new(self, identity: Identity) -> bool:
        """Returns whether the identity was not sealed before in this parse, with any arrival time."""
        identity_key = identity._replace(at_ms=0)
        if identity_key in self._sealed_identities:
            return False
        self._sealed_identities.add(identity_key)
        return True

    def _redact_row(self, row: RejectedEvent) -> RejectedEvent | None:
        if not self._is_json:
            return replace(row, raw=b"", original_bytes=len(row.raw))
        at_ms = self.arrival_ms(row.arrived_at_us)
        outcome, text = self._redact_bytes(row.raw, at_ms)
        if outcome is not RedactionOutcome.KEPT:
            self._findings.privacy[outcome.value] += 1
            self._findings.dropped_sequence_numbers.add_raw(row.raw)
            return None
        return self._seal_unreadable(row) if text is None else replace(row, raw=text)

    def _redact_bytes(self, raw: bytes, at_ms: int) -> tuple[RedactionOutcome, bytes | None]:
        """Returns the redacted event in a new wrapper as JSON; None if the bytes cannot be parsed."""
        try:
            value = parse_lossless(raw) if has_rounded_number(raw) else orjson.loads(raw)
            exact = self._reader.lossless_event(raw) if has_rounded_number(raw) else None
            event = exact if type(exact) is dict else self._reader.read_event(value)
            outcome = self._redactor.redact(event, at_ms=at_ms, result=RedactionResult())
            return outcome, dump_lossless(self._reader.rewrap(event, value))
        except Exception:  # unreadable input is never stored in plain text
            return RedactionOutcome.KEPT, None

    def _seal_unreadable(self, row: RejectedEvent) -> RejectedEvent:
        """Returns the row without its bytes, which are encrypted up to the limit per task."""
        digest = hashlib.sha256(row.raw).hexdigest()
        body = row.raw[: self._retain_raw_bytes]
        self._findings.privacy["unreadable"] += 1
        self._unreadable_bytes += len(body)
        if self._sealer is not None and self._seal_keys is not None and self._unreadable_bytes <= MAX_UNREADABLE_BYTES:
            payload = self._sealer.seal_unreadable(body, name=digest, day=self._seal_keys.day)
            self._findings.sealed_frames.append((SealedKind.UNREADABLE, payload))
        reasons = tuple(
            Reason(reason.code, reason.path, f"{reason.detail} (sha256 {digest})") for reason in row.reasons
        )
        return replace(row, raw=b"", reasons=reasons, original_bytes=len(row.raw))


def _without_producer_fields(record: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns a record's metadata without the fields set by the producer."""
    if record is None or _PRODUCER_FIELDS.isdisjoint(record):
        return record
    return {name: value for name, value in record.items() if name not in _PRODUCER_FIELDS}


def utc_day(epoch_seconds: float) -> str:
    """Returns the UTC day of an instant, as in the names of day keys."""
    return datetime.fromtimestamp(epoch_seconds, UTC).date().isoformat()
