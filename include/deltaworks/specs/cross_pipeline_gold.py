"""Checks gold tables that read gold of other pipelines: the table must exist, and pipelines must not form a cycle.

Airflow rebuilds a pipeline's gold after the gold that it reads, so a cycle of pipelines would rebuild forever. The
other pipelines' files are read without validation, because their errors are reported with those pipelines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deltaworks.errors import ConfigError
from deltaworks.specs.base import KeyPath, suggest_name
from deltaworks.specs.gold import GoldTableSpec, cross_pipeline_table
from deltaworks.specs.loading import read_declaration
from deltaworks.specs.pipeline import PipelineSpec


def gold_input_problems(spec: PipelineSpec, folder: Path) -> Iterator[tuple[KeyPath, str]]:
    """Yields problems with the gold tables of other pipelines that a pipeline reads.

    Args:
        folder: the folder of all pipelines.
    """
    for index, gold in enumerate(spec.gold.tables):
        for position, read in enumerate(gold.reads):
            other = cross_pipeline_table(read)
            text = "" if other is None else _problem(spec.pipeline, gold, *other, folder)
            if text:
                yield ("gold", "tables", index, "reads", position), f"{gold.name!r} reads {read!r}: {text}"


def _problem(pipeline: str, reader: GoldTableSpec, other: str, table: str, folder: Path) -> str:
    if other == pipeline:
        return f"omit the name of the pipeline itself: write {table}"
    declared = _declared_gold_tables(folder, other)
    if declared is None:
        present = sorted(path.parent.name for path in folder.glob("*/pipeline.yaml"))
        return f"there is no pipeline {other!r}; {suggest_name(other, present)}"
    if table not in declared:
        return f"the pipeline {other!r} has no gold table of that name; {suggest_name(table, declared)}"
    if reader.affects == "same" and declared[table].get("partition_by") != reader.partition_by:
        return f"`affects: same` requires that it is partitioned by {reader.partition_by!r} too"
    cycle = _dependency_path(other, pipeline, folder, ())
    return f"cycle: gold of {' reads gold of '.join((pipeline, *cycle))}" if cycle else ""


def _dependency_path(start: str, end: str, folder: Path, visited: tuple[str, ...]) -> tuple[str, ...]:
    """Returns a path of pipelines from `start` to `end`, each of which reads gold of the next; empty if there
    is none."""
    if start == end:
        return (end,)
    for upstream in sorted(_upstream_pipelines(folder, start) - {start, *visited}):
        if cycle := _dependency_path(upstream, end, folder, (*visited, start)):
            return (start, *cycle)
    return ()


def _upstream_pipelines(folder: Path, pipeline: str) -> set[str]:
    reads = [
        str(read)
        for table in (_declared_gold_tables(folder, pipeline) or {}).values()
        for read in table.get("reads") or ()
    ]
    return {key_path[0] for read in reads if (key_path := cross_pipeline_table(read)) is not None}


def _declared_gold_tables(folder: Path, pipeline: str) -> dict[str, Mapping[str, Any]] | None:
    """Returns the gold tables in a pipeline's file by name, not validated; None if there is no such pipeline."""
    path = folder / pipeline / "pipeline.yaml"
    if not path.is_file():
        return None
    try:
        gold = read_declaration(path).data.get("gold")
    except ConfigError:
        return {}
    tables = gold.get("tables") if isinstance(gold, Mapping) else None
    return {str(table.get("name")): table for table in tables or () if isinstance(table, Mapping)}
