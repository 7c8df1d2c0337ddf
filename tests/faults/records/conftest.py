"""Pipelines that read records from real, failing servers, and the printed result of each fault.

The driver runs in this process, because the source is disturbed and not the driver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import pytest

from tests.spark.conftest import make_project, spark
from tests.spark.sources.conftest import project_of

__all__ = ["make_project", "project_of", "spark"]

Tell = Callable[..., tuple[int, int]]


@pytest.fixture
def report_records_fault(print_result: Callable[..., None], seed: int) -> Tell:
    """Compares landed with sent records by number and prints the result of the fault: lost, doubled."""

    def say(
        fault: str, landed: Iterable[int], sent: Iterable[int], *, off: str = "", note: str = ""
    ) -> tuple[int, int]:
        have, owed = Counter(landed), Counter(sent)
        lost, doubled = (owed - have).total(), (have - owed).total()
        print_result(
            fault,
            f"WITHOUT {off}" if off else "protected",
            f"seed {seed}",
            f"sent {owed.total()}",
            f"lost {lost}",
            f"doubled {doubled}",
            *([note] if note else []),
        )
        return lost, doubled

    return say
