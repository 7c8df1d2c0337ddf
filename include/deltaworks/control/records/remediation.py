"""What a remediation did about each notification: one object a notification, created once and replaced only as it was read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import ClassVar, Literal

from pydantic import Field

from deltaworks.control import outbound_paths
from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind
from deltaworks.errors import FencedError

#: planned → called → verified or rolled_back; the others are ends, too.
RemediationState = Literal["planned", "called", "verified", "rolled_back", "failed", "refused", "dry_run"]
#: Of these the weights have been moved, or may have been.
ACTED_STATES: tuple[RemediationState, ...] = ("planned", "called", "verified", "rolled_back", "failed")


class RemediationRecord(Record):
    """One notification and what followed from it.

    `before` and `after` are weights by target. `attempted_at` is written before the call is made, `back_attempted_at`
    before that which takes it back: whoever finds it asks for the weights and does not call again.
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


class RemediationRecords:
    """The records of all remediations, and the objects that hold them back."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def read(self, notification: str) -> RemediationRecord | None:
        """The record of a notification.

        Raises:
            ContractError: REMEDIATION_UNREADABLE.
        """
        key = outbound_paths.remediation(notification)
        stored = self._objects.get(key)
        return None if stored is None else RemediationRecord.decode(stored.data, key=key)

    def create(self, record: RemediationRecord) -> bool:
        """Take up a notification; False where somebody else has."""
        return self._objects.put_if_absent(outbound_paths.remediation(record.notification), record.encode())

    def replace(self, before: RemediationRecord, after: RemediationRecord) -> RemediationRecord:
        """Write what has become of it.

        Raises:
            FencedError: REMEDIATION_TAKEN_OVER, another process has written since.
        """
        key = outbound_paths.remediation(before.notification)
        stored = self._objects.get(key)
        same = stored is not None and stored.data == before.encode()
        if stored is None or not same or self._objects.put_if_match(key, after.encode(), stored.etag) is None:
            raise FencedError(
                "REMEDIATION_TAKEN_OVER",
                f"Another process works on what notification {before.notification} set off.",
                hint="None: the other one goes on.",
            )
        return after

    def all(self, remediation: str | None = None, *, since: datetime | None = None) -> Iterator[RemediationRecord]:
        """All records, or those of one remediation, the oldest notification first.

        Args:
            since: notifications that are older are left out, by their ids, which begin with their time.
        """
        first = outbound_paths.remediation(f"{since:%Y%m%dT%H%M%S}") if since is not None else ""
        for key in self._objects.list(outbound_paths.REMEDIATIONS_FOLDER + "/"):
            if key < first:
                continue
            stored = self._objects.get(key)
            record = None if stored is None else RemediationRecord.decode(stored.data, key=key)
            if record is not None and remediation in (None, record.remediation):
                yield record

    def hold(self, remediation: str, *, by: str, reason: str) -> None:
        """Hold a remediation back: it plans nothing until `resume`. What is under way is verified all the same."""
        record = {"by": by, "reason": reason, "at": iso_now()}
        self._objects.put(outbound_paths.remediation_hold(remediation), json.dumps(record).encode())

    def resume(self, remediation: str) -> bool:
        """Let it go on; False where it was not held."""
        key = outbound_paths.remediation_hold(remediation)
        if self._objects.get(key) is None:
            return False
        self._objects.delete(key)
        return True

    def hold_reason(self, remediation: str) -> str | None:
        """Who holds it back, why and since when; None where nobody does. What cannot be read holds, too."""
        stored = self._objects.get(outbound_paths.remediation_hold(remediation))
        if stored is None:
            return None
        try:
            record = json.loads(stored.data)
            return f"{record['reason']} ({record['by']}, {record['at']})"
        except (ValueError, KeyError, TypeError):
            return "an object that cannot be read"
