"""Lineage: what lies before a table and what after it, as a drawing and as a list that says the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deltaworks.console.lineage import Drawing, Graph, Node, drawn, edges, graph_of
from deltaworks.console.look import Look, PageMissingError
from deltaworks.console.pages.base import Page

MOST_DEPTH: Final = 6
_MOST_CHOICES: Final = 2_000
_LINKED: Final = frozenset({"bronze", "keyed", "live", "gold", "quarantine", "mutations"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A node beside another; `linked` where it has a page of its own."""

    name: str
    kind: str
    pipeline: str
    table: str
    linked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A node of the list: what it reads, and what reads it, of all that is drawn."""

    node: Neighbour
    inputs: tuple[Neighbour, ...]
    readers: tuple[Neighbour, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The page. Without `of` nothing is drawn: `choices` are the nodes there are."""

    of: str
    depth: int
    drawing: Drawing | None
    entries: tuple[Entry, ...]
    cut: bool
    choices: tuple[str, ...]


def view(look: Look) -> Lineage:
    """What `?of=` names and what lies up to `?depth=` steps around it, of the pipelines that the person may see."""
    readable = look.pipelines()
    graph = graph_of(look.catalog, readable)
    of = look.query.get("of", "")
    choices = tuple(sorted(name for name, node in graph.nodes.items() if _may_see(node, readable)))
    if not of:
        return Lineage(of="", depth=1, drawing=None, entries=(), cut=False, choices=choices[:_MOST_CHOICES])
    if of not in choices:
        raise PageMissingError(f"Nothing is called {of[:200]!r}, or it is of a pipeline that you may not see.")
    depth = _depth(look.query.get("depth", ""))
    near, cut = graph.near(of, depth=depth)
    names = [name for name in near if _may_see(graph.nodes[name], readable)]
    return Lineage(
        of=of,
        depth=depth,
        drawing=drawn(graph, names, chosen=of),
        entries=_entries(graph, names),
        cut=cut,
        choices=(),
    )


def _may_see(node: Node, readable: list[str]) -> bool:
    return not node.pipeline or node.pipeline in readable


def _depth(text: str) -> int:
    return min(max(int(text), 1), MOST_DEPTH) if text.isascii() and text.isdigit() and len(text) < 4 else 1


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
        linked=node.kind in _LINKED,
    )


PAGE = Page(name="lineage", route="/lineage", title="Lineage", view=view, menu="Lineage")
