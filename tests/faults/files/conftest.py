"""Fixtures: a landing bucket with its queue on a moto server, behind a proxy that makes requests fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sandbox.servers.fault_proxy import FaultProxy, running_fault_proxy
from tests.faults.harness.file_log_verdict import FilesVerdict, judge_log
from tests.unit.sources.conftest import Landing, aws_endpoint
from tests.unit.sources.conftest import landing as landing_of_its_own

__all__ = ["aws_endpoint", "landing_of_its_own"]

Tell = Callable[..., FilesVerdict]


@pytest.fixture
def landing(landing_of_its_own: Landing) -> Landing:
    """A landing bucket whose messages become visible again after one second, so that faults show early."""
    landing_of_its_own.returns_after(1)
    return landing_of_its_own


@pytest.fixture
def proxy(aws_endpoint: str, seed: int) -> Iterator[FaultProxy]:
    """A proxy in front of the queue and the buckets; a test sets its `faults`."""
    with running_fault_proxy(aws_endpoint, seed=seed) as running:
        yield running


@pytest.fixture
def report_files_fault(print_result: Callable[..., None], landing: Any, seed: int) -> Tell:
    """Compares a relay's log with the landed objects and prints the result line of the fault."""

    def say(fault: str, owed: list[str], *, off: str = "", note: str = "") -> FilesVerdict:
        verdict = judge_log(landing.lake, "landing", owed)
        print_result(
            fault,
            f"WITHOUT {off}" if off else "protected",
            f"seed {seed}",
            f"objects {len(owed)}",
            f"lost {verdict.lost.total()}",
            f"doubled {verdict.doubled.total()}",
            *([note] if note else []),
        )
        return verdict

    return say
