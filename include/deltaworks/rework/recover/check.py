"""Looks for damage of a pipeline's tables, ledger and checkpoint, and names the command that mends each. Reads only.

A table is held against its log (no commit missing in between), the log against the storage (every file there) and
against the ledger (every batch there). One listing of each log; files are listed where there are many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deltaworks.control.home import PipelineHome
from deltaworks.control.records.checkpoint import damaged_files, ledger_is_behind
from deltaworks.engine.ledger import landed_batches, versions_cut_off
from deltaworks.events.reasons import QUARANTINE
from deltaworks.rework.recover.log_gap import filled_without_restore
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import list_log, state_at
from deltaworks.tables.needed_files import absent_files
from deltaworks.tables.steps import read_last_completed

_TOLD = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One thing that is damaged: where, what, and the command that mends it (each is a dry run until told)."""

    pipeline: str
    what: str
    kind: str
    told: str
    mend: str


def check_pipeline(catalog: Catalog, pipeline: str, *, table: str = "") -> list[Damage]:
    """What is damaged of a pipeline, or of one of its tables."""
    spec = catalog.pipeline(pipeline)
    lake, home = Lake(catalog.environment.lake), PipelineHome.open(catalog.environment.lake, pipeline)
    bronze = [*(each.name for each in spec.tables), QUARANTINE]
    rebuilt = [*(each.name for each in spec.live), *(each.name for each in spec.gold.tables)]
    found: list[Damage] = []
    for name in (*bronze, *rebuilt):
        if table in ("", name):
            found += _of_table(lake, home, name, landed=name in bronze)
    if not table:
        found += _of_records(lake, home)
    return found


def _of_table(lake: Lake, home: PipelineHome, name: str, *, landed: bool) -> Iterator[Damage]:
    objects, pipeline, key = home.objects, home.pipeline, home.table(name)
    log = list_log(objects, key)
    known = landed_batches(lake, home, name)

    def damage(kind: str, told: str, command: str) -> Damage:
        mend = f"deltaworks recover {command} {pipeline} {name}" if landed else f"run gold__{pipeline} with `full`"
        return Damage(pipeline=pipeline, what=name, kind=kind, told=told, mend=mend)

    if log.newest is None:
        if known:
            yield damage("dropped", f"the ledger knows {known.rows} rows of it, and it has no log", "table")
        return
    missing = log.missing(log.newest)
    if missing:
        yield damage("log_gap", f"its log lacks the commit of version {_some(missing)}", "log")
        return
    state = state_at(lake, objects, key)
    if behind := versions_cut_off(known, state, pipeline, name):
        yield damage("log_cut", f"its log ends at {log.newest}, and the ledger knows version {_some(behind)}", "log")
    elif (filled := filled_without_restore(lake, objects, key)) is not None:
        yield damage("log_gap", f"version {filled} was filled in, and the table has not gone back behind it yet", "log")
    absent = absent_files(lake, key, state.files)
    if absent:
        yield damage("files_absent", f"{len(absent)} files its log names are gone: {_some(absent)}", "files")


def _of_records(lake: Lake, home: PipelineHome) -> Iterator[Damage]:
    pipeline, generations = home.pipeline, home.generations.read()
    generation = home.generations.current()
    last = read_last_completed(lake, pipeline, generation)
    mend = f"deltaworks checkpoint repair {pipeline}"
    if evidence := ledger_is_behind(home, generations, generation=generation, last_completed=last):
        yield Damage(pipeline=pipeline, what="the ledger", kind="ledger", told=evidence, mend=mend)
    for file in damaged_files(home, generations) if generations and not generations.current.retired else ():
        told = f"{file.key}: {file.problem}"
        yield Damage(pipeline=pipeline, what="Spark's checkpoint", kind="checkpoint", told=told, mend=mend)
    unfinished = home.rollbacks.unfinished()
    if unfinished is not None:
        mend = f"deltaworks restore {pipeline} {unfinished.table} --no-dry-run"
        told = f"it was to go back to version {unfinished.to_version}, and that was broken off"
        yield Damage(pipeline=pipeline, what=unfinished.table, kind="rollback", told=told, mend=mend)


def _some(each: object) -> str:
    names = [str(name) for name in each]  # type: ignore[attr-defined]
    return ", ".join(names[:_TOLD]) + (f" and {len(names) - _TOLD} more" if len(names) > _TOLD else "")
