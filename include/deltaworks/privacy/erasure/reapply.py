"""Purges rows of erased people from a table again, after an operation restored files of old versions.

Operations that restore, recover or swap files call this under the same write turn, before they record their end. Until
then the operation counts as unfinished and is repeated. Tokens are matched by the suppression list only, so this works
without the vault and long after requests have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.write_turn import write_turn
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import current_run
from deltaworks.control.records.erasure import PurgedTable
from deltaworks.privacy.erasure.purge_table import TablePurger
from deltaworks.privacy.erasure.scan import PersonalTable, personal_tables
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.privacy.stored_keys import namespace_token_key, open_key_service
from deltaworks.privacy.tokens.envelope_encryption import suppression_digest
from deltaworks.privacy.tokens.suppression import read_suppression
from deltaworks.privacy.vault.namespace_vault import privacy_settings_of
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake

ROWS_REAPPEARED = "ERASED_ROWS_REAPPEARED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReappearedRows:
    """Number and dates of rows of erased people in a table, including rows marked as deleted."""

    table: str
    rows: int
    dates: tuple[str, ...]


class ErasureReapplier:
    """Purges rows of erased people for one operation on a pipeline. Not thread-safe.

    The suppression list and the token key are read once, on first use. People who are added later are purged after the
    operation, because no purge window starts while an operation is unfinished.
    """

    def __init__(self, catalog: Catalog, pipeline: str) -> None:
        self._catalog = catalog
        self._spec = catalog.pipeline(pipeline)
        self._lake = Lake(catalog.environment.lake)
        self._objects = open_objects(catalog.environment.lake)

    def reapply(self, table: str, *, step: Step, check: Callable[[], None]) -> PurgedTable | None:
        """Purges rows of erased people from a restored table. Idempotent per step. Returns None if there are no erased
        people.

        Args:
            step: a transaction of the restoring operation, under a separate application id.
            check: called before each commit attempt, like the check of the write turn.

        Raises:
            ContractError: SUPPRESSION_UNREADABLE, and errors of opening the namespace's key.
            ContractError, ConcurrencyError: see `TablePurger.purge`.
        """
        purger = self._purger(table)
        if purger is None or self._spec.privacy is None:
            return None
        return purger.purge(step, mode=self._spec.privacy.erase.mode, before_commit=check)

    def find_reappeared_rows(self, tables: Sequence[str]) -> list[ReappearedRows]:
        """Finds rows of erased people in these tables. Raises the alert if there are any, otherwise resolves it.

        Raises:
            ContractError: see `reapply`.
        """
        reappeared = []
        for table in tables:
            purger = self._purger(table)
            survey = None if purger is None else purger.survey()
            if survey is not None and survey.by_file:
                reappeared.append(
                    ReappearedRows(
                        table=table,
                        rows=survey.hits + survey.matches_in_deleted_rows,
                        dates=tuple(sorted(survey.dates)),
                    )
                )
        if reappeared:
            listed = ", ".join(f"{item.table} ({item.rows:,} rows)" for item in reappeared)
            summary = f"Rows of erased people reappeared in {listed}."
            raise_alert(self._objects, cause=ROWS_REAPPEARED, subject=self._spec.pipeline, summary=summary)
        else:
            resolve_alert(self._objects, cause=ROWS_REAPPEARED, subject=self._spec.pipeline)
        return reappeared

    def purge_reappeared_rows(self, tables: Sequence[str]) -> list[PurgedTable]:
        """Purges reappeared rows from these tables, each under its write turn. Idempotent.

        Raises:
            ContractError, ConcurrencyError: see `reapply`; TURN_NOT_GRANTED, TURN_LOST.
        """
        pipeline = self._spec.pipeline
        purges = []
        for rows in self.find_reappeared_rows(tables):
            delta_table = self._lake.open(paths.table(pipeline, rows.table))
            version = 0 if delta_table is None else delta_table.version()
            with write_turn(self._objects, pipeline, rows.table, by=current_run()) as turn:
                step = Step(f"{pipeline}/erased_again/{rows.table}", version)
                purge = self.reapply(rows.table, step=step, check=turn.check)
            purges += [] if purge is None else [purge]
        if purges:
            self.find_reappeared_rows(tables)
        return purges

    def _purger(self, table: str) -> TablePurger | None:
        """Returns a purger; None if there are no erased people, or if the table is exempt."""
        if table in self._exempt_tables or self._erased_tokens is None:
            return None
        return TablePurger(
            self._lake,
            self._objects,
            paths.table(self._spec.pipeline, table),
            pipeline=self._spec.pipeline,
            table=table,
            requests={},
            search=self._erased_tokens,
        )

    @property
    def erasable_tables(self) -> tuple[str, ...]:
        """The pipeline's tables from which erased rows are purged. Gold tables are rebuilt from them."""
        return tuple(table.name for table in self._personal_tables if not table.exemption_reason)

    @cached_property
    def _personal_tables(self) -> list[PersonalTable]:
        return personal_tables(self._spec, PipelineHome(self._objects, self._spec.pipeline))

    @cached_property
    def _exempt_tables(self) -> frozenset[str]:
        return frozenset(table.name for table in self._personal_tables if table.exemption_reason)

    @cached_property
    def _erased_tokens(self) -> TokenSearch | None:
        """Returns the search that finds rows with suppressed tokens of the namespace; None if nothing is suppressed."""
        if self._spec.privacy is None:
            return None
        suppression = read_suppression(self._objects, self._spec.privacy.namespace)
        if not len(suppression):
            return None
        service = open_key_service(privacy_settings_of(self._catalog.environment).keys)
        key = namespace_token_key(service, self._objects, self._spec.privacy.namespace)
        # Entries that have ended count too: a later consent does not cover rows that landed before it.
        return TokenSearch((), predicate=lambda token: suppression_digest(key, token) in suppression)


def reapply_step(step: Step) -> Step:
    """Returns the transaction that purges rows after the operation with this step."""
    return Step(f"{step.app_id}/erased", step.version)
