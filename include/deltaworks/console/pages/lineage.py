"""The lineage page: the inputs and readers of a table, as a drawing and as an equivalent list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deltaworks.console.lineage import Graph, GraphLayout, Node, build_graph, edges, layout_graph
from deltaworks.console.page_context import PageContext, PageMissingError
from deltaworks.console.pages.base import Page

MAX_DEPTH: Final = 6
_MAX_CHOICES: Final = 2_000
_KINDS_WITH_PAGE: Final = frozenset({"bronze", "keyed", "live", "gold", "quarantine", "mutations"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A node next to another one; `has_page` is set if the console has a page about it."""

    name: str
    kind: str
    pipeline: str
    table: str
    has_page: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A node of the list, with those of its inputs and readers that are drawn."""

    node: Neighbour
    inputs: tuple[Neighbour, ...]
    readers: tuple[Neighbour, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageView:
    """Content of the lineage page. Without `selected` nothing is drawn, and `choices` lists all nodes."""

    selected: str
    depth: int
    layout: GraphLayout | None
    entries: tuple[Entry, ...]
    is_truncated: bool
    choices: tuple[str, ...]


def view(context: PageContext) -> LineageView:
    """Returns the neighbourhood of the node `?of=` up to `?depth=` steps, within the pipelines the person may see."""
    readable = context.pipelines()
    graph = build_graph(context.catalog, readable)
    selected = context.query.get("of", "")
    choices = tuple(sorted(name for name, node in graph.nodes.items() if _may_see(node, readable)))
    if not selected:
        return LineageView(
            selected="", depth=1, layout=None, entries=(), is_truncated=False, choices=choices[:_MAX_CHOICES]
        )
    if selected not in choices:
        raise PageMissingError(f"There is no {selected[:200]!r}, or it belongs to a pipeline that you may not see.")
    depth = _depth(context.query.get("depth", ""))
    near, is_truncated = graph.neighbourhood(selected, depth=depth)
    names = [name for name in near if _may_see(graph.nodes[name], readable)]
    return LineageView(
        selected=selected,
        depth=depth,
        layout=layout_graph(graph, names, selected=selected),
        entries=_entries(graph, names),
        is_truncated=is_truncated,
        choices=(),
    )


def _may_see(node: Node, readable: list[str]) -> bool:
    return not node.pipeline or node.pipeline in readable


def _depth(text: str) -> int:
    return min(max(int(text), 1), MAX_DEPTH) if text.isascii() and text.isdigit() and len(text) < 4 else 1


def _entries(graph: Graph, names: list[str]) -> tuple[Entry, ...]:
    pairs = edges(graph, names)
    return tuple(
        Entry(
            node=_neighbour(graph.nodes[name]),
            inputs=tuple(_neighbour(graph.nodes[source]) for source, reader in pairs if reader == name),
            readers=tuple(_neighbour(graph.nodes[reader]) for source, reader in pairs if source == name),
        )
        for name in sorted(names)
    )


def _neighbour(node: Node) -> Neighbour:
    return Neighbour(
        name=node.name,
        kind=node.kind,
        pipeline=node.pipeline,
        table=node.name.partition(".")[2],
        has_page=node.kind in _KINDS_WITH_PAGE,
    )


PAGE = Page(name="lineage", route="/lineage", title="Lineage", view=view, menu="Lineage")
