"""The stop flag: an object on shared storage that requests a stream or a relay to end itself between batches."""

from __future__ import annotations

import json
from dataclasses import dataclass

from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Who asked for the stop, why and when; `group` where it is of a whole group of streams."""

    by: str
    reason: str
    at: str
    group: str = ""

    def restart_command(self, name: str) -> str:
        """The command that withdraws it."""
        return f"deltaworks start --group {self.group}" if self.group else f"deltaworks start {name}"


class StopFlag:
    """One stop flag. Setting and clearing are idempotent."""

    def __init__(self, objects: ObjectStore, key: str) -> None:
        self._objects = objects
        self._key = key

    def set(self, *, by: str, reason: str) -> StopRequest:
        """Request a stop."""
        request = StopRequest(by=by, reason=reason, at=iso_now())
        record = {"by": by, "reason": reason, "at": request.at}
        self._objects.put(self._key, json.dumps(record).encode())
        return request

    def clear(self) -> None:
        """Withdraw the request."""
        self._objects.delete(self._key)

    def read(self) -> StopRequest | None:
        """The request in force, if there is one."""
        item = self._objects.get(self._key)
        return StopRequest(**json.loads(item.data)) if item else None
