"""Takes the rows of people who were erased out of a table again, after something brought files of old versions back.

Whoever puts a table back, recovers it or swaps other files in calls this under the same turn and before it notes its
end: until then the work is unfinished, and repeated. Tokens are known by the list of the suppressed alone, so that it
works with no vault and long after requests have ended.
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
from deltaworks.control.records.erasure_window import PurgedTable
from deltaworks.erasure.personal_tables import PersonalTable, personal_tables
from deltaworks.erasure.purge_table import TablePurger
from deltaworks.erasure.token_search import TokenSearch
from deltaworks.privacy.keys.stored_keys import namespace_token_key, open_key_service
from deltaworks.privacy.suppression import read_suppression
from deltaworks.privacy.tokens import suppression_digest
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.vault.namespace_vault import privacy_settings_of

ROWS_REAPPEARED = "ERASED_ROWS_REAPPEARED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReappearedRows:
    """Rows of erased people that are in a table, those that are marked as deleted among them."""

    table: str
    rows: int
    dates: tuple[str, ...]


class ErasureReapplier:
    """What one operation takes rows of erased people out of tables of a pipeline with. Used by one thread.

    The list of the suppressed and the key of tokens are read once, when they are needed first: a person who comes on it
    later is purged behind the operation, since no window is begun beside one that is unfinished.
    """

    def __init__(self, catalog: Catalog, pipeline: str) -> None:
        self._catalog = catalog
        self._spec = catalog.pipeline(pipeline)
        self._lake = Lake(catalog.environment.lake)
        self._objects = open_objects(catalog.environment.lake)

    def reapply(self, table: str, *, step: Step, check: Callable[[], None]) -> PurgedTable | None:
        """Take rows of erased people out of a table that was put back. Idempotent by its step; None for nobody.

        Args:
            step: of the work that put it back, under a name of its own.
            check: called before each attempt to commit, as that of the turn.

        Raises:
            ContractError: SUPPRESSION_UNREADABLE, and what opening the namespace's key raises.
            ContractError, ConcurrencyError: what `TablePurger.purge` raises.
        """
        purger = self._purger(table)
        if purger is None or self._spec.privacy is None:
            return None
        return purger.purge(step, mode=self._spec.privacy.erase.mode, before_commit=check)

    def find_reappeared_rows(self, tables: Sequence[str]) -> list[ReappearedRows]:
        """The rows of erased people in these tables, which somebody has brought back. Raises and resolves the alert.

        Raises:
            ContractError: as `reapply`.
        """
        reappeared = []
        for table in tables:
            purger = self._purger(table)
            survey = None if purger is None else purger.survey()
            if survey is not None and survey.by_file:
                reappeared.append(
                    ReappearedRows(
                        table=table, rows=survey.hits + survey.deleted_hits, dates=tuple(sorted(survey.dates))
                    )
                )
        if reappeared:
            listed = ", ".join(f"{one.table} ({one.rows:,} rows)" for one in reappeared)
            summary = f"Rows of erased people are in {listed}."
            raise_alert(self._objects, cause=ROWS_REAPPEARED, subject=self._spec.pipeline, summary=summary)
        else:
            resolve_alert(self._objects, cause=ROWS_REAPPEARED, subject=self._spec.pipeline)
        return reappeared

    def purge_reappeared_rows(self, tables: Sequence[str]) -> list[PurgedTable]:
        """Take rows of erased people out of these tables, whoever brought them back, each under its write turn.

        Idempotent.

        Raises:
            ContractError, ConcurrencyError: as `reapply`; TURN_NOT_GRANTED, TURN_LOST.
        """
        pipeline = self._spec.pipeline
        purges = []
        for back in self.find_reappeared_rows(tables):
            opened = self._lake.open(paths.table(pipeline, back.table))
            version = 0 if opened is None else opened.version()
            with write_turn(self._objects, pipeline, back.table, by=current_run()) as turn:
                step = Step(f"{pipeline}/erased_again/{back.table}", version)
                purge = self.reapply(back.table, step=step, check=turn.check)
            purges += [] if purge is None else [purge]
        if purges:
            self.find_reappeared_rows(tables)
        return purges

    def _purger(self, table: str) -> TablePurger | None:
        """None where nobody is erased, or the table keeps its rows."""
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
        """All tables of the pipeline in which nobody may come back; gold follows them."""
        return tuple(table.name for table in self._personal_tables if not table.kept_because)

    @cached_property
    def _personal_tables(self) -> list[PersonalTable]:
        return personal_tables(self._spec, PipelineHome(self._objects, self._spec.pipeline))

    @cached_property
    def _exempt_tables(self) -> frozenset[str]:
        return frozenset(table.name for table in self._personal_tables if table.kept_because)

    @cached_property
    def _erased_tokens(self) -> TokenSearch | None:
        """The search for everybody whom the list of the pipeline's namespace names; None where it names nobody."""
        if self._spec.privacy is None:
            return None
        suppression = read_suppression(self._objects, self._spec.privacy.namespace)
        if not len(suppression):
            return None
        service = open_key_service(privacy_settings_of(self._catalog.environment).keys)
        key = namespace_token_key(service, self._objects, self._spec.privacy.namespace)
        # What landed before the end of an entry has no consent that came after it.
        return TokenSearch((), predicate=lambda token: suppression_digest(key, token) in suppression)


def reapply_step(step: Step) -> Step:
    """The application transaction by which rows go again after the work of this step."""
    return Step(f"{step.app_id}/erased", step.version)
