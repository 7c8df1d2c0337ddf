"""The lineage page: the inputs and readers of a table, as a drawing and as an equivalent list.

The data flow consists of the declared sources, relays, streams, tables, gold tables and models. What runs have read or
written is not considered. The drawing has columns: inputs are left of their readers.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from deltaworks.console.page_context import PageContext, PageMissingError
from deltaworks.console.pages.base import Page
from deltaworks.specs.gold import cross_pipeline_table, view_name
from deltaworks.specs.record_sources import KafkaSourceSpec, KinesisSourceSpec
from deltaworks.specs.sources import DeltaSourceSpec, FileSourceSpec

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog
    from deltaworks.specs.pipeline import PipelineSpec

#: Maximum number of nodes in a drawing. The nodes nearest to the selected one are kept.
MAX_NODES: Final = 150
_COLUMN_WIDTH, _ROW_HEIGHT, _BOX_WIDTH, _BOX_HEIGHT = 230, 44, 190, 30


@dataclass(frozen=True, slots=True)
class Node:
    """A table, process or storage location in the data flow. Its `name` is unique: `games.purchase`, `stream games`."""

    name: str
    kind: str
    pipeline: str = ""


@dataclass(slots=True)
class Graph:
    """Nodes by name with their readers and inputs."""

    nodes: dict[str, Node] = field(default_factory=dict)
    readers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    inputs: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, node: Node) -> Node:
        """Adds a node unless its name exists, and returns the stored one."""
        return self.nodes.setdefault(node.name, node)

    def add_edge(self, source: Node, reader: Node) -> None:
        """Adds an edge from an input to its reader."""
        self.add(source)
        self.add(reader)
        self.readers[source.name].add(reader.name)
        self.inputs[reader.name].add(source.name)

    def neighbourhood(self, name: str, *, depth: int) -> tuple[list[str], bool]:
        """Returns the nodes within `depth` steps up- and downstream, nearest first, and whether MAX_NODES truncated
        them.
        """
        reached: dict[str, None] = {name: None}
        after, before = {name}, {name}
        for _ in range(depth):
            after = {reader for one in after for reader in self.readers.get(one, ())}
            before = {source for one in before for source in self.inputs.get(one, ())}
            for one in sorted(after | before):
                reached.setdefault(one)
        names = list(reached)
        return names[:MAX_NODES], len(names) > MAX_NODES


def build_graph(catalog: Catalog, pipelines: Iterable[str]) -> Graph:
    """Returns the data flow of these pipelines. Tables of other pipelines are included only if these pipelines read
    them.
    """
    graph = Graph()
    for name in pipelines:
        spec = catalog.pipelines.get(name)
        if spec is not None:
            _add_pipeline(graph, catalog, spec)
    return graph


def _add_pipeline(graph: Graph, catalog: Catalog, spec: PipelineSpec) -> None:
    name = spec.pipeline
    stream = graph.add(Node(f"stream {name}", "stream", name))
    for source in _sources(graph, catalog, spec):
        graph.add_edge(source, stream)
    for kind, tables in (("bronze", [table.name for table in spec.tables]), ("quarantine", ["quarantine"])):
        for table in tables:
            graph.add_edge(stream, Node(f"{name}.{table}", kind, name))
    for table, kind, reads in _derived_tables(spec):
        target = graph.add(Node(f"{name}.{table}", kind, name))
        for read in reads:
            other = cross_pipeline_table(read)
            owner, table_name = other if other is not None else (name, read)
            of = spec if owner == name else catalog.pipelines.get(owner)
            read_kind = of.table_kinds.get(table_name, "gold") if of else "gold"
            graph.add_edge(
                graph.nodes.get(f"{owner}.{table_name}") or Node(f"{owner}.{table_name}", read_kind, owner), target
            )


def _sources(graph: Graph, catalog: Catalog, spec: PipelineSpec) -> Iterator[Node]:
    source, places = spec.source, list[Node]()
    if isinstance(source, FileSourceSpec):
        bucket, relay = Node(f"bucket {source.bucket}", "bucket"), Node(f"relay {source.relay}", "relay")
        graph.add_edge(bucket, relay)
        _add_collectors(graph, catalog, spec.pipeline, [bucket])
        yield relay
        return
    if isinstance(source, KafkaSourceSpec):
        places = [Node(f"topic {topic}", "topic") for topic in source.topics]
    elif isinstance(source, KinesisSourceSpec):
        places = [Node(f"kinesis {source.stream}", "topic")]
    elif isinstance(source, DeltaSourceSpec):
        of = source.pipeline
        places = [Node(f"{of}.{source.table}", "bronze", of) if of else Node(str(source.uri), "table")]
    _add_collectors(graph, catalog, spec.pipeline, places)
    yield from places


def _add_collectors(graph: Graph, catalog: Catalog, pipeline: str, places: Iterable[Node]) -> None:
    """Adds the collectors whose sinks write to the sources that a pipeline's stream reads."""
    for name, collector in catalog.collectors.items():
        if any(source.pipeline == pipeline for source in collector.sources.values()):
            for place in places:
                graph.add_edge(Node(f"collector {name}", "collector"), place)


