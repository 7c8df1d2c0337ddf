"""Fixtures of the fault suites: projects to disturb, and one printed result line per fault with a final summary."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from sandbox.servers.object_store import ObjectStoreAddress, running_object_store
from tests.faults.harness.fault_project import PIPELINE, FaultProject, open_project
from tests.faults.harness.oracle import Verdict, judge

SEED = int(os.environ.get("DELTAWORKS_FAULT_SEED", "20261121"))
_COUNTS: dict[str, int] = {}


def pytest_configure(config: pytest.Config) -> None:
    _COUNTS.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.faults)
            item.add_marker(pytest.mark.timeout(900))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _COUNTS[report.outcome] = _COUNTS.get(report.outcome, 0) + 1


def pytest_unconfigure(config: pytest.Config) -> None:
    if config.getoption("markexpr") == "faults" and _COUNTS:
        print(f"{_COUNTS.get('passed', 0)} passed, {_COUNTS.get('failed', 0)} failed")


@pytest.fixture
def seed() -> int:
    """Seed that decides where a run is disturbed; DELTAWORKS_FAULT_SEED overrides it."""
    return SEED


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStoreAddress]:
    """An S3 server shared by all faults of the session; each project uses a separate folder on it."""
    with running_object_store(tmp_path_factory.mktemp("s3"), buckets=["deltaworks-lake"]) as address:
        yield address


@pytest.fixture
def make_stage(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[..., FaultProject]]:
    """Makes projects: `make_stage(tables=30, storage="s3")`."""
    with ExitStack() as stack:

        def make(*, tables: int = 4, storage: str = "local", **options: Any) -> FaultProject:
            server = request.getfixturevalue("server") if storage == "s3" else None
            root = tmp_path_factory.mktemp("stage")
            return stack.enter_context(open_project(root, seed=SEED, tables=tables, server=server, **options))

        yield make


@pytest.fixture
def print_result(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Prints the result line of a fault immediately."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    began = time.monotonic()

    def say(fault: str, *facts: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\nFAULT {' | '.join([fault, *facts, f'took {time.monotonic() - began:.0f} s'])}", flush=True)

    return say


@pytest.fixture
def tell(print_result: Callable[..., None]) -> Callable[..., Verdict]:
    """Compares a project's lake with the landed events and prints the result line of its fault."""

    def say(
        fault: str, stage: FaultProject, *, off: str = "", recovery: float | None = None, note: str = ""
    ) -> Verdict:
        verdict = judge(stage.lake, PIPELINE, ["events", *stage.kinds], stage.owed)
        print_result(
            fault,
            f"WITHOUT {off}" if off else "protected",
            f"seed {stage.seed}",
            "s3proxy" if stage.server else "local disk",
            f"{stage.tables} tables",
            f"ids {stage.ids}",
            f"lost {verdict.lost.total()}",
            f"doubled {verdict.doubled.total()}",
            "recovery -" if recovery is None else f"recovery {recovery:.1f} s",
            *([note] if note else []),
        )
        return verdict

    return say
