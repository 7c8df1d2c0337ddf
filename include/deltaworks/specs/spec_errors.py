"""Errors in spec files, with their location and advice."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from deltaworks.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SpecError:
    """An error at a line of a file.

    The `key` is the dotted path of the value; it is empty if the error concerns the complete file.
    """

    file: Path
    line: int
    key: str
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return ": ".join(part for part in (place, self.key, self.text) if part)


def invalid_spec_error(errors: Sequence[SpecError]) -> ConfigError:
    """Returns the ConfigError SPEC_INVALID for all errors of a file."""
    number = len(errors)
    listed = "\n  ".join(str(spec_error) for spec_error in errors)
    return ConfigError("SPEC_INVALID", f"{number} error{'s' * (number != 1)} in {errors[0].file.name}:\n  {listed}")


def closest_match(name: str, candidates: Iterable[str], *, cutoff: float = 0.5) -> str | None:
    """Returns the candidate that is closest to a name; None if no candidate is close."""
    nearest = difflib.get_close_matches(name, sorted(candidates), n=1, cutoff=cutoff)
    return nearest[0] if nearest else None


def format_lines(numbers: Iterable[int]) -> str:
    """Formats line numbers: `line 3`, `lines 3 and 9`."""
    ordered = [str(number) for number in sorted({*numbers})]
    if len(ordered) == 1:
        return f"line {ordered[0]}"
    return f"lines {', '.join(ordered[:-1])} and {ordered[-1]}"
