"""The application transactions of batches and replays, and what follows from them, for all who read a ledger.

A batch is complete once the checkpoint store has its transaction; a share is held back while the batch metadata store
says `held` of its step and not `caught_up`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake

CHECKPOINT_STORE = "checkpoint_store"
BATCH_METADATA_STORE = "batch_metadata_store"
REPLAYS = "quarantine_replays"
#: Outcomes of a step whose share stayed in the prepared batch, and of one that was committed after all.
HELD, CAUGHT_UP = "held", "caught_up"
#: Outcomes of a share that its table lost by going back, and of one that came back in the same commit.
ROLLED_BACK, RECOMMITTED = "rolled_back", "recommitted"


def batch_step(pipeline: str, generation: int, table: str, batch_id: int) -> Step:
    """The application transaction of one table, or of one store of the ledger, in one batch."""
    return Step(f"{pipeline}/g{generation}/{table}", batch_id)


def replay_step(pipeline: str, table: str, ordinal: int) -> Step:
    """The application transaction of one table in one replay."""
    return Step(f"{pipeline}/replay/{table}", ordinal)


def mutation_step(pipeline: str, table: str, number: int) -> Step:
    """The application transaction of one table in one mutation batch."""
    return Step(f"{pipeline}/mutation/{table}", number)


def keyed_application(pipeline: str, table: str, digest: str) -> str:
    """The application whose transactions say which version of its history a keyed table has been brought to.

    Args:
        digest: of what its content follows from beside rows.
    """
    return f"{pipeline}/keyed/{table}/{digest}"


def rollback_step(pipeline: str, table: str, ordinal: int) -> Step:
    """The application transaction of one rollback of a table: never a batch's own, which the table has already."""
    return Step(f"{pipeline}/rollback/{table}", ordinal)


def gold_build_step(pipeline: str, table: str, ordinal: int) -> Step:
    """The application transaction of one build of a gold table. A build that another one came before does not land."""
    return Step(f"{pipeline}/gold_build/{table}", ordinal)


def reference_step(pipeline: str, table: str, ordinal: int) -> Step:
    """The application transaction of one replacement of a reference table."""
    return Step(f"{pipeline}/reference/{table}", ordinal)


def gold_refresh_step(pipeline: str, table: str, ordinal: int) -> Step:
    """The application transaction of one refresh of a gold table."""
    return Step(f"{pipeline}/gold_refresh/{table}", ordinal)


def last_completed(store: DeltaTable | None, pipeline: str, generation: int) -> int | None:
    """The newest complete batch in this snapshot of the checkpoint store, or None before the first."""
    if store is None:
        return None
    batch_id: int | None = store.transaction_version(batch_step(pipeline, generation, CHECKPOINT_STORE, 0).app_id)
    return batch_id


def read_last_completed(lake: Lake, pipeline: str, generation: int) -> int | None:
    """The newest complete batch, without creating the ledger where there is none."""
    return last_completed(lake.open(paths.checkpoint_store(pipeline)), pipeline, generation)


def last_replay(record: DeltaTable | None, pipeline: str) -> int:
    """The ordinal of the last complete replay in this snapshot of their record; 0 before the first."""
    return 0 if record is None else record.transaction_version(replay_step(pipeline, REPLAYS, 0).app_id) or 0


def read_last_replay(lake: Lake, pipeline: str) -> int:
    """The ordinal of the last complete replay; 0 before the first."""
    return last_replay(lake.open(paths.quarantine_replays(pipeline)), pipeline)


def held_steps(steps: Iterable[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Table and batch of every share that is held back and has not been caught up, in order.

    Args:
        steps: rows of the batch metadata store; those with other outcomes do not count.
    """
    by_outcome: dict[str, set[tuple[str, int]]] = {HELD: set(), CAUGHT_UP: set()}
    for step in steps:
        if step["outcome"] in by_outcome:
            by_outcome[step["outcome"]].add((step["table_name"], step["batch_id"]))
    return sorted(by_outcome[HELD] - by_outcome[CAUGHT_UP])


def batches_by_table(steps: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Shares as the batches of each table."""
    batches: dict[str, list[int]] = {}
    for table, batch_id in steps:
        batches.setdefault(table, []).append(batch_id)
    return batches
