"""All errors that Deltaworks raises: a condition code, what happened and where, the next step, and whether to retry.

Subclasses differ by handling, not by origin: the exit code tells the launcher of a job how to react.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, ClassVar, Literal

#: A Deltaworks error in the traceback of another process.
_IN_TRACEBACK = re.compile(r"\bdeltaworks(?:\.\w+)*\.(\w+): \[([A-Z][A-Z0-9_]+)\] ([^\n]+)")


#: How urgent an alert is, see `deltaworks.errors.conditions.SEVERITIES`.
Severity = Literal["info", "warning", "critical"]
_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


@cache
def read_catalog() -> dict[str, Any]:
    """Returns the content of `conditions.json`, which is read once per process; `deltaworks.errors.conditions` has its
    model.
    """
    # Errors that are handled need no resource reader.
    from importlib.resources import files

    content: dict[str, Any] = json.loads(files(__name__).joinpath("conditions.json").read_bytes())
    return content


def hint_for(code: str) -> str:
    """Returns the general next step of a condition, without Markdown's links; empty for unknown ones."""
    catalog = read_catalog()
    row = next((rows[code] for rows in (catalog["health"], *catalog["errors"].values()) if code in rows), None)
    if row is None:
        return ""
    text = _LINK.sub(r"\1 (docs/\2)", row["next_step"])
    return f"{text[:1].upper()}{text[1:]}."


class DeltaworksError(Exception):
    """An error with a condition code, a hint and a retry flag. Without a hint it has the next step of its condition."""

    exit_code: ClassVar[int] = 1
    default_retryable: ClassVar[bool] = False

    def __init__(self, condition: str, message: str, *, hint: str = "", retryable: bool | None = None) -> None:
        super().__init__(condition, message)
        self.condition = condition
        self.message = message
        self._hint = hint
        self.retryable = self.default_retryable if retryable is None else retryable

    @property
    def hint(self) -> str:
        """The next step: of this error, or else of its condition in the catalog; empty if there is neither."""
        if self._hint:
            return self._hint
        # The catalog is read for errors that are reported, not for those that are handled.
        return hint_for(self.condition)

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}" + (f" Next: {self.hint}" if self.hint else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.condition, self.message, self._hint, self.retryable))

    def as_record(self) -> dict[str, Any]:
        """Returns the error as a dictionary, for a job's last output line and the heartbeat."""
        return {
            "condition": self.condition,
            "message": self.message,
            "hint": self.hint,
            "retryable": self.retryable,
        }

    def as_line(self) -> str:
        """Returns one line that a launcher finds in a job's output and parses."""
        return "DELTAWORKS_ERROR " + json.dumps(self.as_record())


def _rebuild(
    error_type: type[DeltaworksError], condition: str, message: str, hint: str, retryable: bool
) -> DeltaworksError:
    return error_type(condition, message, hint=hint, retryable=retryable)


class ConfigError(DeltaworksError):
    """A spec, an argument or the installation is invalid. Retrying does not help."""

    exit_code = 10


class ContractError(DeltaworksError):
    """Data or a table on disk violates its contract. Retrying does not help."""

    exit_code = 11


class ConcurrencyError(DeltaworksError):
    """Another process holds or changed a resource of this operation. A retry can succeed."""

    exit_code = 20
    default_retryable = True


class TransientError(DeltaworksError):
    """A server or the network failed. A retry can succeed."""

    exit_code = 21
    default_retryable = True


class FencedError(DeltaworksError):
    """A new owner has taken over. The process stops without an alert and writes nothing more."""

    exit_code = 30


def last_error_in(text: str) -> DeltaworksError | None:
    """Parses the last Deltaworks error in a text, such as the Python traceback that Spark reports; None if there is
    none.
    """
    matches = _IN_TRACEBACK.findall(text)
    if not matches:
        return None
    name, condition, error_text = matches[-1]
    error_types = (ConfigError, ContractError, ConcurrencyError, TransientError, FencedError)
    error_type = next((error_type for error_type in error_types if error_type.__name__ == name), ContractError)
    message, _, hint = error_text.partition(" Next: ")
    return error_type(condition, message, hint=hint)
