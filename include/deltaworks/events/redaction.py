"""Personal data in the parser: events are stripped as they are read, before anything is made of them.

Before columns, since rows must not hold it; and before quarantine, whose `raw` holds the stripped event instead of what
was sent. What cannot be read cannot be stripped: it is sealed under the key of its day, and quarantine keeps how long
it was, its digest, and why it is there.
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
from deltaworks.privacy.envelope_encryption import SealedKind, Sealer
from deltaworks.privacy.identities import Identity
from deltaworks.privacy.keys.base import Context, DataKey, DestroyedKey
from deltaworks.privacy.redactor import RedactionOutcome, RedactionResult, Redactor
from deltaworks.privacy.suppression import NO_SUPPRESSION, Suppression
from deltaworks.specs.pipeline import PipelineSpec

#: What a task seals of bodies that cannot be read; of those beyond it there is the digest.
MAX_UNREADABLE_BYTES: Final = 16 << 20
#: Identities in a frame: what one decryption brings into memory.
_IDENTITIES_PER_FRAME: Final = 10_000
#: What of a record is not kept in quarantine: producers put ids of people there.
_PRODUCER_FIELDS: Final = frozenset({"key", "headers"})


@dataclass(frozen=True, slots=True)
class SealKeys:
    """By what one pass seals, for whom and under which day."""

    namespace: str
    writer: str
    batch: str
    data_key: DataKey
    day: str
    day_key: bytes = field(repr=False)

    def new_key(self, context: Context) -> DataKey:
        """The one key of the pass, which its driver had made."""
        return self.data_key

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        """Who seals does not open."""
        raise NotImplementedError("a pass only seals")

    def destroy(self, key_id: str) -> DestroyedKey:
        """Who seals destroys nothing."""
        raise NotImplementedError("a pass only seals")

    def sealer(self) -> Sealer:
        """What seals under these keys."""
        return Sealer(self, namespace=self.namespace, writer=self.writer, day_key=lambda _day: self.day_key)


@dataclass(frozen=True, slots=True)
class RedactionKeys:
    """By what a pass strips: the key of the namespace's tokens, and who is suppressed. Sent to tasks.

    `seal` is None where nothing new is sealed: what is read again was sealed when it was read first.
    """

    token_key: bytes = field(repr=False)
    suppression: Suppression = NO_SUPPRESSION
    seal: SealKeys | None = None


def create_redaction(
    spec: PipelineSpec, keys: RedactionKeys | None, reader: EventReader, findings: TaskFindings
) -> EventRedaction | NoRedaction:
    """What strips the events of a pipeline; where it declares no personal data, what leaves them as they are.

    Raises:
        ConfigError: REDACTION_KEYS_MISSING: nothing is read as it was sent for want of keys.
    """
    if spec.privacy is None:
        return NoRedaction()
    if keys is None:
        raise ConfigError(
            "REDACTION_KEYS_MISSING",
            f"The pipeline {spec.pipeline} has personal data, and its events are to be read without the keys for it.",
            hint="Declare `privacy` in the environment, and give the process its key service.",
        )
    return EventRedaction(spec, keys, reader, findings)


class NoRedaction:
    """Leaves events of nobody as they were sent."""

    columnar = None

    def start(self, read_at_us: int) -> None:
        """Nothing depends on when it was read."""

    def arrival_ms(self, arrived_at_us: int | None) -> int:
        """Nothing depends on when it came in."""
        return 0

    def may_contain(self, record: Mapping[str, Any]) -> bool:
        """Nothing is looked for."""
        return False

    def snapshot_counts(self) -> Mapping[str, int]:
        """Nothing is counted."""
        return {}

    def restore_counts(self, before: Mapping[str, int]) -> None:
        """Nothing is counted."""

    def redact_event(self, event: dict[str, Any], arrived_at_us: int | None, raw: bytes) -> bool:
        """Every event is kept."""
        return True

    def record_dropped(self, value: Any) -> None:
        """Nothing is dropped."""

    def redact_reread(self, event: Any) -> Any:
        """The event."""
        return event

    def redact_rejected(self, rows: list[RejectedEvent]) -> list[RejectedEvent]:
        """The rows."""
        return rows

    def redact_raw(self, raw: bytes) -> tuple[bytes, int]:
        """The bytes, and their length."""
        return raw, len(raw)

    def seal_identities(self) -> None:
        """Nothing is sealed."""


class EventRedaction:
    """Strips the events of one pass. Used by one thread."""

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
        #: What strips decoded events.
        self.columnar = ColumnarRedaction(self._redactor, self._record_identity)
        self._unreadable_bytes = 0
        self._read_at_ms = 0

    def start(self, read_at_us: int) -> None:
        """Take note of when what follows was read, where it is on no record when it came in."""
        self._read_at_ms = read_at_us // 1000

    def redact_event(self, event: dict[str, Any], arrived_at_us: int | None, raw: bytes) -> bool:
        """Strip an event in place; False for one that is to be kept nowhere, which is counted.

        Args:
            raw: the bytes that it was read from.
        """
        at_ms, scanner = self.arrival_ms(arrived_at_us), self._redactor.scanner
        # What a record says of itself stands in no bytes.
        scans = scanner is not None and (not self._is_json or RECORD_FIELD in event or scanner.may_contain(raw))
        kept = self._redactor.redact(event, at_ms=at_ms, result=self._result, scan_texts=scans) is RedactionOutcome.KEPT
        if not kept:
            self._findings.dropped_sequence_numbers.add_event(event)
        return kept

    def record_dropped(self, value: Any) -> None:
        """Note the number of an event that was dropped by its columns, from the value that it was read from."""
        self._findings.dropped_sequence_numbers.add_event(self._reader.read_event(value))

    def arrival_ms(self, arrived_at_us: int | None) -> int:
        """When an event came in, milliseconds since 1970."""
        return self._read_at_ms if arrived_at_us is None else arrived_at_us // 1000

    def may_contain(self, record: Mapping[str, Any]) -> bool:
        """Whether what a record says of itself has what is scanned for."""
        counts: Counter[str] = Counter()
        if self._redactor.scanner is not None:
            self._redactor.scanner.scan(copy.deepcopy(dict(record)), counts)
        return bool(counts)

    def snapshot_counts(self) -> Mapping[str, int]:
        """What was counted so far."""
        return dict(self._result.counts)

    def restore_counts(self, before: Mapping[str, int]) -> None:
        """Forget what was counted since: these events are stripped once more."""
        self._result.counts.clear()
        self._result.counts.update(before)

    def _record_identity(self, subject: str, kind: str, token: str, value: str | None, at_ms: int) -> None:
        """Note an identity of decoded events; once, unless it was earlier than it was noted."""
        timeless = (subject, kind, token, value)
        if at_ms < self._earliest_ms.get(timeless, at_ms + 1):
            self._earliest_ms[timeless] = at_ms
            self._result.identities.append(Identity(*timeless, at_ms))

    def redact_reread(self, event: Any) -> Any:
        """An event that was kept and is read again from its bytes."""
        return self._redactor.redact_reread(event, at_ms=self._read_at_ms)

    def redact_rejected(self, rows: Sequence[RejectedEvent]) -> list[RejectedEvent]:
        """Rows as quarantine may keep them. Those of events that are to be kept nowhere are left out, and counted."""
        kept = []
        for row in rows:
            stripped = self._redact_row(row) if row.raw else row
            if stripped is not None:
                kept.append(replace(stripped, record=_without_producer_fields(stripped.record)))
        return kept

    def redact_raw(self, raw: bytes) -> tuple[bytes, int]:
        """What quarantine keeps of an event's bytes, and the length it notes."""
        if not self._is_json:
            return b"", len(raw)
        outcome, text = self._redact_bytes(raw, self._read_at_ms)
        return (b"", len(raw)) if text is None or outcome is not RedactionOutcome.KEPT else (text, len(text))

    def seal_identities(self) -> None:
        """Seal the identities that were met, for the driver to bring to the vault."""
        # Of those that differ in nothing else the one that came in first is told, in whatever order they were met.
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
        """Whether this pass has not sealed it: an identity is the same at any time."""
        timeless = identity._replace(at_ms=0)
        if timeless in self._sealed_identities:
            return False
        self._sealed_identities.add(timeless)
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
        """The stripped event in a wrapper of its own, as JSON; None where it cannot be read."""
        try:
            value = parse_lossless(raw) if has_rounded_number(raw) else orjson.loads(raw)
            exact = self._reader.lossless_event(raw) if has_rounded_number(raw) else None
            event = exact if type(exact) is dict else self._reader.read_event(value)
            outcome = self._redactor.redact(event, at_ms=at_ms, result=RedactionResult())
            return outcome, dump_lossless(self._reader.rewrap(event, value))
        except Exception:  # whatever it is that cannot be read, it is not kept in plain
            return RedactionOutcome.KEPT, None

    def _seal_unreadable(self, row: RejectedEvent) -> RejectedEvent:
        """The row without its bytes, which are sealed as far as there is room for them."""
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
    """What the stream itself says of a record, and nothing its producer does."""
    if record is None or _PRODUCER_FIELDS.isdisjoint(record):
        return record
    return {name: value for name, value in record.items() if name not in _PRODUCER_FIELDS}


def utc_day(epoch_seconds: float) -> str:
    """The day of an instant, UTC, as keys of days are called."""
    return datetime.fromtimestamp(epoch_seconds, UTC).date().isoformat()
