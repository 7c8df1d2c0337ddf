"""A landing bucket with its queue on a moto server, and a proxy before it that makes requests fail."""

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
    """One whose messages come back after a second, so that a fault shows soon."""
    landing_of_its_own.returns_after(1)
    return landing_of_its_own


@pytest.fixture
def proxy(aws_endpoint: str, seed: int) -> Iterator[FaultProxy]:
    """Before queue and buckets; a test gives it `faults`."""
    with running_fault_proxy(aws_endpoint, seed=seed) as running:
        yield running


@pytest.fixture
def report_files_fault(print_result: Callable[..., None], landing: Any, seed: int) -> Tell:
    """Judges a relay's log against the objects it owes, and prints the line of the fault."""

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
