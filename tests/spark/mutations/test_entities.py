"""Entities in real requests: renames end at the known targets, and one that is too large raises an alert.

That both ways of resolving agree is marked `integration`: test_resolve.py compares Spark's way with a replay of
generated logs, and its twin without a JVM, tests/unit/mutations/test_local_resolve.py, the other way.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.alerts.raising import open_subjects
from deltaworks.cli.mutations import ENTITY_COLUMNS, OutputFormat, print_rows, resolved_entities, resolved_intervals
from deltaworks.mutations import entity_sizes
from deltaworks.mutations.apply import MutationRun
from deltaworks.mutations.batch_frames import OrganisationScope
from deltaworks.mutations.entities import resolve
from deltaworks.mutations.entity_sizes import ENTITY_TOO_LARGE, LargestEntity, large_entities
from deltaworks.mutations.local_resolve import resolve_entities_locally
from deltaworks.mutations.request_file import RequestFile, read_request_file
from deltaworks.mutations.requests import REQUEST_SCHEMA
from tests.shared_data import SHARED_DATA
from tests.spark.mutations.cases import generated
from tests.spark.mutations.mutation_harness import PIPELINE, START, MutationHarness, declared
from tests.unit.mutations.test_local_resolve import requests_of

RENAMES = SHARED_DATA / "id_mutations"
published = pytest.mark.skipif(not RENAMES.is_dir(), reason=f"the published renames are not at {RENAMES}")


def file_of(folder: Path, text: str) -> RequestFile:
    path = folder / "requests.csv"
    path.write_text(text)
    return read_request_file(path)


@published
def test_all_real_renames_resolve_to_their_known_final_ids(spark: SparkSession) -> None:
    with (RENAMES / "networkx_expected.csv").open() as file:
        expected = list(csv.DictReader(file))
    printed = io.StringIO()

    requests = read_request_file(RENAMES / "networkx_renames.csv")
    print_rows(resolved_entities(spark, requests), ENTITY_COLUMNS, OutputFormat.CSV, printed)

    found = list(csv.DictReader(io.StringIO(printed.getvalue())))
    assert len(found) == len(expected) == 378
    ends = ("origin_id", "final_id", "hops", "component_size")
    assert sorted(tuple(row[name] for name in ends) for row in found) == sorted(
        tuple(row[name] for name in ends) for row in expected
    )
    assert partition(found) == partition(expected)
    assert len(partition(found)) == 376


def partition(rows: Iterable[Mapping[str, Any]]) -> set[frozenset[str]]:
    """Groups origins by component, independent of component names."""
    groups: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        groups[row["component_id"]].add(row["origin_id"])
    return {frozenset(group) for group in groups.values()}


def test_an_entity_is_named_by_the_id_it_had_before_its_first_request(spark: SparkSession, tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        "ts,org_id,op,old_id,new_id,fields\n"
        # Two entities used this id one after the other; the id they moved to belongs to neither.
        "10,used again,rename,a,b,\n20,used again,rename,a,c,\n30,used again,rename,b,d,\n"
        # Both sides of a merge are entities, even if the target was moved before.
        "10,merged,merge,a,b,\n10,merged later,rename,x,b,\n20,merged later,merge,a,b,\n"
        '10,deleted,rename,a,b,\n20,deleted,delete,b,,\n30,deleted,update,b,,"{""stage"": ""won""}"\n'
        "10,back,delete,a,,\n20,back,undelete,a,,\n30,back,rename,a,b,\n"
        "10,nothing,undelete,a,,\n10,itself,rename,a,a,\n",
    )

    found = [tuple(row.values()) for row in resolved_entities(spark, file)]

    assert found == [
        ("back", "a", "b", 3, "a", 2),
        ("deleted", "a", None, 2, "a", 2),
        ("deleted", "b", "b", 0, "a", 2),
        ("merged", "a", "b", 1, "a", 2),
        ("merged", "b", "b", 0, "a", 2),
        ("merged later", "a", "b", 1, "a", 3),
        ("merged later", "x", "b", 1, "a", 3),
        ("used again", "a", "d", 2, "a", 4),
        ("used again", "a", "c", 1, "a", 4),
    ]


def test_every_interval_is_printed_with_the_times_of_the_file(spark: SparkSession, tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        "ts,old_id,new_id,commit,op,fields\n"
        "2026-01-01,a,b,one,,\n2026-01-01,b,c,two,,\n2026-01-02,c,,three,delete,\n"
        '2026-01-03,a,,four,update,"{""stage"": ""won""}"\n',
    )

    rows = list(resolved_intervals(spark, file))

    printed = io.StringIO()
    print_rows(rows, tuple(rows[0]), OutputFormat.CSV, printed)
    # No row can be between the two commits of one time: b has no interval there.
    assert printed.getvalue() == (
        "org_id,id,valid_from,valid_to,final_id,deleted,fields,hops\n"
        ",a,,2026-01-01,c,true,{},3\n"
        ',a,2026-01-01,2026-01-03,a,false,"{""stage"": ""won""}",0\n'
        ",b,,2026-01-01,c,true,{},2\n"
        ",c,,2026-01-02,c,true,{},1\n"
    )
    printed = io.StringIO()
    print_rows(rows, tuple(rows[0]), OutputFormat.JSON, printed)
    assert json.loads(printed.getvalue()) == rows
    assert (rows[0]["valid_from"], rows[0]["deleted"]) == (None, True)


@pytest.mark.integration
def test_small_files_resolve_without_spark_as_with_it(spark: SparkSession) -> None:
    requests = tuple(requests_of(generated(300, start=5)))
    file = RequestFile(requests=requests, original_times=(), ignored_columns=())

    def rows_of(frames: Iterable[Mapping[str, Any]], names: tuple[str, ...]) -> list[tuple[Any, ...]]:
        return sorted((tuple(str(row[name]) for name in names) for row in frames), key=str)

    small = rows_of(resolve_entities_locally(file.requests), ENTITY_COLUMNS)
    assert small == rows_of(resolved_entities(spark, file), ENTITY_COLUMNS)


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
        MutationRun(lambda: spark, stage.catalog, PIPELINE).run()
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
