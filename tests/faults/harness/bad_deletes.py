"""Deletes rows of an append table by mistake and restores the table while its stream continues."""

from __future__ import annotations

import random
import time

from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError

from deltaworks.control import paths
from deltaworks.errors import ConcurrencyError
from deltaworks.recovery.restore.plan import TableRestoreRequest
from deltaworks.recovery.restore.restore_points import RestorePoint
from deltaworks.recovery.restore.table_restore import TableRestore
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from tests.faults.harness.fault_project import PIPELINE
from tests.faults.harness.operations import Counts, Operations

#: Nothing else deletes from tables with these names.
TABLES = ("k01", "k02", "k03")
ROWS_DELETED = "n % 3 = 0"


class BadDeletes:
    """Deletes rows from one table after another and restores each of them."""

    def __init__(self, catalog: Catalog, operations: Operations, chance: random.Random) -> None:
        self._catalog = catalog
        self._lake = Lake(catalog.environment.lake)
        self._operations = operations
        self._chance = chance
        self._before = 0
        #: Time since which each table is correct: older versions may contain an earlier bad delete.
        self._right_since = dict.fromkeys(TABLES, 1)

    def delete_and_restore(self) -> None:
        """Deletes rows, lets the stream land more for a few seconds, and restores the table."""
        table = self._chance.choice(TABLES)
        if self._operations.perform("delete", lambda: self._delete(table)):
            time.sleep(self._chance.uniform(2.0, 8.0))
            # OPTIMIZE may have moved rows between dry run and restore; the caller then has to repeat both.
            self._operations.perform("restore", lambda: self._restore(table), retried_conditions=("RESTORE_TOO_LARGE",))

    def _delete(self, table: str) -> Counts:
        opened = self._lake.open(paths.table(PIPELINE, table))
        if opened is None:
            raise ConcurrencyError("DELTA_CONFLICT", f"{table} is not there yet.")
        before = opened.version()
        try:
            done = opened.delete(ROWS_DELETED, commit_properties=CommitProperties(max_commit_retries=0))
        except CommitFailedError as error:
            raise ConcurrencyError("DELTA_CONFLICT", f"{table} was changed while rows were deleted: {error}") from error
        # Sometimes restores a slightly older version: later events must return in any case.
        self._before = max(self._right_since[table], before - self._chance.choice((0, 0, 1, 3)))
        return {"rows": done["num_deleted_rows"]}

    def _restore(self, table: str) -> Counts:
        restore = TableRestore(self._catalog, PIPELINE, table)
        point = RestorePoint(version=self._before)
        counted = restore.count(TableRestoreRequest(point=point)).difference
        assert counted is not None
        asked = TableRestoreRequest(point=point, max_rows=counted.rows_removed, reason="somebody deleted rows")
        done = restore.run(asked)
        assert done.difference is not None
        assert done.version is not None
        self._right_since[table] = done.version
        return {
            "rows_out": done.difference.rows_removed,
            "rows_in": done.difference.rows_added,
            "batches_back": sum(share.kind == "batch" for share in done.lost),
            "undone": len(done.undone_changes),
        }
