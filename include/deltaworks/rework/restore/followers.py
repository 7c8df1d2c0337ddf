"""The streams of this project that follow a table through Delta, and what a table that goes back means to each."""

from __future__ import annotations

from dataclasses import dataclass

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import LeaseWatch
from deltaworks.control.records.rollback import Repair
from deltaworks.errors import ConcurrencyError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.sources.delta import DeltaSourceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """A pipeline that reads the table, how, and what it does when it comes to the restore."""

    pipeline: str
    table: str
    reads: str
    effect: str


def followers_of(catalog: Catalog, pipeline: str, table: str, repair: Repair | None) -> tuple[Follower, ...]:
    """The pipelines whose source is this table.

    Args:
        repair: what becomes of rows landed since; None where the whole pipeline goes back and lands them again.
    """
    found = []
    for name, spec in catalog.pipelines.items():
        source = spec.source
        if isinstance(source, DeltaSourceSpec) and (source.pipeline, source.table) == (pipeline, table):
            reads = _reads(source)
            found.append(Follower(pipeline=name, table=table, reads=reads, effect=_effect(reads, repair, name)))
    return tuple(found)


def refuse_running_followers(catalog: Catalog, home: PipelineHome, tables: tuple[str, ...]) -> None:
    """Refuse to have rows land again before the eyes of a stream that would take them for new ones.

    Raises:
        ConcurrencyError: RESTORE_FOLLOWED.
    """
    for table in tables:
        for follower in followers_of(catalog, home.pipeline, table, None):
            watch = LeaseWatch(home.objects, paths.stream_lease(follower.pipeline), silent_seconds=60)
            if follower.reads != "change feed" and watch.runs():
                raise ConcurrencyError(
                    "RESTORE_FOLLOWED",
                    f"The stream of {follower.pipeline!r} follows {home.pipeline}.{table} and runs: it would land rows "
                    "twice that land here again.",
                    hint=f"`deltaworks stop {follower.pipeline}` first; it has to start over after this.",
                )


def _reads(source: DeltaSourceSpec) -> str:
    if source.change_feed:
        return "change feed"
    return "appends, leaving changes out" if source.skip_change_commits else "appends"


def _effect(reads: str, repair: Repair | None, name: str) -> str:
    if reads == "change feed":
        return "reads what goes as deletes and what comes as inserts"
    if repair is None:
        return f"is refused with DELTA_SOURCE_ROLLED_BACK: `deltaworks pipelines start-over {name}`"
    if reads == "appends":
        return "ends with DELTA_SOURCE_REWRITTEN when it comes to it"
    stays = "" if repair == "prepared" else "; rows it has read stay with it"
    return f"leaves it out{stays}"
