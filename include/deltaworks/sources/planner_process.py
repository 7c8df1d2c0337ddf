"""Keeps pandas out of Spark's planner processes: every query of a source in Python has one for as long as it runs.

pyarrow loads pandas the first time it looks at a value, to see whether that is one of its frames. A planner never has
one, and a driver of many pipelines has many planners: each is some 30 MB smaller without.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"


class _NoPandas(MetaPathFinder):
    """Says that there is no pandas, which pyarrow is content with."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is kept out of planners of streams", name=name)
        return None


def keep_pandas_out() -> None:
    """Do so from now on, where this is a planner's process. It is too late where pandas has been loaded."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if getattr(spec, "name", "") == PLANNER and not any(isinstance(finder, _NoPandas) for finder in sys.meta_path):
        sys.meta_path.insert(0, _NoPandas())
