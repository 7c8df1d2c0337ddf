"""The score is bounded, is the sum of its parts, and never improves with more problems."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.maintenance.table_health.measure import SIZE_BOUNDS, TableHealth, histogram
from deltaworks.maintenance.table_health.report import WEIGHTS, Score, score

WELL = TableHealth(
    key="tables/shop/events", version=60, files=10, bytes=10 << 28, rows=1_000_000, small_files=0,
    small_file_share=0.0, partitions=10, partition_by=("event_date",), last_checkpoint=50,
    largest_partition_bytes=1 << 28, median_partition_bytes=float(1 << 28), deletion_vector_rows=0,
)  # fmt: skip


def part(found: Score, name: str) -> float:
    return {each.name: each.cost for each in found.parts}[name]


def tables() -> st.SearchStrategy[TableHealth]:
    @st.composite
    def draw(pick: Any) -> TableHealth:
        files = pick(st.integers(0, 100_000))
        small = pick(st.integers(0, files))
        rows = pick(st.none() | st.integers(0, 10**12))
        deleted = pick(st.none() | st.integers(0, rows or 0))
        partitions = pick(st.integers(1, 50_000)) if files else 0
        median = pick(st.floats(0, 1e12))
        return dataclasses.replace(
            WELL,
            version=pick(st.integers(0, 10**6)),
            last_checkpoint=None,
            files=files,
            bytes=pick(st.integers(0, 10**15)),
            rows=rows,
            small_files=small,
            small_file_share=small / files if files else 0.0,
            partitions=partitions,
            median_partition_bytes=median,
            largest_partition_bytes=int(median * pick(st.floats(1, 1e4))),
            deletion_vector_rows=deleted,
        )

    return draw()


def test_the_weights_are_a_hundred_points() -> None:
    assert sum(WEIGHTS.values()) == 100


def test_a_healthy_or_empty_table_has_all_points() -> None:
    empty = dataclasses.replace(WELL, files=0, bytes=0, rows=0, partitions=0, median_partition_bytes=0.0)

    assert score(WELL, unordered_share=0.0, unreferenced_bytes=0).value == 100
    assert score(empty, unreferenced_bytes=0).value == 100


@pytest.mark.parametrize(
    ("name", "changes", "facts", "cost"),
    [
        ("small_files", {"files": 100, "small_files": 100, "small_file_share": 1.0}, {}, 30.0),
        ("small_files", {"files": 5, "small_files": 5, "small_file_share": 1.0}, {}, 3.0),
        ("order", {}, {"unordered_share": 0.5}, 10.0),
        ("deletion_vectors", {"deletion_vector_rows": 100_000}, {}, 7.5),
        ("log", {"version": 349}, {}, 7.5),
        ("log", {"version": 149}, {}, 0.0),
        ("partitions", {"partitions": 1_000, "bytes": 1_000, "files": 1_000}, {}, 10.0),
        ("partitions", {"largest_partition_bytes": 50 << 28}, {}, 3.3),
        ("unreferenced", {}, {"unreferenced_bytes": 10 << 28}, 10.0),
    ],
)
def test_each_problem_costs_only_its_part(
    name: str, changes: dict[str, Any], facts: dict[str, Any], cost: float
) -> None:
    changed = dataclasses.replace(WELL, last_checkpoint=49, **changes)

    found = score(changed, **facts)

    assert part(found, name) == cost
    assert {each.name for each in found.costly} == ({name} if cost else set())
    assert found.value == round(100 - cost)
    assert next(each.reason for each in found.parts if each.name == name)


def test_unknown_parts_cost_nothing() -> None:
    unknown = dataclasses.replace(WELL, rows=None, deletion_vector_rows=None)

    found = score(unknown)

    assert found.value == 100
    said = {each.name: each.reason for each in found.parts}
    assert "unknown" in said["deletion_vectors"]
    assert said["unreferenced"] == "not measured"


@given(tables(), st.none() | st.floats(0, 1), st.none() | st.integers(0, 10**15))
def test_a_score_is_100_minus_its_parts(health: TableHealth, unordered: float | None, unreferenced: int | None) -> None:
    found = score(health, unordered_share=unordered, unreferenced_bytes=unreferenced)

    assert 0 <= found.value <= 100
    assert all(0 <= each.cost <= each.weight for each in found.parts)
    assert found.value == round(100 - sum(each.cost for each in found.parts))
    assert [each.name for each in found.parts] == list(WEIGHTS)


@given(tables(), st.integers(1, 1_000))
def test_more_small_files_and_more_commits_never_make_a_table_better(health: TableHealth, more: int) -> None:
    files, small = health.files + more, health.small_files + more
    worse = dataclasses.replace(
        health, files=files, small_files=small, small_file_share=small / files, version=health.version + more
    )

    before, after = score(health), score(worse)

    assert part(after, "small_files") >= part(before, "small_files")
    assert part(after, "log") >= part(before, "log")


@given(st.lists(st.integers(0, 4 << 30)))
def test_every_file_is_in_one_bucket_of_the_histogram(sizes: list[int]) -> None:
    found = histogram(sizes)

    assert len(found) == len(SIZE_BOUNDS) + 1
    assert sum(found) == len(sizes)
    for index, bound in enumerate(SIZE_BOUNDS):
        assert sum(found[: index + 1]) == sum(1 for size in sizes if size < bound)
