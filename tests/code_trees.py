"""Syntax trees of modules, parsed once for all tests of a process that look at the code."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Returns the module's tree. Tests share it and must not change it."""
    return ast.parse(path.read_text(encoding="utf-8"))