def _derived_tables(spec: PipelineSpec) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yields the name, kind and inputs of each derived table."""
    for keyed in spec.keyed_tables:
        yield keyed.name, "keyed", (keyed.history,)
    for live in spec.aggregation_tables:
        yield live.name, "live", (live.reads,)
    if spec.mutations is not None:
        for included in (spec.mutations.names, spec.mutations.intervals):
            yield included, "mutations", (spec.mutations.requests,)
    for model in spec.models:
        yield model.name, "model", (model.features, *model.reads)
    for table in spec.gold.tables:
        yield table.name, "gold", table.reads


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A drawn node: its position and shortened label."""

    name: str
    kind: str
    pipeline: str
    x: int
    y: int
    text: str
    is_selected: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLayout:
    """A drawn graph: boxes of one size and the curves between them."""

    width: int
    height: int
    box_width: int
    box_height: int
    boxes: tuple[Box, ...]
    curves: tuple[str, ...]


def layout_graph(graph: Graph, names: Iterable[str], *, selected: str) -> GraphLayout:
    """Lays out nodes in columns with their edges. Pure."""
    node_names = list(names)
    columns = _columns(graph, node_names)
    rows: dict[int, int] = defaultdict(int)
    boxes: dict[str, Box] = {}
    for name in sorted(node_names, key=lambda one: (columns[one], graph.nodes[one].kind, one)):
        column, node = columns[name], graph.nodes[name]
        x, y = 10 + column * _COLUMN_WIDTH, 10 + rows[column] * _ROW_HEIGHT
        text = name if len(name) <= 26 else f"{name[:25]}…"
        boxes[name] = Box(
            name=name, kind=node.kind, pipeline=node.pipeline, x=x, y=y, text=text, is_selected=name == selected
        )
        rows[column] += 1
    curves = [_curve(boxes[source], boxes[reader]) for source, reader in edges(graph, node_names)]
    return GraphLayout(
        width=20 + _COLUMN_WIDTH * max(columns.values(), default=0) + _BOX_WIDTH,
        height=20 + _ROW_HEIGHT * max(rows.values(), default=1),
        box_width=_BOX_WIDTH,
        box_height=_BOX_HEIGHT,
        boxes=tuple(boxes.values()),
        curves=tuple(curves),
    )


def edges(graph: Graph, names: Iterable[str]) -> list[tuple[str, str]]:
    """Returns the edges between these nodes as (input, reader)."""
    included = set(names)
    return sorted((one, reader) for one in included for reader in graph.readers.get(one, ()) if reader in included)


def _columns(graph: Graph, names: list[str]) -> Mapping[str, int]:
    """Returns the column of each node: the length of the longest path to it. A cycle is cut at an arbitrary node."""
    included, columns = set(names), dict.fromkeys(names, 0)
    pairs = edges(graph, included)
    for _ in range(len(names)):
        has_moved = False
        for source, reader in pairs:
            if columns[reader] <= columns[source] < len(names):
                columns[reader], has_moved = columns[source] + 1, True
        if not has_moved:
            break
    return columns


