"""Entities in a real request file: renames end at the known targets, and rows have the stated values."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from deltaworks.cli.mutations import ENTITY_COLUMNS, OutputFormat, print_rows, resolved_entities, resolved_intervals
from deltaworks.mutations.request_file import RequestFile, read_request_file, resolve_small_entities
from tests.shared_data import SHARED_DATA
from tests.spark.mutations.cases import frame, generated

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


def test_small_files_resolve_without_spark_as_with_it(spark: SparkSession) -> None:
    requests = frame(spark, generated(300, start=5))
    file = RequestFile(requests=requests.toArrow(), original_times=(), ignored_columns=())

    def rows_of(frames: Iterable[Mapping[str, Any]], names: tuple[str, ...]) -> list[tuple[Any, ...]]:
        return sorted((tuple(str(row[name]) for name in names) for row in frames), key=str)

    small = rows_of(resolve_small_entities(file.requests), ENTITY_COLUMNS)
    assert small == rows_of(resolved_entities(spark, file), ENTITY_COLUMNS)
