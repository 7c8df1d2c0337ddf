"""Lineage: columns by inputs, a list that matches the drawing, and no invisible pipelines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.console.pages.lineage import MAX_NODES, Graph, Node, build_graph, edges, layout_graph
from tests.console_harness import ConsoleHarness

pairs = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda pair: pair[0] != pair[1]), max_size=40)


def graph(joined: list[tuple[int, int]]) -> Graph:
    made = Graph()
    for source, reader in joined:
        made.add_edge(Node(f"n{source}", "bronze"), Node(f"n{reader}", "bronze"))
    return made


@settings(deadline=None)
@given(joined=pairs.map(lambda every: [(min(pair), max(pair)) for pair in every]))
def test_inputs_are_left_of_their_readers(joined: list[tuple[int, int]]) -> None:
    made = graph(joined)
    drawing = layout_graph(made, made.nodes, selected="")
    x = {box.name: box.x for box in drawing.boxes}

    assert all(x[source] < x[reader] for source, reader in edges(made, made.nodes))
    assert len({(box.x, box.y) for box in drawing.boxes}) == len(made.nodes), "no two lie on each other"
    assert all(box.x + drawing.box_width <= drawing.width for box in drawing.boxes)
    assert all(box.y + drawing.box_height <= drawing.height for box in drawing.boxes)


@settings(deadline=None)
@given(joined=pairs)
def test_a_cycle_of_tables_is_drawn(joined: list[tuple[int, int]]) -> None:
    made = graph(joined)
    drawing = layout_graph(made, made.nodes, selected="")

    assert {box.name for box in drawing.boxes} == set(made.nodes)
    assert len(drawing.curves) == len({*joined})


@settings(deadline=None)
@given(joined=pairs, depth=st.integers(1, 4))
def test_the_neighbourhood_is_reached_in_one_direction(joined: list[tuple[int, int]], depth: int) -> None:
    made = graph(joined)
    for start in made.nodes:
        near, cut = made.neighbourhood(start, depth=depth)
        assert (set(near), cut) == (walk(joined, start, depth), False)


def walk(joined: list[tuple[int, int]], start: str, depth: int) -> set[str]:
    reached = {start}
    for forth in (True, False):
        wave = {start}
        for _ in range(depth):
            wave = {f"n{to}" for one, to in (p if forth else p[::-1] for p in joined) if f"n{one}" in wave}
            reached |= wave
    return reached


def test_a_drawing_is_bounded() -> None:
    made = graph([(0, number) for number in range(1, 1_000)])

    near, cut = made.neighbourhood("n0", depth=1)

    assert (len(near), cut, near[0]) == (MAX_NODES, True, "n0")


def test_a_pipeline_flows_from_its_bucket_to_its_gold(harness: ConsoleHarness) -> None:
    made = build_graph(harness.catalog, ["games"])
    way = {(source, reader) for source, readers in made.readers.items() for reader in readers}

    assert ("relay landing", "stream games") in way
    assert any(source.startswith("bucket ") and reader == "relay landing" for source, reader in way)
    assert any(source == "stream games" and made.nodes[reader].kind == "bronze" for source, reader in way)
    assert any(made.nodes[reader].kind == "gold" and source.startswith("games.") for source, reader in way)


def test_the_list_matches_the_drawing(harness: ConsoleHarness) -> None:
    shown = harness.view("/lineage?of=stream+games&depth=2")
    listed = {(one["name"], entry["node"]["name"]) for entry in shown["entries"] for one in entry["inputs"]}
    listed_too = {(entry["node"]["name"], one["name"]) for entry in shown["entries"] for one in entry["readers"]}

    assert listed == listed_too
    assert len(listed) == len(shown["layout"]["curves"])
    assert {entry["node"]["name"] for entry in shown["entries"]} == {box["name"] for box in shown["layout"]["boxes"]}


@pytest.mark.parametrize("depth", ["0", "9", "x", "-1", "99999999999", ""])
def test_any_depth_is_accepted(harness: ConsoleHarness, depth: str) -> None:
    assert 1 <= harness.view(f"/lineage?of=relay+landing&depth={depth}")["depth"] <= 6


def test_a_person_sees_only_visible_pipelines(harness: ConsoleHarness) -> None:
    assert not [name for name in harness.view("/lineage", by="eve")["choices"] if "games" in name]
    assert harness.get("/lineage?of=stream+games", by="eve").status_code == 404
    assert "games" not in harness.get("/lineage?of=relay+landing&depth=6", by="eve").text


def test_undeclared_nodes_are_not_found(harness: ConsoleHarness) -> None:
    assert harness.get("/lineage?of=nothing").status_code == 404
