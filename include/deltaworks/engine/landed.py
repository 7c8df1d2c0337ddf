"""What the ledger says of one table's batches, for what the table itself does not tell any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.tables.lake import Lake, selected_rows
from deltaworks.tables.log import TableState
from deltaworks.tables.steps import batch_step, batches_by_table, waiting_shares

#: Outcomes of a step that was committed then, and not found committed: its version is that of its own commit.
_OWN_COMMIT = ("committed", "caught_up")


@dataclass(frozen=True, slots=True)
class LandedBatches:
    """Of each generation that the table has rows of, the last batch that landed; and which commit was whose.

    `by_version` gives generation and batch of each version on record, `rows` how many there are of all batches.
    """

    last: Mapping[int, int]
    by_version: Mapping[int, tuple[int, int]]
    rows: int

    def __bool__(self) -> bool:
        return bool(self.last)


def landed_batches(lake: Lake, home: PipelineHome, table: str) -> LandedBatches:
    """What the ledger has of the table's steps; nothing where there is no ledger. Batches it waits for do not count."""
    key = paths.batch_metadata_store(home.pipeline)
    store = lake.open(key)
    if store is None:
        return LandedBatches({}, {}, 0)
    columns = ["generation", "batch_id", "table_name", "outcome", "delta_version", "rows"]
    rows = selected_rows(lake, key, store, columns=columns, values={"table_name": [table]})
    current = home.generations.current()
    bounds = {
        generation: home.start_overs.surviving_batches(generation, current=current)
        for generation in {row["generation"] for row in rows}
    }
    waiting = set(batches_by_table(waiting_shares(rows)).get(table, ()))
    last: dict[int, int] = {}
    by_version: dict[int, tuple[int, int]] = {}
    count = 0
    for row in rows:
        generation, batch = row["generation"], row["batch_id"]
        bound = bounds[generation]
        if batch in waiting or not row["rows"] or (bound is not None and batch > bound):
            continue
        last[generation] = max(last.get(generation, -1), batch)
        if row["outcome"] in _OWN_COMMIT and row["delta_version"] is not None:
            by_version[row["delta_version"]] = (generation, batch)
            count += int(row["rows"])
    return LandedBatches(last, by_version, count)


def versions_cut_off(known: LandedBatches, state: TableState, pipeline: str, table: str) -> list[int]:
    """Versions on record whose batches the newest state of the table does not have: its log has lost its end."""
    found = []
    for version, (generation, batch) in known.by_version.items():
        app_id = batch_step(pipeline, generation, table, batch).app_id
        if version > state.version and state.transactions.get(app_id, -1) < batch:
            found.append(version)
    return sorted(found)
