"""Forked tasks have the modules that the scheduler has imported."""

from __future__ import annotations

from pathlib import Path

from tests.dags.airflow_project import REPOSITORY, run_python, write_project


def test_a_fork_has_the_modules_of_the_dag_files_and_neither_threads_nor_compiled_engines(tmp_path: Path) -> None:
    program = f"""
import importlib, json, re, sys, threading
from pathlib import Path
from deltaworks.airflow.executor import import_task_modules

import_task_modules()
threads = threading.active_count()
engines = sorted({{"deltalake", "duckdb", "numpy", "pandas", "pyarrow", "pyspark"}} & sys.modules.keys())
shared = set(sys.modules)
for file in Path({str(REPOSITORY / "dags")!r}).glob("*.py"):
    for module in re.findall(r"^from (deltaworks[.]\\S+) import", file.read_text(), re.MULTILINE):
        importlib.import_module(module)
print(json.dumps([threads, engines, sorted(set(sys.modules) - shared)]))
"""
    threads, engines, unshared = run_python(program, write_project(tmp_path))

    assert (threads, engines, unshared) == (1, [], [])
