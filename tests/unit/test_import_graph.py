"""Limits on imports: how many modules an operation reaches, and the longest import chain.

The limits are slightly above today's values. A change that needs more raises a limit and gives the reason. Every count
includes the specs of pipelines, rules, feeds, models, collectors and the environment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grimp
import networkx as nx
import pytest

PACKAGE = "deltaworks"


@dataclass(frozen=True, slots=True)
class Walk:
    """What one operation may reach: modules of this package, and modules one below the other."""

    name: str
    entry: str
    most_modules: int
    longest_chain: int


WALKS = (
    # Every parser strips personal data by columns too; what is read again may be a landed object that was put anew; and
    # requests to be erased, of which a restore asks, note for pages how far they are.
    Walk("restore", "deltaworks.recovery.restore.table_restore", 215, 24),
    Walk("batch", "deltaworks.engine.batches", 179, 22),
    Walk("stream", "deltaworks.engine.runner", 199, 24),
    Walk("OPTIMIZE", "deltaworks.maintenance.optimize", 95, 14),
)


@pytest.fixture(scope="module")
def imports() -> nx.DiGraph:
    """Which module imports which, in functions too; not what only type checkers import."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None, exclude_type_checking_imports=True)
    edges = ((module, other) for module in graph.modules for other in graph.find_modules_directly_imported_by(module))
    return nx.DiGraph(edges)


def test_no_module_imports_itself_through_others(imports: nx.DiGraph) -> None:
    cycles = [sorted(modules) for modules in nx.strongly_connected_components(imports) if len(modules) > 1]

    assert cycles == []


def test_the_walks_stay_short(imports: nx.DiGraph, record_property: Callable[[str, object], None]) -> None:
    figures: list[str] = []
    too_long: list[str] = []
    for walk in WALKS:
        reached = imports.subgraph(nx.descendants(imports, walk.entry) | {walk.entry})
        chain = nx.dag_longest_path(reached)
        figures.append(f"{walk.name} {len(reached)} modules, {len(chain)} deep")
        if len(reached) > walk.most_modules or len(chain) > walk.longest_chain:
            too_long.append(f"{figures[-1]}, down {' > '.join(chain)}; bounds are {walk}")
    record_property("summary", f"walks: {'; '.join(figures)}")

    assert too_long == []
