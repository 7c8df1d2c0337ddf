"""Gold that reads gold of other pipelines: whether it is there, and whether two pipelines wait for each other.

Airflow builds a pipeline's gold again when gold that it reads was built. So pipelines that read each other, by
whichever of their tables, would build for ever. Only the declarations that are named are looked at, as they stand: what
else is wrong with them is their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deltaworks.errors import ConfigError
from deltaworks.specs.base import Place, nearest_of
from deltaworks.specs.gold import GoldTableSpec, place_in_other
from deltaworks.specs.loading import read_declared
from deltaworks.specs.pipeline import PipelineSpec


def gold_input_problems(spec: PipelineSpec, folder: Path) -> Iterator[tuple[Place, str]]:
    """What is wrong with the gold tables of other pipelines that a pipeline reads.

    Args:
        folder: where the folders of all pipelines are.
    """
    for index, gold in enumerate(spec.gold.tables):
        for position, read in enumerate(gold.reads):
            other = place_in_other(read)
            text = "" if other is None else _problem(spec.pipeline, gold, *other, folder)
            if text:
                yield ("gold", "tables", index, "reads", position), f"{gold.name!r} reads {read!r}: {text}"


def _problem(pipeline: str, reader: GoldTableSpec, other: str, table: str, folder: Path) -> str:
    if other == pipeline:
        return f"a table of the pipeline itself is named without it: write {table}"
    declared = _gold_of(folder, other)
    if declared is None:
        present = sorted(path.parent.name for path in folder.glob("*/pipeline.yaml"))
        return f"there is no pipeline {other!r}; {nearest_of(other, present)}"
    if table not in declared:
        return f"the pipeline {other!r} has no gold table of that name; {nearest_of(table, declared)}"
    if reader.affects == "same" and declared[table].get("partition_by") != reader.partition_by:
        return f"with `affects: same` it would have to be partitioned by {reader.partition_by!r} too"
    way = _way(other, pipeline, folder, ())
    return f"gold of {' reads gold of '.join((pipeline, *way))}, so that each would wait for the other" if way else ""


def _way(start: str, end: str, folder: Path, seen: tuple[str, ...]) -> tuple[str, ...]:
    """The pipelines from one to another, each reading gold of the next; empty where there is no way."""
    if start == end:
        return (end,)
    for following in sorted(_read_by(folder, start) - {start, *seen}):
        if way := _way(following, end, folder, (*seen, start)):
            return (start, *way)
    return ()


def _read_by(folder: Path, pipeline: str) -> set[str]:
    reads = [str(read) for table in (_gold_of(folder, pipeline) or {}).values() for read in table.get("reads") or ()]
    return {place[0] for read in reads if (place := place_in_other(read)) is not None}


def _gold_of(folder: Path, pipeline: str) -> dict[str, Mapping[str, Any]] | None:
    """The gold tables of a pipeline as its file has them, by name; None where there is no such pipeline."""
    path = folder / pipeline / "pipeline.yaml"
    if not path.is_file():
        return None
    try:
        gold = read_declared(path).data.get("gold")
    except ConfigError:
        return {}
    tables = gold.get("tables") if isinstance(gold, Mapping) else None
    return {str(table.get("name")): table for table in tables or () if isinstance(table, Mapping)}
