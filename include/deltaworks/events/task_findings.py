"""Task findings: new fields, rule warnings, rejected objects, counts and errors that a task returns with its rows.

Each task sends its findings to the driver as plain data, and the driver merges them in task order.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError
from deltaworks.events.collector_sequence_numbers import CollectorSequenceNumbers
from deltaworks.events.reasons import RejectedEvent, to_printable

#: Maximum number of new fields per table and task, because a producer may invent any number of names.
MAX_NEW_FIELDS = 1_000
#: Maximum number of distinct quarantine reasons that a task counts, and that the ledger stores per batch.
MAX_REASONS, MAX_LEDGER_REASONS = 1_000, 20
#: The same for reasons by event and field, of which there are more.
MAX_LEDGER_KINDS = 100
#: Event names are truncated to this length.
MAX_NAME_LENGTH = 200
#: Maximum number of keys of missing objects in the findings. Quarantine has all of them.
MAX_EXAMPLES = 10
OBJECT_MISSING = "object_missing"
#: Key in the ledger for the sequence numbers of dropped events, by collector process.
DROPPED_SEQUENCE_NUMBERS = "dropped_sequence_numbers"

#: Error classes that the driver restores by name. Other errors become DeltaworksError.
_FAILURES: Mapping[str, type[DeltaworksError]] = {
    kind.__name__: kind for kind in (ConfigError, ContractError, TransientError)
}

Path = tuple[str, ...]


@dataclass(slots=True)
class TaskFindings:
    """Findings of one task, or the merged findings of a batch.

    Attributes:
        new_fields: kinds of values by table and path, for fields that no column reads.
        rule_warnings: rows by `table.rule`.
        objects_rejected: number of unreadable objects by reason.
        objects_missing: some keys of missing objects.
        over_budget: number of payloads by exceeded budget.
        unusable_times: number of events whose unusable time was replaced by their arrival time.
        invalid_addresses: number of values of private fields, by path, dropped because they are not IP addresses.
        privacy: counts of redacted, scanned and dropped events.
        dropped_sequence_numbers: collector sequence numbers of dropped events.
        sealed_frames: encrypted frames for the vault, with their kinds.
        events: number of parsed events, including rejected ones.
        quarantined: number of quarantined events; a row of quarantine may stand for many.
        rejected: quarantined events by reason code and field.
        rejected_events: quarantined events by reason code, event name and field.
        refusal: the error if access to an object was denied.
        any_read: whether some payload could be read.
    """

    rule_warnings: Counter[str] = field(default_factory=Counter)
    new_fields: dict[str, dict[Path, set[str]]] = field(default_factory=dict)
    objects_rejected: Counter[str] = field(default_factory=Counter)
    objects_missing: list[str] = field(default_factory=list)
    over_budget: Counter[str] = field(default_factory=Counter)
    events: int = field(default=0, compare=False)
    quarantined: int = field(default=0, compare=False)
    rejected: Counter[tuple[str, str]] = field(default_factory=Counter, compare=False)
    rejected_events: Counter[tuple[str, str, str]] = field(default_factory=Counter, compare=False)
    unusable_times: int = 0
    invalid_addresses: Counter[str] = field(default_factory=Counter)
    privacy: Counter[str] = field(default_factory=Counter)
    dropped_sequence_numbers: CollectorSequenceNumbers = field(default_factory=CollectorSequenceNumbers)
    sealed_frames: list[tuple[int, bytes]] = field(default_factory=list, compare=False)
    failure: DeltaworksError | None = None
    refusal: DeltaworksError | None = None
    any_read: bool = field(default=False, compare=False)

    def record_new_field(self, table: str, path: Path, kind: str) -> None:
        """Records a field that no column of `table` reads, and the kind of its value."""
        kinds = self.new_fields.setdefault(table, {})
        if path in kinds or len(kinds) < MAX_NEW_FIELDS:
            kinds.setdefault(path, set()).add(kind)

    def record_rejected_object(self, reason: str, key: str) -> None:
        """Records an object that could not be read at all."""
        self.objects_rejected[reason] += 1
        if reason == OBJECT_MISSING and len(self.objects_missing) < MAX_EXAMPLES:
            self.objects_missing.append(key)

    def record_over_budget(self, budget: str) -> None:
        """Counts a payload that exceeded this budget."""
        self.over_budget[budget] += 1

    def record_events(self, events: int, rejected: Iterable[RejectedEvent]) -> None:
        """Adds to the numbers of parsed events and of rejected ones."""
        self.events += events
        for row in rejected:
            self.quarantined += row.events
            for reason in {(str(reason.code), reason.path) for reason in row.reasons}:
                if reason in self.rejected or len(self.rejected) < MAX_REASONS:
                    self.rejected[reason] += row.events
            event = to_printable(row.event_name or "")[:MAX_NAME_LENGTH]
            fields = {(str(reason.code), to_printable(reason.path)[:MAX_NAME_LENGTH]) for reason in row.reasons}
            for kind in {(code, event, path) for code, path in fields}:
                if kind in self.rejected_events or len(self.rejected_events) < MAX_REASONS:
                    self.rejected_events[kind] += row.events

    def merge(self, other: TaskFindings) -> None:
        """Adds the findings of a later task. If a maximum is reached, earlier entries stay."""
        self.rule_warnings.update(other.rule_warnings)
        self.objects_rejected.update(other.objects_rejected)
        self.over_budget.update(other.over_budget)
        self.events += other.events
        self.quarantined += other.quarantined
        self.rejected.update(other.rejected)
        self.rejected_events.update(other.rejected_events)
        self.unusable_times += other.unusable_times
        self.invalid_addresses.update(other.invalid_addresses)
        self.privacy.update(other.privacy)
        self.dropped_sequence_numbers.merge(other.dropped_sequence_numbers)
        self.sealed_frames += other.sealed_frames
        self.objects_missing = (self.objects_missing + other.objects_missing)[:MAX_EXAMPLES]
        for table, paths in other.new_fields.items():
            for path, kinds in paths.items():
                for kind in kinds:
                    self.record_new_field(table, path, kind)
        self.failure = self.failure or other.failure
        self.refusal = self.refusal or other.refusal
        self.any_read = self.any_read or other.any_read

    def ledger_entry(self) -> dict[str, Any]:
        """Returns the findings that are stored in the prepared batch and the ledger."""
        facts: dict[str, Any] = {
            "rule_warnings": _sorted_by_name(self.rule_warnings),
            "objects_rejected": _sorted_by_name(self.objects_rejected),
            "objects_missing": self.objects_missing,
            "over_budget": _sorted_by_name(self.over_budget),
            "events": self.events,
            "quarantined_events": self.quarantined,
            "rejected": _most_frequent(self.rejected.items(), MAX_LEDGER_REASONS),
            "rejected_events": _most_frequent(self.rejected_events.items(), MAX_LEDGER_KINDS),
            "unusable_times": self.unusable_times,
            "invalid_addresses": _sorted_by_name(self.invalid_addresses),
            "privacy": _sorted_by_name(self.privacy),
            DROPPED_SEQUENCE_NUMBERS: self.dropped_sequence_numbers.encode(),
        }
        return {name: value for name, value in facts.items() if value}

    def as_record(self) -> dict[str, Any]:
        """Converts the findings to plain values, for sending to the driver."""
        return {
            "rule_warnings": dict(self.rule_warnings),
            "new_fields": [
                [table, list(path), sorted(kinds)]
                for table, paths in self.new_fields.items()
                for path, kinds in paths.items()
            ],
            "objects_rejected": dict(self.objects_rejected),
            "objects_missing": self.objects_missing,
            "over_budget": dict(self.over_budget),
            "events": self.events,
            "quarantined": self.quarantined,
            "rejected": [[code, path, events] for (code, path), events in self.rejected.items()],
            "rejected_events": [[*kind, events] for kind, events in self.rejected_events.items()],
            "unusable_times": self.unusable_times,
            "invalid_addresses": dict(self.invalid_addresses),
            "privacy": dict(self.privacy),
            "dropped": self.dropped_sequence_numbers.encode(),
            "sealed": [[kind, base64.b64encode(payload).decode()] for kind, payload in self.sealed_frames],
            "failure": _failure_record(self.failure),
            "refusal": _failure_record(self.refusal),
            "any_read": self.any_read,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TaskFindings:
        """Restores the output of `as_record`."""
        findings = cls(
            rule_warnings=Counter(record["rule_warnings"]),
            objects_rejected=Counter(record["objects_rejected"]),
            objects_missing=list(record["objects_missing"]),
            over_budget=Counter(record["over_budget"]),
            events=record["events"],
            quarantined=record["quarantined"],
            rejected=Counter({(code, path): events for code, path, events in record["rejected"]}),
            rejected_events=Counter(
                {(code, name, path): events for code, name, path, events in record["rejected_events"]}
            ),
            unusable_times=record["unusable_times"],
            invalid_addresses=Counter(record["invalid_addresses"]),
            privacy=Counter(record["privacy"]),
            dropped_sequence_numbers=CollectorSequenceNumbers().add_encoded(record["dropped"]),
            sealed_frames=[(kind, base64.b64decode(payload)) for kind, payload in record["sealed"]],
            failure=_failure(record["failure"]),
            refusal=_failure(record["refusal"]),
            any_read=record["any_read"],
        )
        for table, path, kinds in record["new_fields"]:
            findings.new_fields.setdefault(table, {})[tuple(path)] = set(kinds)
        return findings


def _most_frequent(counted: Iterable[tuple[tuple[str, ...], int]], limit: int) -> list[list[Any]]:
    """Returns the most frequent kinds, each as a list that ends with its number of events."""
    ranked = sorted(counted, key=lambda item: (-item[1], item[0]))
    return [[*kind, events] for kind, events in ranked[:limit]]


def _failure_record(failure: DeltaworksError | None) -> dict[str, Any] | None:
    return None if failure is None else failure.as_record() | {"kind": _kind_of(failure)}


def _kind_of(failure: DeltaworksError) -> str:
    return next((name for name, kind in _FAILURES.items() if isinstance(failure, kind)), "")


def _failure(record: Mapping[str, Any] | None) -> DeltaworksError | None:
    if record is None:
        return None
    kind = _FAILURES.get(record["kind"], DeltaworksError)
    return kind(record["condition"], record["message"], hint=record["hint"], retryable=record["retryable"])


def _sorted_by_name(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))
