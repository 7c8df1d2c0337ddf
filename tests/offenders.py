"""Runs one check for each row of a table in one test, which names all rows that fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import pytest

Case = TypeVar("Case")


def failures(check: Callable[[Case], object], cases: Mapping[str, Case]) -> dict[str, str]:
    """Returns the first lines of the error of each case that fails, with its notes."""
    failed: dict[str, str] = {}
    for name, case in cases.items():
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:
            text = "\n".join(f"{type(error).__name__}: {error}".splitlines()[:8])
            # Hypothesis adds the falsifying example as a note.
            failed[name] = "\n".join([text, *getattr(error, "__notes__", ())])
    return failed
