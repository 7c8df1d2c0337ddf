"""A wait for landed events ends when a completed batch has read them, and gold when it was built from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control import paths
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import TransientError
from deltaworks.gold.pinned_inputs import BUILT_FROM
from deltaworks.operations.completion import LandedObjects, wait_until_complete
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec
from deltaworks.testing import append_rows, catalog_of
from tests.unit.engine.ledger_harness import Harness

RELAY = RelaySpec(relay="landing", buckets=("landing",), listing={"grace_minutes": 0})
KEYS = ["day/2.json", "day/3.json"]
GOLD = {"tables": [{"name": "daily", "sql": "daily.sql", "reads": ["orders"], "partition_by": "event_date"}]}


class Landed:
    """Two objects, of the first and the second batch, and gold of their table."""

    def __init__(self, folder: Path, spec: PipelineSpec) -> None:
        self.harness = Harness(folder / "lake", spec)
        catalog = catalog_of(folder, spec, relays=[RELAY], lake=self.harness.storage)
        self.objects = LandedObjects(catalog, "shop", KEYS)
        self._builds = 0

    def append(self, number: int) -> int:
        return append_rows(self.harness.lake, paths.table("shop", "orders"), [{"_seq": number}], number=number)

    def build(self, version: int) -> None:
        self._builds += 1
        built_from = {BUILT_FROM: {"orders": version}}
        metadata = user_metadata(pipeline="shop", batch="", operation="rebuild_gold", **built_from)
        key = paths.table("shop", "daily")
        append_rows(self.harness.lake, key, [{"n": 1}], number=self._builds, user_metadata=metadata)

    def wait(self, stage: Any, *, meanwhile: Iterable[Callable[[], Any]] = ()) -> float:
        """Waits for at most ten looks of one second; something happens after each look."""
        self.now, events = 0.0, iter(meanwhile)

        def sleep(seconds: float) -> None:
            self.now += 1
            next(events, lambda: None)()

        return wait_until_complete(self.objects, stage, wait_seconds=10, clock=lambda: self.now, sleep=sleep)


@pytest.fixture
def landed(tmp_path: Path, make_spec: Callable[..., PipelineSpec]) -> Landed:
    return Landed(tmp_path, make_spec(gold=GOLD))


def test_bronze_is_complete_when_the_last_batch_is(landed: Landed) -> None:
    batches = [lambda: landed.harness.complete(0), lambda: landed.harness.complete(1)]

    assert landed.wait("bronze", meanwhile=batches) == 2.0
    assert landed.objects.waiting_objects() == 0


def test_an_object_that_nobody_has_announced_is_waited_for(landed: Landed) -> None:
    landed.harness.complete(0)
    landed.harness.complete(1)
    landed.objects.keys = [*KEYS, "day/unknown.json"]

    with pytest.raises(TransientError, match="1 of 3 objects wait") as caught:
        landed.wait("bronze")

    assert caught.value.condition == "LANDING_INCOMPLETE"


def test_gold_is_complete_when_it_was_built_from_their_version(landed: Landed) -> None:
    landed.harness.complete(0)
    landed.build(landed.append(1))
    landed.harness.complete(1)
    version = landed.append(2)

    assert landed.wait("gold", meanwhile=[lambda: None, lambda: landed.build(version)]) == 2.0


def test_gold_that_nothing_has_changed_needs_no_build(landed: Landed) -> None:
    landed.build(landed.append(1))
    landed.harness.complete(0)
    landed.harness.complete(1)

    assert landed.wait("gold") == 0.0


def test_gold_that_is_not_built_in_time_is_named(landed: Landed) -> None:
    landed.harness.complete(0)
    landed.harness.complete(1)
    landed.append(1)

    with pytest.raises(TransientError, match="daily are not built"):
        landed.wait("gold")
