"""Records of remediations: one object per notification, created once and replaced by compare-and-swap."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import ClassVar, Literal

from pydantic import Field

from deltaworks.control import paths
from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, StateRecord
from deltaworks.errors import FencedError

#: planned → called → verified or rolled_back; the other states are final, too.
RemediationState = Literal["planned", "called", "verified", "rolled_back", "failed", "refused", "dry_run"]
#: In these states the weights were changed or may have been changed.
ACTED_STATES: tuple[RemediationState, ...] = ("planned", "called", "verified", "rolled_back", "failed")


class RemediationRecord(Record):
    """A notification and the resulting action.

    The weights by target are in `before` and `after`. The time `attempted_at` is written before the call, and
    `rollback_attempted_at` before the call that reverts it. A process that finds one of these times reads the weights
    and does not repeat the call.
    """

    kind: ClassVar[RecordKind] = RecordKind(
        noun="record of a remediation",
        unreadable_condition="REMEDIATION_UNREADABLE",
        hint="See what the weights are, put the object back from the storage's versions or delete it, then "
        "`deltaworks remediations resume`.",
    )

    remediation: str
    notification: str
    subject: str
    state: RemediationState
    at: str
    source: str = ""
    target: str = ""
    before: dict[str, float] = Field(default_factory=dict)
    after: dict[str, float] = Field(default_factory=dict)
    value: float | None = None
    attempted_at: str | None = None
    called_at: str | None = None
    rollback_attempted_at: str | None = None
    ended_at: str | None = None
    reason: str = ""


class RemediationHold(StateRecord):
    """Who paused a remediation, why and when."""

    by: str
    reason: str
    at: str


class RemediationRecords:
    """The records of all remediations, and the objects that pause them."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def read(self, notification: str) -> RemediationRecord | None:
        """Reads the record of a notification.

        Raises:
            ContractError: REMEDIATION_UNREADABLE.
        """
        key = paths.remediation(notification)
        stored = self._objects.get(key)
        return None if stored is None else RemediationRecord.decode(stored.data, key=key)

    def create(self, record: RemediationRecord) -> bool:
        """Creates a record; returns False if another process created one for the notification."""
        return self._objects.put_if_absent(paths.remediation(record.notification), record.encode())

    def replace(self, expected: RemediationRecord, updated: RemediationRecord) -> RemediationRecord:
        """Replaces a record.

        Raises:
            FencedError: REMEDIATION_TAKEN_OVER, another process has written since.
        """
        key = paths.remediation(expected.notification)
        stored = self._objects.get(key)
        same = stored is not None and stored.data == expected.encode()
        if stored is None or not same or self._objects.put_if_match(key, updated.encode(), stored.etag) is None:
            raise FencedError(
                "REMEDIATION_TAKEN_OVER", f"Another process works on what notification {expected.notification} set off."
            )
        return updated

    def all(self, remediation: str | None = None, *, since: datetime | None = None) -> Iterator[RemediationRecord]:
        """Yields all records, or those of one remediation, oldest first.

        Args:
            since: skip older notifications, by their ids, which begin with their time.
        """
        first = paths.remediation(f"{since:%Y%m%dT%H%M%S}") if since is not None else ""
        for key in self._objects.list(paths.REMEDIATIONS_FOLDER + "/"):
            if key < first:
                continue
            stored = self._objects.get(key)
            record = None if stored is None else RemediationRecord.decode(stored.data, key=key)
            if record is not None and remediation in (None, record.remediation):
                yield record

    def hold(self, remediation: str, *, by: str, reason: str) -> None:
        """Pauses a remediation: it plans nothing until `resume`. Open actions are still verified."""
        hold = RemediationHold(by=by, reason=reason, at=iso_now())
        self._objects.put(paths.remediation_hold(remediation), hold.encode())

    def resume(self, remediation: str) -> bool:
        """Resumes a remediation; returns False if it was not paused."""
        key = paths.remediation_hold(remediation)
        if self._objects.get(key) is None:
            return False
        self._objects.delete(key)
        return True

    def hold_reason(self, remediation: str) -> str | None:
        """Returns why, by whom and since when it is paused; None if it is not. An unreadable object pauses it, too."""
        stored = self._objects.get(paths.remediation_hold(remediation))
        if stored is None:
            return None
        try:
            hold = RemediationHold.decode(stored.data)
            return f"{hold.reason} ({hold.by}, {hold.at})"
        except ValueError:
            return "the hold object cannot be read"
