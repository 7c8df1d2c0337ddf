"""What a pass over a batch finds out beside rows: new fields, warnings of rules, lost objects, why it must stop.

Each task has its own and sends it to the driver as plain data, where they are put together.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deltaworks.errors import ConfigError, ContractError, DeltaworksError, TransientError

#: New fields of one table that a task remembers; a producer that invents names without end is not followed further.
MOST_NEW_FIELDS = 1_000
#: Keys of lost objects that are told; quarantine has all of them.
MOST_EXAMPLES = 10
OBJECT_MISSING = "object_missing"

#: As what a task's failure reaches the driver; what is of none of them is of no special kind.
_FAILURES: Mapping[str, type[DeltaworksError]] = {
    kind.__name__: kind for kind in (ConfigError, ContractError, TransientError)
}

Path = tuple[str, ...]


@dataclass(slots=True)
class Findings:
    """`new_fields`: by table and path, the kinds of the values met; `rule_warnings`: rows by `table.rule`.

    `objects_rejected`: objects nothing could be read of, by reason; `objects_missing`: some that were gone, by key.
    """

    rule_warnings: Counter[str] = field(default_factory=Counter)
    new_fields: dict[str, dict[Path, set[str]]] = field(default_factory=dict)
    objects_rejected: Counter[str] = field(default_factory=Counter)
    objects_missing: list[str] = field(default_factory=list)
    failure: DeltaworksError | None = None

    def note_field(self, table: str, path: Path, kind: str) -> None:
        """A field of `table` that no column takes, with a value of this kind."""
        known = self.new_fields.setdefault(table, {})
        if path in known or len(known) < MOST_NEW_FIELDS:
            known.setdefault(path, set()).add(kind)

    def note_object(self, reason: str, key: str) -> None:
        """An object nothing could be read of."""
        self.objects_rejected[reason] += 1
        if reason == OBJECT_MISSING and len(self.objects_missing) < MOST_EXAMPLES:
            self.objects_missing.append(key)

    def add(self, other: Findings) -> None:
        """Take in what another task found."""
        self.rule_warnings.update(other.rule_warnings)
        self.objects_rejected.update(other.objects_rejected)
        self.objects_missing = (self.objects_missing + other.objects_missing)[:MOST_EXAMPLES]
        for table, paths in other.new_fields.items():
            for path, kinds in paths.items():
                for kind in kinds:
                    self.note_field(table, path, kind)
        self.failure = self.failure or other.failure

    def facts(self) -> dict[str, Any]:
        """What the prepared batch and the ledger keep of it."""
        facts: dict[str, Any] = {}
        if self.rule_warnings:
            facts["rule_warnings"] = dict(sorted(self.rule_warnings.items()))
        if self.objects_rejected:
            facts["objects_rejected"] = dict(sorted(self.objects_rejected.items()))
        if self.objects_missing:
            facts["objects_missing"] = self.objects_missing
        return facts

    def encode(self) -> str:
        """As text, to be sent to the driver."""
        fields = [
            [table, list(path), sorted(kinds)]
            for table, paths in self.new_fields.items()
            for path, kinds in paths.items()
        ]
        failure = self.failure and self.failure.as_record() | {"kind": _kind_of(self.failure)}
        told = {"rule_warnings": self.rule_warnings, "new_fields": fields, "failure": failure}
        objects = {"objects_rejected": self.objects_rejected, "objects_missing": self.objects_missing}
        return json.dumps(told | objects)

    @classmethod
    def decode(cls, text: str) -> Findings:
        """What `encode` wrote."""
        record = json.loads(text)
        found = cls(Counter(record["rule_warnings"]))
        for table, path, kinds in record["new_fields"]:
            found.new_fields.setdefault(table, {})[tuple(path)] = set(kinds)
        found.objects_rejected = Counter(record["objects_rejected"])
        found.objects_missing = record["objects_missing"]
        found.failure = _failure(record["failure"])
        return found

    def __bool__(self) -> bool:
        return bool(self.rule_warnings or self.new_fields or self.objects_rejected or self.failure)


def _kind_of(failure: DeltaworksError) -> str:
    return next((name for name, kind in _FAILURES.items() if isinstance(failure, kind)), "")


def _failure(record: Mapping[str, Any] | None) -> DeltaworksError | None:
    if record is None:
        return None
    kind = _FAILURES.get(record["kind"], DeltaworksError)
    return kind(record["condition"], record["message"], hint=record["hint"], retryable=record["retryable"])
