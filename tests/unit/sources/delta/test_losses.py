"""The table versions a stream still needs, and the versions its log still has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ContractError
from deltaworks.sources.delta import check_versions

TABLE = "tables/writer/sales"


class LogHarness:
    """A log with some commits, and a checkpoint of the stream that reads it."""

    def __init__(self, root: Path) -> None:
        self.objects = LocalObjects(root)

    def log(self, *versions: int) -> None:
        for version in versions:
            self.objects.put(f"{TABLE}/_delta_log/{version:020}.json", b"{}")
        self.objects.put(f"{TABLE}/_delta_log/{max(versions):020}.checkpoint.parquet", b"")
        self.objects.put(f"{TABLE}/_delta_log/_last_checkpoint", b"{}")

    def batch(self, number: int, *, done: bool, version: int, **more: Any) -> None:
        folder = paths.checkpoint("reader", 1, 1)
        offset = {"reservoirVersion": version, "index": -1, "isStartingVersion": False} | more
        self.objects.put(f"{folder}/offsets/{number}", f"v1\n{{}}\n{json.dumps(offset)}".encode())
        if done:
            self.objects.put(f"{folder}/commits/{number}", b"v1\n{}")

    def gap(self, latest: int) -> str | None:
        """What is told of versions that are gone; None where the stream may continue."""
        try:
            check_versions(self.objects, "reader", "writer/sales", key=TABLE, latest=latest)
        except ContractError as error:
            return f"{error.condition}: {error.message}"
        return None


@pytest.fixture
def harness(tmp_path: Path) -> LogHarness:
    return LogHarness(tmp_path)


def test_a_gap_after_the_read_position_is_reported_with_its_versions(harness: LogHarness) -> None:
    harness.log(6, 7)
    harness.batch(3, done=True, version=2)

    told = str(harness.gap(7))

    assert told.startswith("SOURCE_EXPIRED: ")
    assert "versions 2 to 5 are no longer in its log" in told


def test_a_log_with_only_a_checkpoint_is_a_gap_up_to_its_end(harness: LogHarness) -> None:
    harness.log(1)
    harness.batch(0, done=True, version=2)

    assert "versions 2 to 7" in str(harness.gap(7))


def test_a_planned_but_uncommitted_batch_is_needed_again(harness: LogHarness) -> None:
    harness.log(4, 5, 6)
    harness.batch(0, done=True, version=3)
    harness.batch(1, done=False, version=5)

    assert "versions 3 to 3" in str(harness.gap(6))


@pytest.mark.parametrize("kept", [(2, 3, 4), (0, 1, 2, 3, 4)])
def test_a_log_with_the_next_version_is_read(harness: LogHarness, kept: tuple[int, ...]) -> None:
    harness.log(*kept)
    harness.batch(0, done=True, version=2)

    assert harness.gap(4) is None


def test_a_stream_that_has_read_everything_needs_no_version(harness: LogHarness) -> None:
    harness.log(7)
    harness.batch(0, done=True, version=8)

    assert harness.gap(7) is None


def test_an_initial_snapshot_needs_files_not_commits(harness: LogHarness) -> None:
    harness.log(7)
    harness.batch(0, done=True, version=5, isStartingVersion=True)

    assert harness.gap(7) is None


def test_a_stream_without_a_checkpoint_may_begin_anywhere(harness: LogHarness) -> None:
    harness.log(7)

    assert harness.gap(7) is None
