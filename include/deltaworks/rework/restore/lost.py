"""What a table loses by going back: batches and replays, by its own transactions, and the files that had their rows.

The transactions of a version state exactly what it holds, whatever became of the ledger and however its files were
merged: what the table has now and did not have then is lost by going back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.control.records.rollback import LostShare
from deltaworks.errors import ContractError
from deltaworks.tables.lake import Lake, selected_rows
from deltaworks.tables.log import Action, FileId, TableState
from deltaworks.tables.steps import replay_step

_READERS = 8


@dataclass(frozen=True, slots=True)
class Lost:
    """One lost share, and the add actions of its files; None where no record names them any more."""

    share: LostShare
    files: dict[FileId, Action] | None


class LostShares:
    """What one table loses. Used by one thread."""

    def __init__(self, lake: Lake, home: PipelineHome, table: str) -> None:
        self._lake = lake
        self._home = home
        self._pipeline = home.pipeline
        self._table = table

    def between(
        self, then: TableState, now: TableState, *, generation: int, skipped: Set[int] = frozenset()
    ) -> list[Lost]:
        """What `now` has and `then` had not, in the order of batches, replays last.

        Args:
            generation: the present one.
            skipped: batches that an earlier rollback of the table left out on purpose.

        Raises:
            ContractError: RESTORE_GENERATION_OVER, `then` holds rows that have landed again since; and what reading
                prepared batches raises.
        """
        # Rollbacks of the whole pipeline that `then` has behind it: of the batches before, it has what these left.
        behind = then.transactions.get(f"{self._pipeline}/start_over/{self._table}", 1)
        lost: list[Lost] = []
        for of_generation in range(1, generation + 1):
            survives = self._home.start_overs.surviving_batches(of_generation, current=generation)
            app_id = f"{self._pipeline}/g{of_generation}/{self._table}"
            had, has = then.transactions.get(app_id, -1), now.transactions.get(app_id, -1)
            kept = self._home.start_overs.surviving_batches(of_generation, current=behind)
            had = had if kept is None else min(had, kept)
            if survives is not None:
                self._refuse_lost_generation(then, of_generation, had, survives)
                has = min(has, survives)
            numbers = [number for number in range(had + 1, has + 1) if number not in skipped]
            lost += self._batches(of_generation, numbers)
        return lost + self._replays(then, now)

    def _refuse_lost_generation(self, then: TableState, generation: int, had: int, survives: int) -> None:
        if had > survives:
            raise ContractError(
                "RESTORE_GENERATION_OVER",
                f"Version {then.version} of {self._pipeline}.{self._table} holds batches of generation {generation} up "
                f"to {had}, which were given up after {survives}: what they read has landed again since.",
                hint="Go back to a version of the present generation; or roll the whole pipeline back.",
            )

    def _replays(self, then: TableState, now: TableState) -> list[Lost]:
        app_id = replay_step(self._pipeline, self._table, 0).app_id
        lost: list[Lost] = []
        for ordinal in range(then.transactions.get(app_id, 0) + 1, now.transactions.get(app_id, 0) + 1):
            record = self._home.replays.read(ordinal)
            share = None if record is None else share_of(record.tables, self._table)
            lost += _lost("replay", 0, ordinal, share)
        return lost

    def _batches(self, generation: int, numbers: list[int]) -> list[Lost]:
        def read(number: int) -> PreparedBatch | None:
            return self._home.prepared.read(generation, number)

        with ThreadPoolExecutor(_READERS) as pool:
            prepared = dict(zip(numbers, pool.map(read, numbers), strict=True))
        # The objects of old batches are removed; the ledger says whether this table had a share of them.
        steps = self._steps(generation, [number for number, batch in prepared.items() if batch is None])
        lost = []
        for number, batch in prepared.items():
            if batch is not None:
                lost += _lost("batch", generation, number, share_of(batch.tables, self._table))
            elif number in steps:
                rows, files = int(steps[number]["rows"]), int(steps[number]["files"])
                share = LostShare(kind="batch", generation=generation, number=number, rows=rows, files=files)
                lost.append(Lost(share, None))
        return lost

    def _steps(self, generation: int, numbers: list[int]) -> dict[int, dict[str, Any]]:
        key = paths.batch_metadata_store(self._pipeline)
        store = self._lake.open(key) if numbers else None
        if store is None:
            return {}
        values: dict[str, list[Any]] = {
            "table_name": [self._table],
            "batch_id": list(numbers),
            "generation": [generation],
        }
        rows = selected_rows(self._lake, key, store, columns=["batch_id", "rows", "files"], values=values)
        return {row["batch_id"]: row for row in rows if row["rows"]}


def share_of(tables: Iterable[PreparedTable], table: str) -> PreparedTable | None:
    """What a prepared batch or replay has for one table; None where it has nothing."""
    return next((share for share in tables if share.table == table), None)


def added_files(files: Iterable[Mapping[str, Any]]) -> dict[FileId, Action]:
    """Written files, as records have them, as add actions."""
    now = int(time.time() * 1000)
    return {
        (file["path"], ""): {
            "path": file["path"],
            "partitionValues": file["partition"],
            "size": file["size"],
            "modificationTime": now,
            "dataChange": True,
            "stats": file["stats"],
        }
        for file in files
    }


def _lost(kind: Literal["batch", "replay"], generation: int, number: int, prepared: PreparedTable | None) -> list[Lost]:
    if prepared is None or not prepared.files:
        return []
    files = prepared.files
    share = LostShare(kind=kind, generation=generation, number=number, rows=prepared.rows, files=len(files))
    return [Lost(share, added_files(files) if prepared.writer == "fan_out" else None)]
