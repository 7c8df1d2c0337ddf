"""What a table loses by going back: batches and replays, by its own transactions, and the files that had their rows.

Transactions of a version say exactly what it holds, whatever became of the ledger and however its files were merged:
what the table has now and did not have then is lost with the way back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
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
    """One lost share, and the add actions of its files; None where these are on record no more."""

    share: LostShare
    files: dict[FileId, Action] | None


class LostShares:
    """Finds what one table loses. Used by one thread."""

    def __init__(self, lake: Lake, home: PipelineHome, table: str, *, generation: int) -> None:
        self._lake = lake
        self._home = home
        self._pipeline = home.pipeline
        self._table = table
        self._generation = generation

    def between(self, then: TableState, now: TableState) -> list[Lost]:
        """What `now` has and `then` had not, without what was given up on purpose, in the order of batches.

        Raises:
            ContractError: RESTORE_GENERATION_OVER, `then` holds rows that have landed again since; and what reading
                prepared batches raises.
        """
        given_up = self._given_up()
        # Rollbacks of the whole pipeline that `then` has behind it: of the batches before, it has what these left.
        behind = then.transactions.get(f"{self._pipeline}/start_over/{self._table}", 1)
        found: list[Lost] = []
        for generation in range(1, self._generation + 1):
            survives = self._home.start_overs.surviving_batches(generation, current=self._generation)
            app_id = f"{self._pipeline}/g{generation}/{self._table}"
            had, has = then.transactions.get(app_id, -1), now.transactions.get(app_id, -1)
            left = self._home.start_overs.surviving_batches(generation, current=behind)
            had = had if left is None else min(had, left)
            if survives is not None:
                self._refuse_over(then, generation, had, survives)
                has = min(has, survives)
            found += self._batches(generation, [n for n in range(had + 1, has + 1) if n not in given_up])
        replay = replay_step(self._pipeline, self._table, 0).app_id
        for ordinal in range(then.transactions.get(replay, 0) + 1, now.transactions.get(replay, 0) + 1):
            record = self._home.replays.read(ordinal)
            found += [] if record is None else self._of("replay", 0, ordinal, record.tables)
        return found

    def _refuse_over(self, then: TableState, generation: int, had: int, survives: int) -> None:
        if had > survives:
            raise ContractError(
                "RESTORE_GENERATION_OVER",
                f"Version {then.version} of {self._pipeline}.{self._table} holds batches of generation {generation} up "
                f"to {had}, which were given up after {survives}: what they read has landed again since.",
                hint="Go back to a version of the present generation; or roll the whole pipeline back.",
            )

    def _given_up(self) -> set[int]:
        """Batches that an earlier rollback of this table left out."""
        earlier = self._home.rollbacks.of_table(self._table)
        return {number for record, _ in earlier if record.repair == "none" for number in record.batches}

    def _batches(self, generation: int, numbers: list[int]) -> list[Lost]:
        def read(number: int) -> PreparedBatch | None:
            return self._home.prepared.read(generation, number)

        with ThreadPoolExecutor(_READERS) as pool:
            prepared = dict(zip(numbers, pool.map(read, numbers), strict=True))
        # The objects of old batches are removed; the ledger says whether this table had a share of them.
        steps = self._steps(generation, [number for number, batch in prepared.items() if batch is None])
        found = []
        for number, batch in prepared.items():
            if batch is not None:
                found += self._of("batch", generation, number, batch.tables)
            elif number in steps:
                share = self._share(
                    "batch", generation, number, int(steps[number]["rows"]), int(steps[number]["files"])
                )
                found.append(Lost(share, None))
        return found

    def _of(
        self, kind: Literal["batch", "replay"], generation: int, number: int, tables: tuple[PreparedTable, ...]
    ) -> list[Lost]:
        found = next((each for each in tables if each.table == self._table), None)
        if found is None or not found.files:
            return []
        share = self._share(kind, generation, number, found.rows, len(found.files))
        return [Lost(share, added_files(found.files) if found.writer == "fan_out" else None)]

    @staticmethod
    def _share(kind: Literal["batch", "replay"], generation: int, number: int, rows: int, files: int) -> LostShare:
        return LostShare(kind=kind, generation=generation, number=number, rows=rows, files=files)

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
