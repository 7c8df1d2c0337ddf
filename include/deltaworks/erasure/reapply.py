"""Takes the rows of people who were erased out of a table again, after something brought files of old versions back.

Whoever puts a table back, recovers it or swaps other files in calls this under the same turn and before it notes its
end: until then the work is unfinished, and repeated. Tokens are known by the list of the suppressed alone, so that it
works with no vault and long after requests have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deltaworks.alerts.raising import raise_alert, resolve_alert
from deltaworks.control import paths
from deltaworks.control.locks.turn import write_turn
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.provenance import current_run
from deltaworks.control.records.erasure_window import PurgedTable
from deltaworks.erasure.purge_table import TablePurger
from deltaworks.erasure.token_search import TokenSearch
from deltaworks.privacy.keys.opening import namespace_key, open_key_service
from deltaworks.privacy.suppression import Suppression, read_suppression
from deltaworks.privacy.tokens import suppression_digest
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.commit import Step
from deltaworks.tables.lake import Lake
from deltaworks.vault.home import settings_of

ROWS_BACK = "ERASED_ROWS_BACK"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsBack:
    """Rows of erased people that are in a table."""

    table: str
    rows: int
    dates: tuple[str, ...]


def erased_people(catalog: Catalog, spec: PipelineSpec, objects: ObjectStore) -> TokenSearch | None:
    """The search for everybody whom the list of a pipeline's namespace names; None where it names nobody.

    Raises:
        ContractError: SUPPRESSION_UNREADABLE, and what opening the namespace's key raises.
    """
    if spec.privacy is None:
        return None
    suppression = read_suppression(objects, spec.privacy.namespace)
    if not len(suppression):
        return None
    service = open_key_service(settings_of(catalog.environment).keys)
    key = namespace_key(service, objects, spec.privacy.namespace)
    return TokenSearch((), names=_names(suppression, key))


def _names(suppression: Suppression, key: bytes) -> Callable[[str], bool]:
    # What landed before the end of an entry has no consent that came after it.
    return lambda token: suppression_digest(key, token) in suppression


def reapply(
    catalog: Catalog,
    pipeline: str,
    table: str,
    *,
    step: Step,
    check: Callable[[], None],
) -> PurgedTable | None:
    """Take rows of erased people out of a table that was put back. Idempotent by its step; None where nobody is erased.

    Args:
        step: of the work that put it back, under a name of its own.
        check: called before each attempt to commit, as that of the turn.

    Raises:
        ContractError, ConcurrencyError: what `TablePurger.purge` raises.
    """
    spec, lake, objects = _opened(catalog, pipeline)
    if table in _kept(spec):
        return None
    people = erased_people(catalog, spec, objects)
    if people is None or spec.privacy is None:
        return None
    purger = TablePurger(
        lake, objects, paths.table(pipeline, table), pipeline=pipeline, table=table, requests={}, everybody=people
    )
    return purger.purge(step, mode=spec.privacy.erase.mode, before_commit=check)


def reapplied_step(step: Step) -> Step:
    """The application transaction by which rows go again after the work of this step."""
    return Step(f"{step.app_id}/erased", step.version)


def rows_back(catalog: Catalog, pipeline: str, tables: Sequence[str]) -> list[RowsBack]:
    """The rows of erased people in these tables, which somebody has brought back. Raises and resolves the alert.

    Raises:
        ContractError: what `erased_people` and reading tables raise.
    """
    spec, lake, objects = _opened(catalog, pipeline)
    people = erased_people(catalog, spec, objects)
    back = []
    for table in tables if people is not None else ():
        if table in _kept(spec):
            continue
        purger = TablePurger(
            lake, objects, paths.table(pipeline, table), pipeline=pipeline, table=table, requests={}, everybody=people
        )
        survey = purger.survey()
        if survey.hits:
            back.append(RowsBack(table=table, rows=survey.hits, dates=tuple(sorted(survey.dates))))
    if back:
        listed = ", ".join(f"{one.table} ({one.rows:,} rows)" for one in back)
        raise_alert(objects, cause=ROWS_BACK, subject=pipeline, summary=f"Rows of erased people are in {listed}.")
    else:
        resolve_alert(objects, cause=ROWS_BACK, subject=pipeline)
    return back


def reapply_now(catalog: Catalog, pipeline: str, tables: Sequence[str]) -> list[PurgedTable]:
    """Take rows of erased people out of these tables, whoever brought them back, each under its write turn. Idempotent.

    Raises:
        ContractError, ConcurrencyError: what `TablePurger.purge` raises; TURN_NOT_GRANTED, TURN_LOST.
    """
    _, lake, objects = _opened(catalog, pipeline)
    purges = []
    for back in rows_back(catalog, pipeline, tables):
        opened = lake.open(paths.table(pipeline, back.table))
        version = 0 if opened is None else opened.version()
        with write_turn(objects, pipeline, back.table, by=current_run()) as turn:
            step = Step(f"{pipeline}/erased_again/{back.table}", version)
            purge = reapply(catalog, pipeline, back.table, step=step, check=turn.check)
        purges += [] if purge is None else [purge]
    if purges:
        rows_back(catalog, pipeline, tables)
    return purges


def _opened(catalog: Catalog, pipeline: str) -> tuple[PipelineSpec, Lake, ObjectStore]:
    storage = catalog.environment.lake
    return catalog.pipeline(pipeline), Lake(storage), open_objects(storage)


def _kept(spec: PipelineSpec) -> frozenset[str]:
    return frozenset(table.name for table in spec.tables if table.erase == "keep")
