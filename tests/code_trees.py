"""Syntax trees of modules, parsed and walked once for all tests of a process that look at the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Returns the module's tree. Tests share it and must not change it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Returns all nodes of a tree as `ast.walk` does, which takes as long as parsing; a pass over these, a tenth."""
    return tuple(ast.walk(tree))


@cache
def imports_of(tree: ast.AST) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Returns the imports of a tree, at the top and in functions. No expression is walked, since it imports nothing."""
    return tuple(node for node in _statements(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        nested = getattr(node, name, None)
        # The branches of an expression with a condition have the same names and are no lists.
        for statement in nested if isinstance(nested, list) else ():
            yield statement
            yield from _statements(statement)
