"""Suppression lists: tokens of erased subjects, whose events are dropped wherever they arrive.

The list of a namespace is a series of immutable records in the lake, numbered without gaps and created if absent. A
record contains a second HMAC of each token, so the list does not identify anyone. The number of the last record read
tells which requests are applied: a batch prepared with this or a higher number has no rows of their subjects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from deltaworks.errors import ContractError
from deltaworks.privacy import paths
from deltaworks.privacy.tokens.envelope_encryption import suppression_digest

FORMAT: Final = 1


class StoredObject(Protocol):
    """A stored object with its bytes."""

    @property
    def data(self) -> bytes: ...


class SuppressionStore(Protocol):
    """The methods of an object store that the list needs; implemented by `control.objects.ObjectStore`."""

    def get(self, key: str) -> StoredObject | None:
        """Returns the object; None if it does not exist."""

    def list(self, prefix: str) -> list[str]:
        """Returns the keys that begin with this prefix, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuppressionRecord:
    """The suppressed tokens of one erasure request. Times are ISO 8601 in UTC.

    Attributes:
        digests: `suppression_digest` of the tokens.
        until: end of the suppression; None for no end.
        after: `accept` keeps events that arrive after `until`, which requires a new consent.
    """

    namespace: str
    number: int
    request_id: str
    created_at: str
    digests: tuple[str, ...]
    until: str | None = None
    after: str = "drop"

    def encode(self) -> bytes:
        """Returns the object's bytes."""
        fields: dict[str, Any] = {"format": FORMAT}
        fields |= {name: getattr(self, name) for name in self.__slots__ if name != "digests"}
        return json.dumps(fields | {"digests": list(self.digests)}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> SuppressionRecord:
        """Decodes the object at `key`.

        Raises:
            ContractError: SUPPRESSION_UNREADABLE.
        """
        try:
            fields = json.loads(data)
            if fields.pop("format") != FORMAT:
                raise ValueError("its format is not supported")
            fields["digests"] = tuple(map(str, fields["digests"]))
            record = cls(**fields)
            if record.until is not None:
                datetime.fromisoformat(record.until)
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable_error(key, f"{type(error).__name__}: {error}") from error
        return record


@dataclass(frozen=True, slots=True)
class Suppression:
    """The suppression list of a namespace up to record `number`; 0 for an empty list. Immutable; sent to tasks.

    `until_us` has the end of each entry in microseconds since 1970; None for no end.
    """

    number: int = 0
    until_us: Mapping[str, int | None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.until_us)

    def __contains__(self, digest: str) -> bool:
        return digest in self.until_us

    def matches(self, key: bytes, tokens: Iterable[str], *, at_us: int) -> bool:
        """Returns whether one of the tokens is suppressed for an event that arrived at this time.

        Args:
            key: token key of the namespace.
        """
        if not self.until_us:
            return False
        return any(self.matches_digest(suppression_digest(key, token), at_us=at_us) for token in tokens)

    def matches_digest(self, digest: str, *, at_us: int) -> bool:
        """Returns whether a digest is suppressed for an event that arrived at this time, in microseconds since 1970."""
        if digest not in self.until_us:
            return False
        until = self.until_us[digest]
        return until is None or at_us <= until


NO_SUPPRESSION: Final = Suppression()


def merge_records(records: Iterable[SuppressionRecord]) -> Suppression:
    """Merges suppression records into one list. If a token has several entries, the latest end wins."""
    number, until_us = 0, dict[str, int | None]()
    for record in records:
        number = max(number, record.number)
        end = _end_us(record)
        for digest in record.digests:
            current = until_us.get(digest, end)
            until_us[digest] = None if current is None or end is None else max(current, end)
    return Suppression(number, until_us)


def read_suppression(objects: SuppressionStore, namespace: str, *, since: Suppression = NO_SUPPRESSION) -> Suppression:
    """Reads the current suppression list of a namespace.

    Makes one listing. Records are read only if one is newer than `since`.

    Raises:
        ContractError: SUPPRESSION_UNREADABLE: with an incomplete list an erased subject could reappear.
        TransientError: the storage does not answer.
    """
    keys = objects.list(paths.suppression_folder(namespace))
    numbers = [_record_number(key) for key in keys]
    if max(numbers, default=0) == since.number:
        return since
    records = []
    for key, number in zip(keys, numbers, strict=True):
        stored = objects.get(key)
        if stored is None:
            continue  # expired since the listing: its entries no longer apply
        record = SuppressionRecord.decode(stored.data, key=key)
        if record.number != number or record.namespace != namespace:
            raise _unreadable_error(key, f"it contains record {record.number} of {record.namespace}")
        records.append(record)
    return merge_records(records)


def _end_us(record: SuppressionRecord) -> int | None:
    if record.until is None or record.after != "accept":
        return None
    end = datetime.fromisoformat(record.until)
    return int((end if end.tzinfo else end.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def _record_number(key: str) -> int:
    name = key.rpartition("/")[2].removesuffix(".json")
    if not name.isdigit():
        raise _unreadable_error(key, "its name is not a number")
    return int(name)


def _unreadable_error(key: str, reason: str) -> ContractError:
    return ContractError("SUPPRESSION_UNREADABLE", f"Suppression record {key} is unreadable: {reason}.")
