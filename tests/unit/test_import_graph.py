"""Limits on imports: none hidden in strings, no cycles, and how many modules an operation reaches.

Imports are read from the source, because tools that follow statements see no import by name. The limits of the walks
are today's values. A change that needs more raises a limit and gives the reason. Every count includes the specs of
pipelines, rules, feeds, models, collectors and the environment.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import networkx as nx
import pytest

from tests.code_trees import nodes_of, tree_of

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "include"
PACKAGES = ("deltaworks", "generator", "sandbox", "collector")
#: Modules outside the packages, which import them.
WIRING = ("dags", "plugins", "spark_jobs")
#: Where modules may be imported by name: a command, a kind of source or an operation loads only its own module.
BY_NAME = ("deltaworks.cli", "deltaworks.sources.registry", "deltaworks.operations.base")
#: Where a string may name a function as `module:function`: the same modules, and the table that one of them reads.
NAMING = (*BY_NAME, "deltaworks.operations.registry")
#: Functions that import a module by its name.
_IMPORTERS = frozenset({"import_module", "__import__", "resolve_name", "run_module", "exec_module"})
_MODULE = re.compile(rf"((?:{'|'.join(PACKAGES)})(?:\.\w+)*)(?::([\w.]+))?")

Kind = Literal["top", "function", "type", "string"]


@dataclass(frozen=True, slots=True)
class Walk:
    """What one operation may reach: modules of this package, and modules one below the other."""

    name: str
    entry: str
    most_modules: int
    longest_chain: int


WALKS = (
    # Every parser strips personal data by columns too; what is read again may be a landed object that was put anew; and
    # requests to be erased, of which a restore asks, note for pages how far they are. All translate foreign errors. All
    # that create tables describe them, and the environment declares catalogs, roles of SQL and routes of alerts.
    Walk("restore", "deltaworks.recovery.restore.table_restore", 175, 21),
    Walk("batch", "deltaworks.engine.batches", 164, 19),
    Walk("stream", "deltaworks.engine.runner", 168, 21),
    Walk("OPTIMIZE", "deltaworks.maintenance.optimize", 97, 17),
)


@dataclass(frozen=True, slots=True)
class Import:
    """One import: where it stands, what it names, and how it is made."""

    line: int
    module: str
    kind: Kind


def module_of(path: Path, root: Path = LIBRARY) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def modules() -> dict[str, Path]:
    return {module_of(path): path for package in PACKAGES for path in (LIBRARY / package).rglob("*.py")}


def is_in(module: str, allowed: Iterable[str]) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in allowed)


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "id", "") or getattr(node.func, "attr", "")


def imports_by_name(tree: ast.AST) -> Iterator[int]:
    """The lines that import a module by its name."""
    return (node.lineno for node in nodes_of(tree) if isinstance(node, ast.Call) and _called(node) in _IMPORTERS)


def named_functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings that name something of the project as `module:function`, with their lines."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = _MODULE.fullmatch(node.value)
            if found and found[2]:
                yield node.lineno, node.value


def imports_of(tree: ast.Module, known: Iterable[str]) -> Iterator[Import]:
    """All imports of modules in `known`: at the top, in functions, for type checkers, and in strings."""
    type_checking = {
        id(inner)
        for node in nodes_of(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    top = {id(statement) for statement in tree.body}
    # Where modules are imported by name, every string that is a module's name may be one of them.
    by_name = next(imports_by_name(tree), None) is not None
    for node in nodes_of(tree):
        kind: Kind = "type" if id(node) in type_checking else "top" if id(node) in top else "function"
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, kind) for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield Import(node.lineno, name if name in known else node.module, kind)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = _MODULE.fullmatch(node.value)
            if found and found[1] in known and (by_name or found[2]):
                yield Import(node.lineno, found[1], "string")


def graph_of(trees: Mapping[str, ast.Module], *, without: frozenset[Kind] = frozenset()) -> nx.DiGraph:
    """Which module imports which."""
    graph = nx.DiGraph()
    graph.add_nodes_from(trees)
    for module, tree in trees.items():
        if module == "deltaworks":
            # It names functions for users of the library; no module of the library takes them from it.
            continue
        for one in imports_of(tree, trees.keys()):
            if one.kind not in without and one.module in trees and one.module != module:
                graph.add_edge(module, one.module)
    return graph


def cycles(graph: nx.DiGraph) -> list[list[str]]:
    return [sorted(members) for members in nx.strongly_connected_components(graph) if len(members) > 1]


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {module: tree_of(path) for module, path in modules().items()}


def hidden_imports(module: str, tree: ast.AST, *, is_package: bool = False) -> list[str]:
    """The imports of a module that only a string shows, each as `module:line`."""
    lines: list[int] = []
    if not is_package and not is_in(module, BY_NAME):
        lines += imports_by_name(tree)
    if not is_package and not is_in(module, NAMING):
        lines += [line for line, _ in named_functions(tree)]
    return [f"{module}:{line}" for line in sorted(set(lines))]


def test_no_module_is_imported_by_name(trees: dict[str, ast.Module]) -> None:
    packages = {module for module, path in modules().items() if path.stem == "__init__"}
    wiring = {module_of(path, ROOT): tree_of(path) for part in WIRING for path in (ROOT / part).rglob("*.py")}

    hidden = chain.from_iterable(
        hidden_imports(module, tree, is_package=module in packages) for module, tree in {**trees, **wiring}.items()
    )

    assert list(hidden) == [], "import it, or take it as an argument from the module that puts the parts together"


@pytest.mark.parametrize(
    "statement",
    [
        'import_module("deltaworks.gold.build")',
        'importlib.import_module(f"deltaworks.{name}")',
        '__import__("deltaworks.gold")',
        'pkgutil.resolve_name("deltaworks.gold.build:rebuild")',
        'LOOP = "deltaworks.gold.refresh_loop:GoldRefreshLoop"',
    ],
)
def test_an_import_by_name_is_found(statement: str) -> None:
    tree = ast.parse(statement)

    assert hidden_imports("deltaworks.engine.runner", tree) == ["deltaworks.engine.runner:1"]
    assert hidden_imports("deltaworks.cli.lazy", tree) == []


def test_nothing_is_taken_from_the_package_that_only_users_of_the_library_need(trees: dict[str, ast.Module]) -> None:
    taken = [
        f"{module}:{node.lineno}"
        for module, tree in trees.items()
        for node in nodes_of(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "deltaworks"
        for alias in node.names
        if alias.name != "__version__" and f"deltaworks.{alias.name}" not in trees
    ]

    assert taken == []


def test_no_module_imports_itself_through_others(trees: dict[str, ast.Module]) -> None:
    assert cycles(graph_of(trees)) == []


@pytest.mark.parametrize(
    "back",
    [
        "from deltaworks.a import First",
        "def late():\n    import deltaworks.a",
        "if TYPE_CHECKING:\n    from deltaworks import a",
        'FIRST = "deltaworks.a:First"',
        'import_module("deltaworks.a")',
    ],
)
def test_a_cycle_is_found_however_it_is_imported(back: str) -> None:
    sources = {
        "deltaworks.a": "from deltaworks.b import Second",
        "deltaworks.b": back,
        "deltaworks.c": "import deltaworks.a",
    }
    trees = {module: ast.parse(source) for module, source in sources.items()}

    assert cycles(graph_of(trees)) == [["deltaworks.a", "deltaworks.b"]]


def test_the_walks_stay_short(trees: dict[str, ast.Module], record_property: Callable[[str, object], None]) -> None:
    graph = graph_of(trees, without=frozenset({"type"}))
    figures: list[str] = []
    too_long: list[str] = []
    for walk in WALKS:
        reached = graph.subgraph(nx.descendants(graph, walk.entry) | {walk.entry})
        longest = nx.dag_longest_path(reached)
        figures.append(f"{walk.name} {len(reached)} modules, {len(longest)} deep")
        if len(reached) > walk.most_modules or len(longest) > walk.longest_chain:
            too_long.append(f"{figures[-1]}, down {' > '.join(longest)}; bounds are {walk}")
    record_property("summary", f"walks: {'; '.join(figures)}")

    assert too_long == []
