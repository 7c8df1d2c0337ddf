"""Blocks the import of pandas in processes that do not need it: those that create a Python data source and plan its
batches, and commands, tasks and looks that read tables without Spark.

pyarrow imports pandas when it first converts a value, to check for DataFrames. A source never uses one while a query is
planned. Spark starts three such processes in sequence: one creates the source, one prepares the read, one plans batches
for as long as the query runs. Without pandas each takes about 30 MB less and starts a quarter of a second sooner.

Module pyarrow.dataset imports pandas too, to recognise its objects. A process without Spark uses none: each that reads
a table saves half a second and 44 MB.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PLANNER_MODULE = "pyspark.sql.streaming.python_streaming_source_runner"
#: Modules that Spark runs for a source before the planner, directly or through the daemon.
SOURCE_RUNNERS = frozenset({"pyspark.sql.worker.create_data_source", "pyspark.sql.worker.plan_data_source_read"})
DAEMON_MODULE = "pyspark.daemon"


class _PandasBlocker(MetaPathFinder):
    """Import hook that reports pandas as missing, which pyarrow accepts."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is blocked in planner processes of streams", name=name)
        return None


def block_pandas_in_planners() -> None:
    """Blocks pandas if this is a planner process. Has no effect after pandas has been imported."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    program = getattr(spec, "name", "")
    if program == DAEMON_MODULE:
        program = next(iter(sys.argv[1:]), "")
    if program in {PLANNER_MODULE, *SOURCE_RUNNERS} and not any(
        isinstance(finder, _PandasBlocker) for finder in sys.meta_path
    ):
        sys.meta_path.insert(0, _PandasBlocker())


class _PyarrowPandasBlocker(MetaPathFinder):
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
