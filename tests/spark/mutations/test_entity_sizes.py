"""A batch that joins too many ids raises an alert, applies its requests, and resolves the alert after an undo."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.alerts.raising import open_subjects
from deltaworks.mutations import entity_sizes
from deltaworks.mutations.apply import MutationRun
from deltaworks.mutations.batch_frames import OrganisationScope
from deltaworks.mutations.entity_sizes import ENTITY_TOO_LARGE, LargestEntity, large_entities
from deltaworks.mutations.requests import REQUEST_SCHEMA
from deltaworks.mutations.resolve import resolve
from tests.spark.mutations.mutation_harness import PIPELINE, START, MutationHarness, declared


def request(org: str, time: float, each_id: str, to: str | None, *, op: str = "rename", seq: int = 1) -> dict[str, Any]:
    moment = START + dt.timedelta(seconds=time)
    return {"org_id": org, "op": op, "id": each_id, "new_id": to, "seq": seq, "time": moment, "fields": None}


def test_an_entity_is_what_ends_at_one_id_or_was_deleted_by_one_request(spark: SparkSession) -> None:
    requests = [
        # Joined by two steps, and then deleted.
        *(request("joined", 1, f"a{number}", f"b{number % 2}") for number in range(4)),
        *(request("joined", 2, f"b{number}", "c") for number in range(2)),
        request("joined", 3, "c", None, op="delete"),
        # Deleted one after the other under the same id.
        *(request("emptied", 10 * number, f"a{number}", "trash") for number in range(6)),
        *(request("emptied", 10 * number + 5, "trash", None, op="delete") for number in range(6)),
        # One id with many updates.
        *({**request("updated", n, "a", None, op="update"), "fields": {"f": str(n)}} for n in range(20)),
        request("updated", 30, "a", "b"),
        # An empty id is an id.
        *(request("empty", 1, f"a{number}", "") for number in range(4)),
        *(request("fine", 1, f"a{number}", "b") for number in range(3)),
    ]
    columns = ("org_id", "op", "id", "new_id", "fields", "seq", "time")
    frame = spark.createDataFrame([tuple(each[name] for name in columns) for each in requests], REQUEST_SCHEMA)
    intervals = resolve(frame)

    assert large_entities(intervals, limit=20) == []
    assert large_entities(intervals, limit=3) == [
        LargestEntity("joined", "c", 7, "a0"),
        LargestEntity("empty", "", 4, "a0"),
    ]


@pytest.mark.integration  # four batches; the sizes themselves are tested above, alerts in tests/unit/alerts
def test_a_giant_entity_raises_an_alert_until_its_requests_are_undone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = MutationHarness(tmp_path, declared(alert_above_ids=3))
    ids = [f"a{number}" for number in range(5)]

    def contacts() -> list[str]:
        return sorted(row["contact_id"] for row in stage.rows())

    def run() -> set[str]:
        MutationRun(spark, stage.catalog, PIPELINE).run()
        return open_subjects(stage.objects, ENTITY_TOO_LARGE)

    rows = [{"org_id": "acme", "event_id": each_id, "id": each_id, "time": START} for each_id in ids]
    stage.land(rows=rows, requests=[request("acme", 1, each_id, "default") for each_id in ids])
    assert run() == {"crm.requests/acme"}
    assert contacts() == ["default"] * 5

    # A batch of another organisation says nothing about this one.
    stage.land(requests=[request("bolt", 1, "a", "b")])
    assert run() == {"crm.requests/acme"}

    # As documented: a rename to itself with a higher sequence number undoes a request.
    stage.land(requests=[request("acme", 1, each_id, each_id, seq=2) for each_id in ids])
    monkeypatch.setattr(entity_sizes, "large_entities", lambda *_, **__: 1 / 0)
    assert run() == {"crm.requests/acme"}, "an error of the check does not stop the batch"
    assert contacts() == ids

    monkeypatch.undo()
    stage.land(requests=[request("acme", 2, "a0", "b")])
    assert run() == set()


def test_a_scope_of_many_organisations_knows_them(spark: SparkSession) -> None:
    scope = OrganisationScope(None, spark.createDataFrame([("acme",), ("bolt",)], "org_id string"))

    assert scope.intersection({"bolt", "core"}) == {"bolt"}
    assert scope.intersection(set()) == set()
