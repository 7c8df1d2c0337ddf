"""Keeps pandas from being imported by pyarrow, which saves half a second in each command that reads a table.

Module pyarrow.dataset imports pandas if it is installed, to recognise pandas objects. Commands use no pandas objects.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _PyarrowPandasBlocker(importlib.abc.MetaPathFinder):
    """Hides pandas while pyarrow.dataset is being imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "pandas":
            return None
        datasets = sys.modules.get("pyarrow.dataset")
        # The module defines this function last, so without it the module is still being imported.
        if datasets is not None and not hasattr(datasets, "dataset"):
            raise ModuleNotFoundError("pandas is left out of pyarrow's datasets", name=name)
        return None


def skip_pandas_import() -> None:
    """Prevents pyarrow.dataset from importing pandas in this process. Idempotent.

    pandas can still be imported, and `to_pandas` works; only `pyarrow.array` no longer recognises pandas objects.
    """
    if not any(isinstance(finder, _PyarrowPandasBlocker) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PyarrowPandasBlocker())
