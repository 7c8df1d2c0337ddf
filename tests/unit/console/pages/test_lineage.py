"""Lineage: columns by inputs, a list that matches the drawing, and no invisible pipelines."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.console.pages.lineage import (
    MAX_NODES,
    Graph,
    Node,
    build_graph,
    column_lineage,
    edges,
    layout_graph,
)
from deltaworks.specs.catalog import Catalog
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


def columns(catalog: Catalog, pipeline: str, table: str) -> dict[str, tuple[str, ...]]:
    return {column.name: column.reads for column in column_lineage(catalog, pipeline, table)}


def test_columns_of_gold_are_traced_through_its_sql_and_those_of_bronze_to_fields(catalog: Catalog) -> None:
    hours = columns(catalog, "games", "events_per_hour")

    assert hours["hour"] == ("games.events.event_time",)
    assert columns(catalog, "games", "player_features")["device_id"] == ("games.player_days.device_id",)
    assert "filings.eps_facts.ticker" in columns(catalog, "stocks", "eps_known")["ticker"]
    assert all(read.startswith("event ") for reads in columns(catalog, "games", "purchase").values() for read in reads)


def test_every_traced_column_is_one_of_a_declared_input(catalog: Catalog) -> None:
    traced = 0
    for name, spec in catalog.pipelines.items():
        for table in spec.gold.tables:
            inputs = {read if "." in read else f"{name}.{read}" for read in table.reads}
            found = columns(catalog, name, table.name)
            assert {read.rpartition(".")[0] for reads in found.values() for read in reads} <= inputs
            traced += bool(found)
    assert traced == sum(len(spec.gold.tables) for spec in catalog.pipelines.values())


def test_the_page_and_its_data_have_the_columns(harness: ConsoleHarness) -> None:
    shown = harness.view("/lineage?of=games.events_per_hour")["columns"]

    assert shown
    assert f"<code>{shown[0]['name']}</code>" in harness.get("/lineage?of=games.events_per_hour").text


def test_sql_that_cannot_be_read_has_no_columns(harness: ConsoleHarness) -> None:
    table = harness.catalog.pipeline("games").gold.tables[0]
    (harness.catalog.folder("games") / table.sql).write_text("SELEC nothing FRO m WHERE (")

    assert harness.view(f"/lineage?of=games.{table.name}")["columns"] == []
    assert harness.get(f"/lineage?of=games.{table.name}").status_code == 200
