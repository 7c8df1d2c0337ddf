"""Connected components match NetworkX for every graph shape, and organisations do not mix."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise

import networkx
from pyspark.sql import SparkSession

from deltaworks.mutations.entities import components, edges
from deltaworks.mutations.requests import REQUEST_SCHEMA

Edge = tuple[str, str, str]


def expected(connected: Iterable[Edge]) -> set[tuple[str, str, str, int]]:
    """Returns for every id of every organisation the least id and the size of its component."""
    graphs: dict[str, networkx.Graph] = {}
    for org, one, other in connected:
        graphs.setdefault(org, networkx.Graph()).add_edge(one, other)
    return {
        (org, name, min(group), len(group))
        for org, graph in graphs.items()
        for group in networkx.connected_components(graph)
        for name in group
    }


def shapes() -> list[Edge]:
    """Returns paths in ascending, descending and shuffled order, a star, ring, clique, tree, and random graphs."""
    chance = random.Random(5)
    names = [f"{number:02}" for number in range(60)]
    shuffled = chance.sample(names, len(names))
    drawn: dict[str, Iterable[tuple[str, str]]] = {
        "path": pairwise(names),
        "path backwards": pairwise(reversed(names)),
        "path shuffled": pairwise(shuffled),
        "star of the least": ((names[0], name) for name in names[1:]),
        "star of the greatest": ((names[-1], name) for name in names[:-1]),
        "ring": zip(shuffled, [*shuffled[1:], shuffled[0]], strict=True),
        "clique": ((one, other) for one in names[:15] for other in names[:15] if one != other),
        "tree": ((names[number], names[(number - 1) // 2]) for number in range(1, len(names))),
        "twice, and both ways": [("a", "b"), ("a", "b"), ("b", "a")],
    }
    for number in range(30):
        nodes = names[: chance.randint(2, 40)]
        drawn[f"random {number}"] = [tuple(chance.sample(nodes, 2)) for _ in range(chance.randint(1, 40))]  # type: ignore[misc]
    return [(org, one, other) for org, pairs in drawn.items() for one, other in pairs]


def test_components_of_every_shape_are_those_of_networkx(spark: SparkSession) -> None:
    connected = shapes()
    frame = spark.createDataFrame(connected, "org_id string, id string, new_id string")

    found = [tuple(row) for row in components(frame).collect()]

    assert len(found) == len(set(found))
    assert set(found) == expected(connected)


def test_renames_and_merges_connect_and_nothing_else_does(spark: SparkSession) -> None:
    rows = [
        ("o", "rename", "a", "b", None, 1, None),
        ("o", "rename", "c", "d", None, 1, "2026-01-01"),
        ("o", "rename", "c", "e", None, 2, "2026-01-01"),
        ("o", "merge", "f", "g", None, 1, "2026-01-02"),
        ("o", "rename", "h", "h", None, 1, "2026-01-02"),
        ("o", "rename", "h", None, None, 1, "2026-01-02"),
        ("o", "delete", "h", "i", None, 1, "2026-01-02"),
        ("o", "update", "h", "i", {"stage": "won"}, 1, "2026-01-02"),
    ]
    schema = REQUEST_SCHEMA.replace("time timestamp", "time string")
    requests = spark.createDataFrame(rows, schema).selectExpr("* EXCEPT (time)", "CAST(time AS timestamp) AS time")

    found = {tuple(row) for row in edges(requests).collect()}

    assert found == {("o", "c", "d"), ("o", "c", "e"), ("o", "f", "g")}
