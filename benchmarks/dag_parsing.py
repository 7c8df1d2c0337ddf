"""Parses a DAG file as Airflow's DAG processor does, in a separate process: `python -m benchmarks.dag_parsing FILE`.

The last line of output is JSON: wall clock and CPU seconds, and the number of DAGs and tasks. `--task DAG_ID` parses
the file as a task of this DAG does, without serialization. `--bare DAGS` creates this many plain Airflow DAGs with one
task each instead of parsing a file.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import time
from contextlib import ExitStack
from typing import Any


def main(arguments: list[str] | None = None) -> int:
    """Parses the file and prints the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", default="")
    parser.add_argument("--task", default="")
    parser.add_argument("--bare", type=int, default=0)
    options = parser.parse_args(arguments)

    from airflow import plugins_manager
    from airflow.sdk.definitions._internal.dag_parsing_context import _airflow_parsing_context_manager
    from airflow.serialization.serialized_objects import DagSerialization

    # Loads the timetables that DAGs use before measuring; the DAG processor has them loaded as well.
    plugins_manager.get_timetables_plugins()
    started, cpu_started = time.perf_counter(), time.process_time()
    with ExitStack() as stack:
        if options.task:
            stack.enter_context(_airflow_parsing_context_manager(dag_id=options.task))
        dags = _bare_dags(options.bare) if options.bare else _dags_of(options.file)
    parsed = time.perf_counter() - started
    if not options.task:
        for dag in dags:
            DagSerialization.to_dict(dag)
    record = {
        "seconds": time.perf_counter() - started,
        "parse_seconds": parsed,
        "cpu_seconds": time.process_time() - cpu_started,
        "dags": len(dags),
        "tasks": sum(len(dag.tasks) for dag in dags),
    }
    sys.stdout.write(json.dumps(record) + "\n")
    return 0


def _dags_of(file: str) -> list[Any]:
    from airflow.sdk import DAG

    dags = {value.dag_id: value for value in runpy.run_path(file).values() if isinstance(value, DAG)}
    return list(dags.values())


def _bare_dags(count: int) -> list[Any]:
    import datetime as dt

    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.sdk import DAG

    dags = []
    for number in range(count):
        with DAG(dag_id=f"bare__{number}", schedule=None, start_date=dt.datetime(2026, 1, 1)) as dag:
            EmptyOperator(task_id="nothing")
        dags.append(dag)
    return dags


if __name__ == "__main__":
    sys.exit(main())