def _curve(source: Box, reader: Box) -> str:
    x, y = source.x + _BOX_WIDTH, source.y + _BOX_HEIGHT // 2
    to_x, to_y = reader.x, reader.y + _BOX_HEIGHT // 2
    middle = (x + to_x) // 2
    return f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}"


# Columns.


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLineage:
    """A column and what its values are computed from: fields of events, or columns of tables."""

    name: str
    reads: tuple[str, ...]


def column_lineage(catalog: Catalog, pipeline: str, table: str) -> tuple[ColumnLineage, ...]:
    """Returns the columns of a bronze, keyed or gold table; empty for others, and for SQL that cannot be resolved."""
    spec = catalog.pipelines.get(pipeline)
    if spec is None:
        return ()
    bronze = next((one for one in spec.tables if one.name == table), None)
    if bronze is not None:
        return tuple(ColumnLineage(name=one.name, reads=(f"event {one.path}",)) for one in bronze.columns)
    keyed = next((one for one in spec.keyed_tables if one.name == table), None)
    if keyed is not None:
        return tuple(
            ColumnLineage(name=name, reads=(f"{pipeline}.{keyed.history}.{name}",)) for name in keyed.history_types
        )
    columns = _gold_columns(catalog, pipeline, table, frozenset())
    return tuple(ColumnLineage(name=name, reads=reads) for name, reads in columns.items())


def _gold_columns(
    catalog: Catalog, pipeline: str, table: str, outer: frozenset[tuple[str, str]]
) -> dict[str, tuple[str, ...]]:
    """Returns the columns of a gold table with the columns that they read; `outer` are the tables that ask."""
    spec = catalog.pipelines.get(pipeline)
    gold = next((one for one in spec.gold.tables if one.name == table), None) if spec else None
    if gold is None or (pipeline, table) in outer:
        return {}
    owners = {view_name(read): cross_pipeline_table(read) or (pipeline, read) for read in gold.reads}
    asking = outer | {(pipeline, table)}
    views = tuple((name, _columns_of(catalog, *owner, asking)) for name, owner in owners.items())
    try:
        sql = (catalog.folder(pipeline) / gold.sql).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    return {
        name: tuple(".".join((*owners[view], column)) for view, column in reads)
        for name, reads in _query_columns(sql, views).items()
    }


def _columns_of(catalog: Catalog, pipeline: str, table: str, outer: frozenset[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the columns of a table that gold reads; empty if they are unknown."""
    spec = catalog.pipelines.get(pipeline)
    if spec is None:
        return ()
    declared = {one.name: tuple(one.column_types()) for one in spec.tables}
    declared |= {one.name: tuple(one.column_types()) for one in spec.references}
    declared |= {one.name: tuple(one.types) for one in spec.keyed_tables}
    return declared.get(table) or tuple(_gold_columns(catalog, pipeline, table, outer))


@functools.lru_cache(maxsize=512)
def _query_columns(
    sql: str, views: tuple[tuple[str, tuple[str, ...]], ...]
) -> Mapping[str, tuple[tuple[str, str], ...]]:
    """Returns the columns of a query; cached, because parsing takes longer than the page."""
    # Imported on first use: it imports the parser.
    from deltaworks.specs.checks.sql_names import column_sources

    return column_sources(sql, dict(views), dialect="spark")


# The page.

MAX_DEPTH: Final = 6
_MAX_CHOICES: Final = 2_000
_KINDS_WITH_PAGE: Final = frozenset(
    {"bronze", "keyed", "live", "gold", "quarantine", "mutations", "reference", "model"}
)


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
    columns: tuple[ColumnLineage, ...] = ()


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
        columns=_visible_columns(context.catalog, graph.nodes[selected], readable),
    )


def _visible_columns(catalog: Catalog, node: Node, readable: list[str]) -> tuple[ColumnLineage, ...]:
    """Returns the columns of a table, without columns of pipelines that the person may not see."""
    hidden = tuple(f"{name}." for name in catalog.pipelines if name not in readable)
    return tuple(
        ColumnLineage(name=column.name, reads=tuple(read for read in column.reads if not read.startswith(hidden)))
        for column in column_lineage(catalog, node.pipeline, node.name.partition(".")[2])
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
