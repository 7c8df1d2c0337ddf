"""Settings of every test run: marks by folder; Hypothesis examples are deterministic and have no deadline.

A run has thousands of short tests and a million objects that live as long as it does: modules, tests, schemas.
Python's default thresholds would search all of these again and again, a tenth of the processor time of the tests.

`pytest --hypothesis-profile=explore` generates new examples instead.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import examples

SLOW_MACHINES = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("explore", max_examples=examples(100), **SLOW_MACHINES)
settings.register_profile("repeatable", settings.get_profile("explore"), derandomize=True)
settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of the folders `integration` and `spark`."""
    for mark in ("integration", "spark"):
        folder = Path(__file__).parent / mark
        for item in items:
            if folder in item.path.parents:
                item.add_marker(mark)


def pytest_configure() -> None:
    """Searches for no garbage while modules are imported."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Excludes imported and collected objects from later searches for garbage, and searches less often."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()
    # Libraries free imported objects as Python ends, and some print those that remain.
    atexit.register(gc.unfreeze)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the properties that tests recorded as "summary", for comparison between runs."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "summary" and getattr(report, "when", "") == "call":
                    terminalreporter.write_line(str(value))


@pytest.fixture(autouse=True)
def no_fault_is_left() -> Iterator[None]:
    """Clears the faults a test installed at points of a batch."""
    yield
    if (points := sys.modules.get("tests.batch_points")) is not None:
        points.clear_faults()
