"""All errors that Deltaworks raises: a condition code, what happened and where, the next step, and whether to retry.

Subclasses differ by handling, not by origin: the exit code tells the launcher of a job how to react.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Final, Literal, Self

#: A Deltaworks error in the traceback of another process, where it begins its line. Elsewhere in a line it is data,
#: such as an object's key in the message of another exception.
_IN_TRACEBACK = re.compile(r"^deltaworks(?:\.\w+)*\.(\w+): \[([A-Z][A-Z0-9_]+)\] ([^\n]+)", re.MULTILINE)
#: The variable with the number that a task's launcher expects in the lines that its job prints for it. A job also
#: prints data, which cannot contain the number.
NONCE_VARIABLE: Final = "DELTAWORKS_LINE_NONCE"
#: Separates the listed items of a message. Data have no line ends.
_ITEM_SEPARATOR = "\n  "
#: Unicode categories that a terminal interprets or does not show: controls, formats, surrogates, private use,
#: unassigned, line and paragraph separators.
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


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
    """An error with a condition code, a hint and a retry flag. Without a hint it has the next step of its condition.

    Line ends in message, items and hint become spaces, and control characters are escaped: they may be data of
    producers, such as an object's key, and must not write lines of their own to a log.

    Args:
        items: listed after the message, each on an indented line.
    """

    exit_code: ClassVar[int] = 1
    default_retryable: ClassVar[bool] = False

    def __init__(
        self,
        condition: str,
        message: str,
        *,
        items: Sequence[str] = (),
        hint: str = "",
        retryable: bool | None = None,
    ) -> None:
        self.condition = condition
        self.summary = _one_line(message)
        self.items = tuple(map(_one_line, items))
        self.message = _ITEM_SEPARATOR.join((self.summary, *self.items))
        super().__init__(condition, self.message)
        self._hint = _one_line(hint)
        self.retryable = self.default_retryable if retryable is None else retryable

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Returns the error of `as_record`; missing fields get defaults."""
        summary, *items = str(record.get("message", "The job's message could not be read.")).split(_ITEM_SEPARATOR)
        return cls(
            str(record.get("condition", "JOB_FAILED")),
            summary,
            items=items,
            hint=str(record.get("hint", "")),
            retryable=bool(record.get("retryable", True)),
        )

    @property
    def hint(self) -> str:
        """The next step: of this error, or else of its condition in the catalog; empty if there is neither."""
        if self._hint:
            return self._hint
        # The catalog is read for errors that are reported, not for those that are handled.
        return hint_for(self.condition)

    def with_message(self, message: str, *, hint: str = "") -> Self:
        """Returns the same error with another message, and with another hint if one is given."""
        return type(self)(self.condition, message, hint=hint or self.hint, retryable=self.retryable)

    def __str__(self) -> str:
        return f"[{self.condition}] {self.message}" + (f" Next: {self.hint}" if self.hint else "")

    def __reduce__(self) -> tuple[Any, ...]:
        # Not `as_record`: a hint of the catalog is read where the error is shown.
        record = {
            "condition": self.condition, "message": self.message, "hint": self._hint, "retryable": self.retryable
        }  # fmt: skip
        return (type(self).from_record, (record,))

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
        return job_line("ERROR", json.dumps(self.as_record()))


def line_prefix(kind: str, nonce: str) -> str:
    """Returns how a line of a job for its launcher begins."""
    return f"DELTAWORKS_{kind}:{nonce} " if nonce else f"DELTAWORKS_{kind} "


def job_line(kind: Literal["ERROR", "UI", "RESULTS"], text: str) -> str:
    """Returns a line of this process's output for its launcher, which obeys it only with the launcher's number."""
    return line_prefix(kind, os.environ.get(NONCE_VARIABLE, "")) + text


def escape_invisible(text: str) -> str:
    r"""Escapes line ends and control characters (`\x1b`), so that the text is one harmless line."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escape_character(character) if unicodedata.category(character) in _INVISIBLE_CATEGORIES else character
        for character in text
    )


def _one_line(text: str) -> str:
    """Joins the lines of a text, and escapes control characters."""
    lines = (line.strip() for line in text.splitlines())
    return escape_invisible(text if text.isprintable() else " ".join(line for line in lines if line))


def _escape_character(character: str) -> str:
    code = ord(character)
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


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


def combined_error(condition: str, errors: Sequence[DeltaworksError], *, tables: int) -> DeltaworksError:
    """Returns the error of a run over several tables: the error itself if only one failed, otherwise one that lists all
    failed tables.

    A retry helps if the error of at least one table can pass: finished tables have nothing left to do.
    """
    if len(errors) == 1:
        return errors[0]
    listed = "; ".join(f"[{error.condition}] {error.message.rstrip('.')}" for error in errors)
    return DeltaworksError(
        condition,
        f"{len(errors)} of {tables} tables failed: {listed}.",
        hint=" ".join(dict.fromkeys(f"{error.condition}: {error.hint}" for error in errors if error.hint)),
        retryable=any(error.retryable for error in errors),
    )


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
