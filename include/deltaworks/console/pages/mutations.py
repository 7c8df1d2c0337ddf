"""Mutations: requests that wait, the last batches, and what has become of one entity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from deltaworks.console.cold import read_cold
from deltaworks.console.look import Look, PageMissingError
from deltaworks.console.pages.base import Page
from deltaworks.console.readings import instant
from deltaworks.console.stored import plain, read_summary
from deltaworks.control.summaries.mutations import MutationsSummary
from deltaworks.control.summary_paths import mutations_summary

MOST_MOVES: Final = 200
_MOST_TEXT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutations:
    """The page of one pipeline. `waiting` is None where nobody has counted; `batches` are the newest first."""

    pipeline: str
    waiting: int | None
    oldest_at: datetime | None
    batches: tuple[Mapping[str, Any], ...]
    never: bool
    problem: str
    dag_id: str
    commands: tuple[tuple[str, str], ...]

    @property
    def announced(self) -> str:
        """What is said aloud when it changes."""
        return f"{self.waiting or 0} requests wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A stretch of time in which rows arrived under `id`, and where they have ended, `deleted` or as `final_id`.

    `own` is of the id that was looked for. `until` is None where nothing has ended it.
    """

    id: str
    since: datetime | None
    until: datetime | None
    final_id: str
    deleted: bool
    hops: int
    own: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """What ended under one id, in the order of time: an id can be of several entities, one after the other."""

    final_id: str
    deleted: bool
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cascade:
    """What has become of rows of one id of one organisation. `cut` where there were more than MOST_MOVES stretches."""

    pipeline: str
    organisation: str
    entity: str
    entities: tuple[Entity, ...]
    cut: bool
    unfinished: bool
    problem: str


def view(look: Look) -> Mutations:
    """The pipeline that the address names, which declares mutations."""
    pipeline = _mutable(look)
    stored = read_summary(look, MutationsSummary, mutations_summary(pipeline))
    summary = stored.summary or MutationsSummary(pipeline=pipeline, at="")
    return Mutations(
        pipeline=pipeline,
        waiting=summary.waiting_requests,
        oldest_at=instant(summary.oldest_at),
        batches=tuple(_batch(plain(batch)) for batch in summary.batches),
        never=stored.never,
        problem=stored.problem,
        dag_id=f"mutations__{pipeline}",
        commands=(
            ("what waits, and the last batches", f"deltaworks mutations status {pipeline}"),
            ("what a batch would change", f"deltaworks mutations run {pipeline}"),
        ),
    )


def _mutable(look: Look) -> str:
    spec = look.catalog.pipelines.get(look.pipeline)
    if spec is None or spec.mutations is None:
        raise PageMissingError(f"{look.pipeline} declares no mutations: its rows do not change.")
    return look.pipeline


def _batch(batch: dict[str, Any]) -> Mapping[str, Any]:
    return {**batch, "at": instant(batch["at"]), "total_seconds": sum(batch["seconds"].values())}


def view_cascade(look: Look) -> Cascade:
    """The entity that `?org=` and `?id=` name; nothing is read without both."""
    pipeline = _mutable(look)
    organisation, entity = (look.query.get(name, "")[:_MOST_TEXT] for name in ("org", "id"))
    if not (organisation and entity):
        return _cascade(pipeline, organisation, entity, ())
    answer = read_cold("cascade", pipeline=pipeline, organisation=organisation, entity=entity)
    return _cascade(pipeline, organisation, entity, answer.rows, unfinished=answer.unfinished, problem=answer.problem)


def _cascade(
    pipeline: str,
    organisation: str,
    entity: str,
    rows: Iterable[Mapping[str, Any]],
    *,
    unfinished: bool = False,
    problem: str = "",
) -> Cascade:
    every = list(rows)
    return Cascade(
        pipeline=pipeline,
        organisation=organisation,
        entity=entity,
        entities=entities_of(every[:MOST_MOVES], entity),
        cut=len(every) > MOST_MOVES,
        unfinished=unfinished,
        problem=problem,
    )


def entities_of(rows: Iterable[Mapping[str, Any]], entity: str) -> tuple[Entity, ...]:
    """Stretches by where they ended; those are apart whose rows became different entities. Pure."""
    moves: dict[tuple[str, bool], list[Move]] = {}
    for row in rows:
        deleted = row.get("deleted") is True
        move = Move(
            id=str(row.get("id")),
            since=instant(row.get("valid_from")),
            until=instant(row.get("valid_to")),
            final_id=str(row.get("final_id")),
            deleted=deleted,
            hops=int(row.get("hops") or 0),
            own=row.get("id") == entity,
        )
        moves.setdefault((move.final_id, deleted), []).append(move)
    return tuple(
        Entity(final_id=final_id, deleted=deleted, moves=tuple(of_entity))
        for (final_id, deleted), of_entity in sorted(moves.items())
    )


PAGES = (
    Page(name="mutations", route="/mutations/{pipeline}", title="Mutations of {pipeline}", view=view),
    # Ids may be those of people.
    Page(
        name="cascade",
        route="/mutations/{pipeline}/cascade",
        title="An entity of {pipeline}",
        view=view_cascade,
        keep=False,
    ),
)
