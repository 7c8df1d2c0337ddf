"""Every error Deltaworks raises: a condition code, what happened and where, what to do next, and whether to retry.

Subclasses are by handling, not by place: an exit code tells the process that launched a job what to do with it.
"""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

#: An error of ours in the traceback of another process.
_IN_TRACEBACK = re.compile(r"\bdeltaworks(?:\.\w+)*\.(\w+): \[([A-Z][A-Z0-9_]+)\] ([^\n]+)")


class DeltaworksError(Exception):
    """An error with a condition code, a next step and a verdict on retrying."""

    exit_code: ClassVar[int] = 1
    default_retryable: ClassVar[bool] = False

    def __init__(self, condition: str, message: str, *, hint: str = "", retryable: bool | None = None) -> None:
        super().__init__(condition, message)
        self.condition = condition
        self.message = message
        self.hint = hint
        self.retryable = self.default_retryable if retryable is None else retryable

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}" + (f" Next: {self.hint}" if self.hint else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.condition, self.message, self.hint, self.retryable))

    def as_record(self) -> dict[str, Any]:
        """The error as a job's last output line and the heartbeat carry it."""
        return {
            "condition": self.condition,
            "message": self.message,
            "hint": self.hint,
            "retryable": self.retryable,
        }

    def as_line(self) -> str:
        """One line a launcher can find in a job's output and act on."""
        return "DELTAWORKS_ERROR " + json.dumps(self.as_record())


def _rebuild(kind: type[DeltaworksError], condition: str, message: str, hint: str, retryable: bool) -> DeltaworksError:
    return kind(condition, message, hint=hint, retryable=retryable)


class ConfigError(DeltaworksError):
    """A declaration, an argument or the installation is wrong: retrying cannot help."""

    exit_code = 10


class ContractError(DeltaworksError):
    """Data or a table on disk is not what was promised: retrying cannot help."""

    exit_code = 11


class ConcurrencyError(DeltaworksError):
    """Somebody else holds or changed what this operation needed: a retry can succeed."""

    exit_code = 20
    default_retryable = True


class TransientError(DeltaworksError):
    """A server or the network failed: a retry can succeed."""

    exit_code = 21
    default_retryable = True


class FencedError(DeltaworksError):
    """A successor has taken over: stop quietly and write nothing more."""

    exit_code = 30


def last_error_in(text: str) -> DeltaworksError | None:
    """The last error of ours that a text tells of: Spark brings what its Python processes raise as their tracebacks."""
    reports = _IN_TRACEBACK.findall(text)
    if not reports:
        return None
    name, condition, text_of_error = reports[-1]
    kinds = (ConfigError, ContractError, ConcurrencyError, TransientError, FencedError)
    kind = next((kind for kind in kinds if kind.__name__ == name), ContractError)
    message, _, hint = text_of_error.partition(" Next: ")
    return kind(condition, message, hint=hint)
