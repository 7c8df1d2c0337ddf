"""The page of mutations: waiting requests, the last batches, and the history of an entity's ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from deltaworks.console.page_context import PageContext, PageMissingError, parse_instant
from deltaworks.console.pages.base import Page
from deltaworks.console.paging import read_summary, to_dict
from deltaworks.console.table_reads import read_tables
from deltaworks.control.paths import mutations_summary
from deltaworks.control.summaries.jobs import MutationsSummary
from deltaworks.specs.dag_ids import dag_id

MAX_INTERVALS: Final = 200
_MAX_TEXT_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationsView:
    """Content of a pipeline's mutations page.

    The number of waiting requests is None before the first count. Batches are newest first.
    """

    pipeline: str
    waiting: int | None
    oldest_at: datetime | None
    batches: tuple[Mapping[str, Any], ...]
    is_missing: bool
    problem: str
    dag_id: str
    commands: tuple[tuple[str, str], ...]

    @property
    def announcement(self) -> str:
        """Text for screen readers, which announce it when it changes."""
        return f"{self.waiting or 0} requests wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class IdInterval:
    """A time interval in which rows arrived under an id, with the rows' final id, or marked as deleted.

    An open interval has no `until`. Intervals of the requested id are marked by `is_requested_id`.
    """

    id: str
    since: datetime | None
    until: datetime | None
    final_id: str
    deleted: bool
    hops: int
    is_requested_id: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """The intervals with one final id, ordered by time. An id may belong to several entities, one after the other."""

    final_id: str
    deleted: bool
    intervals: tuple[IdInterval, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CascadeView:
    """The history of an id within an organisation; `is_truncated` is set if it has more than MAX_INTERVALS
    intervals."""

    pipeline: str
    organisation: str
    entity: str
    entities: tuple[Entity, ...]
    is_truncated: bool
    unfinished: bool
    problem: str


def view(context: PageContext) -> MutationsView:
    """Returns the page of the pipeline in the address, which declares mutations."""
    pipeline = _mutable_pipeline(context)
    stored = read_summary(context, MutationsSummary, mutations_summary(pipeline))
    summary = stored.summary or MutationsSummary(pipeline=pipeline, at="")
    return MutationsView(
        pipeline=pipeline,
        waiting=summary.waiting_requests,
        oldest_at=parse_instant(summary.oldest_at),
        batches=tuple(_batch(to_dict(batch)) for batch in summary.batches),
        is_missing=stored.is_missing,
        problem=stored.problem,
        dag_id=dag_id(pipeline, "mutations"),
        commands=(
            ("show waiting requests and the last batches", f"deltaworks mutations status {pipeline}"),
            ("show what a batch would change", f"deltaworks mutations run {pipeline}"),
        ),
    )


def _mutable_pipeline(context: PageContext) -> str:
    spec = context.catalog.pipelines.get(context.pipeline)
    if spec is None or spec.mutations is None:
        raise PageMissingError(f"{context.pipeline} declares no mutations.")
    return context.pipeline


def _batch(batch: dict[str, Any]) -> Mapping[str, Any]:
    return {**batch, "at": parse_instant(batch["at"]), "total_seconds": sum(batch["seconds"].values())}


def view_cascade(context: PageContext) -> CascadeView:
    """Returns the history of the entity in `?org=` and `?id=`; reads nothing without both."""
    pipeline = _mutable_pipeline(context)
    organisation, entity = (context.query.get(name, "")[:_MAX_TEXT_CHARACTERS] for name in ("org", "id"))
    if not (organisation and entity):
        return _cascade(pipeline, organisation, entity, ())
    answer = read_tables("cascade", pipeline=pipeline, organisation=organisation, entity=entity)
    return _cascade(pipeline, organisation, entity, answer.rows, unfinished=answer.unfinished, problem=answer.problem)


def _cascade(
    pipeline: str,
    organisation: str,
    entity: str,
    rows: Iterable[Mapping[str, Any]],
    *,
    unfinished: bool = False,
    problem: str = "",
) -> CascadeView:
    all_rows = list(rows)
    return CascadeView(
        pipeline=pipeline,
        organisation=organisation,
        entity=entity,
        entities=group_by_entity(all_rows[:MAX_INTERVALS], entity),
        is_truncated=len(all_rows) > MAX_INTERVALS,
        unfinished=unfinished,
        problem=problem,
    )


def group_by_entity(rows: Iterable[Mapping[str, Any]], entity: str) -> tuple[Entity, ...]:
    """Groups intervals by final id and deletion, so that different entities that used the same id are separate.
    Pure."""
    intervals: dict[tuple[str, bool], list[IdInterval]] = {}
    for row in rows:
        deleted = row.get("deleted") is True
        interval = IdInterval(
            id=str(row.get("id")),
            since=parse_instant(row.get("valid_from")),
            until=parse_instant(row.get("valid_to")),
            final_id=str(row.get("final_id")),
            deleted=deleted,
            hops=int(row.get("hops") or 0),
            is_requested_id=row.get("id") == entity,
        )
        intervals.setdefault((interval.final_id, deleted), []).append(interval)
    return tuple(
        Entity(final_id=final_id, deleted=deleted, intervals=tuple(entity_intervals))
        for (final_id, deleted), entity_intervals in sorted(intervals.items())
    )


PAGES = (
    Page(name="mutations", route="/mutations/{pipeline}", title="Mutations of {pipeline}", view=view),
    # Ids may identify people.
    Page(
        name="cascade",
        route="/mutations/{pipeline}/cascade",
        title="An entity of {pipeline}",
        view=view_cascade,
        may_cache=False,
    ),
)
