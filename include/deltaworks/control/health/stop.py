"""Stop flags: objects that request a stream or relay to end between two batches."""

from __future__ import annotations

from deltaworks.control.clock import iso_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import StateRecord


class StopRequest(StateRecord):
    """Who requested the stop, why and when; `group` if it stops a stream group."""

    by: str
    reason: str
    at: str
    group: str = ""

    def restart_command(self, name: str) -> str:
        """The command that withdraws the request."""
        return f"deltaworks start --group {self.group}" if self.group else f"deltaworks start {name}"


class StopFlag:
    """One stop flag. Setting and clearing are idempotent."""

    def __init__(self, objects: ObjectStore, key: str) -> None:
        self._objects = objects
        self._key = key

    def set(self, *, by: str, reason: str) -> StopRequest:
        """Requests a stop."""
        request = StopRequest(by=by, reason=reason, at=iso_now())
        self._objects.put(self._key, request.encode())
        return request

    def clear(self) -> None:
        """Withdraws the request."""
        self._objects.delete(self._key)

    def read(self) -> StopRequest | None:
        """Reads the current request, if there is one.

        Raises:
            ValueError: the object is damaged.
        """
        return StopRequest.read(self._objects, self._key)
