"""Names of the application transactions of batches, replays and other jobs, and queries of the state they record.

A batch is complete once the checkpoint store has its transaction. A commit is held if the batch metadata store has a
row `held` for it and no row `caught_up`.
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
REPLAYS_TABLE = "quarantine_replays"
#: Outcomes of a table's commit that was skipped in its batch, and of one that was made later.
HELD, CAUGHT_UP = "held", "caught_up"
#: Outcomes of a commit whose rows a rollback removed, and of one whose rows the rollback's commit added again.
ROLLED_BACK, RECOMMITTED = "rolled_back", "recommitted"


def batch_step(pipeline: str, generation: int, table: str, batch_id: int) -> Step:
    """Returns the transaction of one batch in one table or ledger table."""
    return Step(f"{pipeline}/g{generation}/{table}", batch_id)


def replay_step(pipeline: str, table: str, ordinal: int) -> Step:
    """Returns the transaction of one replay in one table."""
    return Step(f"{pipeline}/replay/{table}", ordinal)


def mutation_step(pipeline: str, table: str, number: int) -> Step:
    """Returns the transaction of one mutation batch in one table."""
    return Step(f"{pipeline}/mutation/{table}", number)


def keyed_application(pipeline: str, table: str, digest: str) -> str:
    """Returns the application id of a keyed table's merges; its transaction version is the history version merged last.

    Args:
        digest: digest of everything except rows that determines the keyed table's content.
    """
    return f"{pipeline}/keyed/{table}/{digest}"


def rollback_step(pipeline: str, table: str, ordinal: int) -> Step:
    """Returns the transaction of one rollback of a table. It differs from the transactions of the batches it rolls
    back.
    """
    return Step(f"{pipeline}/rollback/{table}", ordinal)


def gold_build_step(pipeline: str, table: str, ordinal: int) -> Step:
    """Returns the transaction of one build of a gold table. A build with a lower ordinal than a committed one is
    skipped.
    """
    return Step(f"{pipeline}/gold_build/{table}", ordinal)


def reference_step(pipeline: str, table: str, ordinal: int) -> Step:
    """Returns the transaction of one replacement of a reference table."""
    return Step(f"{pipeline}/reference/{table}", ordinal)


def gold_refresh_step(pipeline: str, table: str, ordinal: int) -> Step:
    """Returns the transaction of one refresh of a gold table."""
    return Step(f"{pipeline}/gold_refresh/{table}", ordinal)


def last_completed(store: DeltaTable | None, pipeline: str, generation: int) -> int | None:
    """Returns the number of the newest complete batch in a snapshot of the checkpoint store; None before the first."""
    if store is None:
        return None
    batch_id: int | None = store.transaction_version(batch_step(pipeline, generation, CHECKPOINT_STORE, 0).app_id)
    return batch_id


def read_last_completed(lake: Lake, pipeline: str, generation: int) -> int | None:
    """Reads the number of the newest complete batch. Does not create a missing ledger."""
    return last_completed(lake.open(paths.checkpoint_store(pipeline)), pipeline, generation)


def last_replay(record: DeltaTable | None, pipeline: str) -> int:
    """Returns the ordinal of the last complete replay in a snapshot of the replay record; 0 before the first."""
    return 0 if record is None else record.transaction_version(replay_step(pipeline, REPLAYS_TABLE, 0).app_id) or 0


def read_last_replay(lake: Lake, pipeline: str) -> int:
    """Reads the ordinal of the last complete replay; 0 before the first."""
    return last_replay(lake.open(paths.quarantine_replays(pipeline)), pipeline)


def held_commit_steps(steps: Iterable[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Returns (table, batch) of every held commit that has not caught up, sorted.

    Args:
        steps: rows of the batch metadata store; rows with other outcomes are ignored.
    """
    by_outcome: dict[str, set[tuple[str, int]]] = {HELD: set(), CAUGHT_UP: set()}
    for step in steps:
        if step["outcome"] in by_outcome:
            by_outcome[step["outcome"]].add((step["table_name"], step["batch_id"]))
    return sorted(by_outcome[HELD] - by_outcome[CAUGHT_UP])


def batches_by_table(steps: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Groups (table, batch) pairs by table."""
    batches: dict[str, list[int]] = {}
    for table, batch_id in steps:
        batches.setdefault(table, []).append(batch_id)
    return batches
