"""Duplicate flags in Spark tasks: fixed with the prepared batch, whatever is committed before it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from deltaworks.control import paths
from deltaworks.sources.base import ObjectSlice
from deltaworks.sources.objects.payloads import FileReference
from deltaworks.testing import present, write_files
from tests.crashes import Crash, crash_at
from tests.spark.engine.conftest import Shop

EVENTS = {"name": "events", "catch_all": True, "duplicates": {"flag_within_days": 7}}


def body(*ids: str) -> bytes:
    return "".join(json.dumps({"name": "login", "id": id_, "time": 1_700_000_000}) for id_ in ids).encode()


def landed(shop: Shop, bodies: dict[int, bytes]) -> ObjectSlice:
    """Processes the bodies as objects of one batch; returns them by seq."""
    for seq, content in bodies.items():
        write_files(shop.root, {f"landing/f{seq}.json": content})
    references = [FileReference(seq, f"f{seq}.json", "") for seq in bodies]
    return ObjectSlice(references, [1] * len(bodies), {"files": len(bodies)}, shop.opener())


def flags(shop: Shop) -> list[tuple[str, bool]]:
    """Ids and flags in order of arrival."""
    rows = present(shop.lake.rows(paths.table("shop", "events")))
    ordered = sorted(rows.to_pylist(), key=lambda row: (row["_seq"], row["_position"]))
    return [(row["event_id"], row["_duplicate"]) for row in ordered]


@pytest.mark.parametrize(
    "point",
    [
        "prepared",
        "committed:events",
        # Their twins in test_batches.py end any batch at each point.
        *(pytest.param(point, marks=pytest.mark.integration) for point in ("files_written", "completed")),
    ],
)
def test_an_interrupted_batch_has_the_flags_of_an_uninterrupted_one(make_shop: Callable[..., Shop], point: str) -> None:
    shop = make_shop(tables=[EVENTS])
    processor = shop.processor()
    processor.process(landed(shop, {1: body("a", "b"), 2: body("b", "a", "c")}), 0)
    second = {3: body("c", "d", "d"), 4: body("d", "e", "a")}
    with pytest.raises(Crash):
        shop.processor(fault=crash_at(point)).process(landed(shop, second), 1)

    shop.processor().process(landed(shop, second), 1)

    expected = [("a", False), ("b", False), ("b", True), ("a", True), ("c", False)]
    expected += [("c", True), ("d", False), ("d", True), ("d", True), ("e", False), ("a", True)]
    assert flags(shop) == expected
