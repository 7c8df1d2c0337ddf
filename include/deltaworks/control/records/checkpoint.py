"""Whether Spark's checkpoint, our ledger and the prepared batches tell the same story, before a query starts.

Spark ends with a Java stack trace where a file of its checkpoint is damaged, and starts from the beginning where there
is none. A ledger that was lost or set back would have every batch since read again under numbers that the tables take
for landed. Both are refused here, by name, with what to do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.generations import Generations
from deltaworks.errors import ContractError

#: Spark reads the newest offsets, the ones before them, and the newest commit when it starts.
_OFFSETS_READ = 2
_COMMITS_READ = 1


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A file of a checkpoint that Spark could not continue from."""

    key: str
    problem: str


def damaged_files(home: PipelineHome, generations: Generations) -> list[DamagedFile]:
    """The damaged files of the current checkpoint among those a start reads. Reads only; two listings, a few reads."""
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
        damaged.append(DamagedFile(f"{folder}/offsets/{commits[-1]}", "it is gone, and the batch was committed"))
    return damaged


def batch_numbers(objects: ObjectStore, folder: str) -> list[int]:
    """The batches that have a file in this folder of a checkpoint of Spark's, in order."""
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
        return f"it is no JSON: {error}"
    return ""


def reject_damaged_checkpoint(home: PipelineHome, generations: Generations) -> None:
    """Refuse to start a query on a checkpoint that is damaged.

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
    """What shows that the ledger lacks batches that were complete; empty where nothing does.

    A batch is prepared only once the one before it is complete, and Spark writes its commit only after ours.
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
    """Refuse to start where the ledger has been lost or set back.

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
    """The version of the bronze table below which everything is in the live table; 0 where that is not known.

    Reads the newest batch that Spark has marked as done. Its offset names the next version to read, except while the
    table's first snapshot is being worked off: then nothing counts as read. No Spark is needed.
    """
    folder = paths.live_checkpoint(home.pipeline, home.generations.current(), table)
    committed = batch_numbers(home.objects, f"{folder}/commits/")
    stored = home.objects.get(f"{folder}/offsets/{committed[-1]}") if committed else None
    if stored is None:
        return 0
    offset = json.loads(stored.data.decode().splitlines()[-1])
    return 0 if offset["isStartingVersion"] else int(offset["reservoirVersion"])
