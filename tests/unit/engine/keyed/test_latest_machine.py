"""After late, duplicate and reordered rows, crashes and lost positions, a live table of kind `latest` equals the latest
row of each bronze key within the retention window.
"""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from deltaworks.engine.keyed import keyed_catchup, merge, retention_window
from tests.examples import examples
from tests.unit.engine.keyed.latest_harness import LatestHarness, priced
from tests.unit.engine.keyed.owners_machine import OwnersMachine

ROWS = st.lists(
    st.builds(
        priced,
        st.sampled_from(["a", "b", "c", "ü'\\", None]),
        # Around the horizon too, to the minute.
        st.sampled_from([0, 1, 29, 30, 31, 45, 60, 61, 75]),
        st.integers(0, 9),
    ),
    max_size=6,
)


class LatestMachine(OwnersMachine):
    """One bronze table with its live table, and current and former owners."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = [
            mock.patch.object(retention_window, "MIN_EXPIRY_SECONDS", 0.0),
            mock.patch.object(retention_window, "EXPIRY_FRACTION", 0.0),
            mock.patch.object(retention_window, "MAX_FILES", 3),
        ]
        for patch in self.patches:
            patch.start()
        self.folder = tempfile.TemporaryDirectory()
        self.harness = LatestHarness(Path(self.folder.name))
        self.landed: list[list[dict[str, Any]]] = []
        self.former = []
        self.owner = self.harness.tables()

    @initialize()
    def begin(self) -> None:
        self.land([])

    @rule(rows=ROWS)
    def land(self, rows: list[dict[str, Any]]) -> None:
        number = self.harness.append(rows)
        self.landed.append([{**row, "_seq": number, "_position": place} for place, row in enumerate(rows)])
        self.is_current = False

    @rule(data=st.data())
    def land_copies_in_another_order(self, data: st.DataObject) -> None:
        rows = data.draw(st.sampled_from(self.landed))
        self.harness.append(data.draw(st.permutations(rows)))
        self.is_current = False

    @rule()
    def lose_the_place(self) -> None:
        """The position in bronze is lost: everything is read and merged again."""
        self.take_over()
        with mock.patch.object(keyed_catchup, "keyed_application", return_value=f"lost/{uuid.uuid4().hex}"):
            self.harness.follow(self.owner)
        self.is_current = True

    @rule()
    def optimize_bronze(self) -> None:
        self.harness.history().optimize.compact()

    def teardown(self) -> None:
        try:
            self.follow()
            self.is_exact()
        finally:
            self.close()

    def close(self) -> None:
        self.folder.cleanup()
        for patch in self.patches:
            patch.stop()


LatestMachine.TestCase.settings = settings(
    max_examples=examples(6), stateful_step_count=10, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLatestMachine = LatestMachine.TestCase


def test_with_the_condition_off_an_older_row_wins() -> None:
    """The machine detects a missing `newer_condition`."""
    machine = LatestMachine()
    try:
        with mock.patch.object(merge, "newer_condition", return_value="true"):
            machine.land([priced("a", 45, 1)])
            machine.follow()
            machine.what_was_followed_is_exact()
            machine.land([priced("a", 30, 2)])
            machine.follow()
            with pytest.raises(AssertionError):
                machine.what_was_followed_is_exact()
    finally:
        machine.close()
