"""Commands without pandas: half a second less of each that reads a table.

pyarrow looks for pandas when its datasets are imported, and loads it where it is installed, so as to recognise objects
of pandas among what it converts. Commands convert none.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _PyarrowPandasBlocker(importlib.abc.MetaPathFinder):
    """Says that there is no pandas while pyarrow's datasets are being imported, and at no other time."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "pandas":
            return None
        datasets = sys.modules.get("pyarrow.dataset")
        # The function is made where the module ends.
        if datasets is not None and not hasattr(datasets, "dataset"):
            raise ModuleNotFoundError("pandas is left out of pyarrow's datasets", name=name)
        return None


def skip_pandas_import() -> None:
    """Keep pyarrow from loading pandas with its datasets in this process. Whoever imports pandas itself has it, and so
    has `to_pandas`; only pandas' objects are no longer recognised by `pyarrow.array`. Idempotent.
    """
    if not any(isinstance(finder, _PyarrowPandasBlocker) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PyarrowPandasBlocker())
