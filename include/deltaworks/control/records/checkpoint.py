"""Checks the consistency of Spark's checkpoint, the ledger and the prepared batches before a query starts.

Spark fails with a Java stack trace on a damaged checkpoint file, and starts from the beginning if a file is missing. A
lost or restored ledger would re-read later batches under numbers that the tables already contain. Both are rejected
here, by name and with a next step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.generations import Generations
from deltaworks.errors import ContractError

#: On start Spark reads the two newest offset files and the newest commit file.
_OFFSETS_READ = 2
_COMMITS_READ = 1


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A checkpoint file that Spark could not continue from."""

    key: str
    problem: str


def damaged_files(home: PipelineHome, generations: Generations) -> list[DamagedFile]:
    """Returns the damaged files among those that a start reads. Read-only: two listings and a few reads."""
    folder = paths.checkpoint(home.pipeline, generations.generation, generations.current.ordinal)
    objects, damaged = home.objects, []
    metadata = objects.get(f"{folder}/metadata")
    problem = _json_problem(metadata.data) if metadata is not None else ""
    if problem:
        damaged.append(DamagedFile(f"{folder}/metadata", problem))
    offsets, commits = (batch_numbers(objects, f"{folder}/{kind}/") for kind in ("offsets", "commits"))
    required_files = [(f"{folder}/offsets/{number}", 3) for number in offsets[-_OFFSETS_READ:]]
    required_files += [(f"{folder}/commits/{number}", 2) for number in commits[-_COMMITS_READ:]]
    for key, lines in required_files:
        content = objects.get(key)
        problem = _log_problem(content.data if content else b"", lines)
        if problem:
            damaged.append(DamagedFile(key, problem))
    if commits and (not offsets or offsets[-1] < commits[-1]):
        damaged.append(DamagedFile(f"{folder}/offsets/{commits[-1]}", "it is missing, but the batch was committed"))
    return damaged


def batch_numbers(objects: ObjectStore, folder: str) -> list[int]:
    """Returns the batch numbers of the files in a folder of a Spark checkpoint, in order."""
    names = (key.removeprefix(folder) for key in objects.list(folder))
    return sorted(int(name) for name in names if name.isdigit())


def _log_problem(data: bytes, lines: int) -> str:
    if not data:
        return "it is empty"
    text = data.decode(errors="replace").splitlines()
    if not text[0].startswith("v"):
        return "it has no version in its first line"
    if len(text) < lines:
        return f"it is cut off after {len(text)} of {lines} lines"
    return next((problem for line in text[1:] if line != "-" and (problem := _json_problem(line.encode()))), "")


def _json_problem(data: bytes) -> str:
    if not data:
        return "it is empty"
    try:
        json.loads(data)
    except ValueError as error:
        return f"it is not JSON: {error}"
    return ""


def reject_damaged_checkpoint(home: PipelineHome, generations: Generations) -> None:
    """Raises if the checkpoint is damaged.

    Raises:
        ContractError: CHECKPOINT_DAMAGED, naming each file.
    """
    damaged = damaged_files(home, generations)
    if damaged:
        raise ContractError(
            "CHECKPOINT_DAMAGED",
            "; ".join(f"{file.key}: {file.problem}" for file in damaged) + ".",
            hint=f"`deltaworks checkpoint repair {home.pipeline} --no-dry-run`: the next start uses the ledger.",
        )


def describe_ledger_gap(
    home: PipelineHome, generations: Generations | None, *, generation: int, last_completed: int | None
) -> str:
    """Describes completed batches that the ledger lacks; empty if there are none.

    A batch is prepared only after the ledger contains the previous one, and Spark's checkpoint commits it last.
    """
    if last_completed is None:
        prepared = home.prepared.numbers(generation)
        if prepared and prepared[-1] > 0:
            return f"batch {prepared[-1]} is prepared, and the ledger has none"
    else:
        key = paths.prepared_batch(home.pipeline, generation, last_completed + 2)
        if home.objects.get(key) is not None:
            return f"batch {last_completed + 2} is prepared, and the ledger ends at {last_completed}"
    if generations is None or generations.current.retired:
        return ""
    folder = paths.checkpoint(home.pipeline, generation, generations.current.ordinal)
    commits = batch_numbers(home.objects, f"{folder}/commits/")
    newest = generations.current.first_batch + commits[-1] if commits else -1
    if newest > (-1 if last_completed is None else last_completed):
        ends = "has none" if last_completed is None else f"ends at {last_completed}"
        return f"Spark's checkpoint has committed batch {newest}, and the ledger {ends}"
    return ""


def reject_lost_ledger(
    home: PipelineHome, generations: Generations | None, *, generation: int, last_completed: int | None
) -> None:
    """Raises if the ledger was lost or restored to an earlier state.

    Raises:
        ContractError: LEDGER_BEHIND.
    """
    evidence = describe_ledger_gap(home, generations, generation=generation, last_completed=last_completed)
    if evidence:
        raise ContractError(
            "LEDGER_BEHIND",
            f"The ledger of {home.pipeline!r} has lost batches: {evidence}.",
            hint="Restore control/pipelines/"
            f"{home.pipeline}/checkpoint_store and batch_metadata_store from the storage's versions, or recreate them "
            f"from the prepared batches: `deltaworks checkpoint repair {home.pipeline} --no-dry-run`.",
        )


def live_next_version(home: PipelineHome, table: str) -> int:
    """Returns the next bronze version that the live table reads: all earlier versions are in it; 0 if unknown.

    Read from the newest committed batch of the live query. During the initial snapshot nothing counts as read. Needs no
    Spark.
    """
    folder = paths.live_checkpoint(home.pipeline, home.generations.current(), table)
    committed = batch_numbers(home.objects, f"{folder}/commits/")
    stored = home.objects.get(f"{folder}/offsets/{committed[-1]}") if committed else None
    if stored is None:
        return 0
    offset = json.loads(stored.data.decode().splitlines()[-1])
    return 0 if offset["isStartingVersion"] else int(offset["reservoirVersion"])
