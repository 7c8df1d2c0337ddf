"""Statements that clients refer to by handle: planned queries, and prepared statements with their parameters.

A handle is random and valid for its user only. Handles are bounded per user in number and bytes; the oldest go first.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from deltaworks.errors import ConfigError
from deltaworks.sql_server.references import ParsedStatement
from deltaworks.sql_server.snapshots import Snapshot

HANDLE_SECONDS: Final = 3600.0
_MAX_HANDLES: Final = 1_000
_MAX_BYTES: Final = 16 << 20
#: Fixed part of a handle's size.
_HANDLE_BYTES: Final = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement of one user.

    Args:
        parsed: the checked text.
        keys: the tables that it reads.
        schema: of its result; of a prepared statement as far as it is known without parameters.
        snapshots: the versions to read; None for a prepared statement, which reads the newest ones.
        parameter_schema: types of the parameters.
        parameters: their values; None before they are bound. size: bytes of the values.
    """

    parsed: ParsedStatement
    keys: Mapping[tuple[str, str], str]
    schema: pa.Schema
    snapshots: Mapping[str, Snapshot] | None = None
    parameter_schema: pa.Schema = dataclasses.field(default_factory=lambda: pa.schema([]))
    parameters: tuple[Any, ...] | None = None
    size: int = 0


@dataclass(slots=True)
class _Owned:
    """The handles of a user, the oldest first, and their size."""

    statements: OrderedDict[bytes, tuple[Statement, float]] = dataclasses.field(default_factory=OrderedDict)
    bytes: int = 0


class StatementStore:
    """Statements by user and handle. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owned: dict[str, _Owned] = {}

    def add(self, user: str, statement: Statement) -> bytes:
        """Stores a statement. Returns its new handle."""
        handle = secrets.token_bytes(16)
        self._put(user, handle, statement)
        return handle

    def get(self, user: str, handle: bytes) -> Statement:
        """Returns the statement of a user's handle.

        Raises:
            ConfigError: SQL_HANDLE_UNKNOWN, for a handle that has expired, was forged, or belongs to another user.
        """
        with self._lock:
            owned = self._owned.get(user)
            entry = None if owned is None else owned.statements.get(handle)
            if entry is None or time.monotonic() >= entry[1]:
                raise ConfigError("SQL_HANDLE_UNKNOWN", "The statement is unknown or has expired.")
            return entry[0]

    def replace(self, user: str, handle: bytes, statement: Statement) -> None:
        """Replaces the statement of an existing handle, as with bound parameters.

        Raises:
            ConfigError: SQL_HANDLE_UNKNOWN.
        """
        self.get(user, handle)
        self._put(user, handle, statement)

    def remove(self, user: str, handle: bytes) -> None:
        """Forgets a statement. Does nothing for an unknown handle."""
        with self._lock:
            if user in self._owned:
                self._remove(self._owned[user], handle)

    def _put(self, user: str, handle: bytes, statement: Statement) -> None:
        now = time.monotonic()
        with self._lock:
            owned = self._owned.setdefault(user, _Owned())
            self._remove(owned, handle)
            owned.statements[handle] = (statement, now + HANDLE_SECONDS)
            owned.bytes += _size(statement)
            while len(owned.statements) > 1 and (
                len(owned.statements) > _MAX_HANDLES
                or owned.bytes > _MAX_BYTES
                or next(iter(owned.statements.values()))[1] <= now
            ):
                self._remove(owned, next(iter(owned.statements)))

    def _remove(self, owned: _Owned, handle: bytes) -> None:
        entry = owned.statements.pop(handle, None)
        if entry is not None:
            owned.bytes -= _size(entry[0])


def _size(statement: Statement) -> int:
    return _HANDLE_BYTES + 2 * len(statement.parsed.text) + statement.size
