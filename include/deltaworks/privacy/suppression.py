"""Suppression: the tokens of erased subjects, whose events are dropped wherever they come in again.

The list of a namespace is a row of records in the lake, numbered without gaps, each put if absent and never changed. A
record names tokens by a second HMAC, so that the list itself names nobody. The highest number says which requests a
reader has heard of: a batch that was prepared with it or a higher one holds nothing of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from deltaworks.errors import ContractError
from deltaworks.privacy import paths
from deltaworks.privacy.tokens import suppression_digest

FORMAT: Final = 1


class StoredObject(Protocol):
    """An object's bytes."""

    @property
    def data(self) -> bytes: ...


class SuppressionStore(Protocol):
    """What of an object store the list needs; `control.objects.ObjectStore` has it."""

    def get(self, key: str) -> StoredObject | None:
        """The object, or None where there is none."""

    def list(self, prefix: str) -> list[str]:
        """The keys below `prefix`, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuppressionRecord:
    """One request's tokens. Times are ISO 8601 in UTC.

    `digests` are `suppression_digest` of the tokens. Events that came in after `until` count again only where `after`
    is `accept`, which a new consent alone justifies; without `until` the entry never ends.
    """

    namespace: str
    number: int
    request_id: str
    created_at: str
    digests: tuple[str, ...]
    until: str | None = None
    after: str = "drop"

    def encode(self) -> bytes:
        """The object's bytes."""
        fields: dict[str, Any] = {"format": FORMAT}
        fields |= {name: getattr(self, name) for name in self.__slots__ if name != "digests"}
        return json.dumps(fields | {"digests": list(self.digests)}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes, *, key: str) -> SuppressionRecord:
        """Read the object at `key`.

        Raises:
            ContractError: SUPPRESSION_UNREADABLE.
        """
        try:
            fields = json.loads(data)
            if fields.pop("format") != FORMAT:
                raise ValueError("it is of another format")
            fields["digests"] = tuple(map(str, fields["digests"]))
            record = cls(**fields)
            if record.until is not None:
                datetime.fromisoformat(record.until)
        except (ValueError, KeyError, TypeError) as error:
            raise _unreadable_error(key, f"{type(error).__name__}: {error}") from error
        return record


@dataclass(frozen=True, slots=True)
class Suppression:
    """The list of a namespace as of its record `number`; 0 where there is none. Immutable, and sent to tasks as it is.

    `until_us` has the end of each entry, microseconds since 1970; None for those without.
    """

    number: int = 0
    until_us: Mapping[str, int | None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.until_us)

    def __contains__(self, digest: str) -> bool:
        return digest in self.until_us

    def matches(self, key: bytes, tokens: Iterable[str], *, at_us: int) -> bool:
        """Whether one of the tokens is suppressed for an event that came in at that time.

        Args:
            key: of the namespace's tokens.
        """
        if not self.until_us:
            return False
        return any(self.matches_digest(suppression_digest(key, token), at_us=at_us) for token in tokens)

    def matches_digest(self, digest: str, *, at_us: int) -> bool:
        """Whether a digest is suppressed for an event that came in at that time, microseconds since 1970."""
        if digest not in self.until_us:
            return False
        until = self.until_us[digest]
        return until is None or at_us <= until


NO_SUPPRESSION: Final = Suppression()


def merge_records(records: Iterable[SuppressionRecord]) -> Suppression:
    """The list that records make together. An entry lasts as long as the longest of those that name it."""
    number, until_us = 0, dict[str, int | None]()
    for record in records:
        number = max(number, record.number)
        end = _end_us(record)
        for digest in record.digests:
            current = until_us.get(digest, end)
            until_us[digest] = None if current is None or end is None else max(current, end)
    return Suppression(number, until_us)


def read_suppression(objects: SuppressionStore, namespace: str, *, since: Suppression = NO_SUPPRESSION) -> Suppression:
    """The list of a namespace now. One listing; records that `since` has are not read again where none is new.

    Raises:
        ContractError: SUPPRESSION_UNREADABLE: a list that is read in part would bring somebody back.
        TransientError: the storage does not answer.
    """
    keys = objects.list(paths.suppressions(namespace))
    numbers = [_record_number(key) for key in keys]
    if max(numbers, default=0) == since.number:
        return since
    records = []
    for key, number in zip(keys, numbers, strict=True):
        stored = objects.get(key)
        if stored is None:
            continue  # expired between the listing and now: its entries have no effect any more
        record = SuppressionRecord.decode(stored.data, key=key)
        if record.number != number or record.namespace != namespace:
            raise _unreadable_error(key, f"it says {record.namespace}, number {record.number}")
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
        raise _unreadable_error(key, "its name is no number")
    return int(name)


def _unreadable_error(key: str, reason: str) -> ContractError:
    return ContractError(
        "SUPPRESSION_UNREADABLE",
        f"{key} is no suppression record this release can read: {reason}.",
        hint="Nothing is read without the whole list: an erased subject would come back. Put the object back, or run "
        "the release that wrote it.",
    )
