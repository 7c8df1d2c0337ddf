"""Keeps pandas out of the processes in which Spark makes a source and plans its batches.

pyarrow loads pandas the first time it looks at a value, to see whether that is one of its frames. A source never has
one, while a query is planned: a process that makes the source, one that prepares its reading and one that plans batches
for as long as it runs are started one after the other. Each is some 30 MB smaller and a quarter of a second sooner
there without.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PLANNER_MODULE = "pyspark.sql.streaming.python_streaming_source_runner"
#: What Spark runs of a source before the planner, by itself or in the daemon that is told which.
SOURCE_RUNNERS = frozenset({"pyspark.sql.worker.create_data_source", "pyspark.sql.worker.plan_data_source_read"})
DAEMON_MODULE = "pyspark.daemon"


class _PandasBlocker(MetaPathFinder):
    """Says that there is no pandas, which pyarrow is content with."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is kept out of planners of streams", name=name)
        return None


def block_pandas_in_planners() -> None:
    """Do so from now on, where this is such a process. It is too late where pandas has been loaded."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    program = getattr(spec, "name", "")
    if program == DAEMON_MODULE:
        program = next(iter(sys.argv[1:]), "")
    if program in {PLANNER_MODULE, *SOURCE_RUNNERS} and not any(
        isinstance(finder, _PandasBlocker) for finder in sys.meta_path
    ):
        sys.meta_path.insert(0, _PandasBlocker())
