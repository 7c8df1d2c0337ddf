"""A slow oracle for mutation requests: replays the log over every row in order of time, in plain Python.

It uses no intervals, pointers or product code: at each time it scans all rows and rewrites those with an id in a
request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of one organisation. `time` is anything that can be ordered; a missing `seq` is before all others."""

    time: Any
    op: str
    id: str
    new_id: str | None = None
    fields: Mapping[str, str | None] = field(default_factory=dict)
    seq: int | None = None

    @property
    def order(self) -> tuple[Any, ...]:
        """Where a request stands among those of its time."""
        return (self.seq is not None, self.seq or 0)


@dataclass(slots=True, kw_only=True)
class Row:
    """One row: the id and time it arrived with, and what has become of it."""

    origin: str
    time: Any
    id: str = ""
    deleted: bool = False
    fields: dict[str, str | None] = field(default_factory=dict)
    hops: int = 0
    last: tuple[Any, int | None] | None = None

    def __post_init__(self) -> None:
        self.id = self.id or self.origin


def replay(rows: Iterable[Row], requests: Iterable[Request]) -> list[Row]:
    """Apply the requests to the rows of their organisation, one time after the other; rows are changed in place."""
    landed = list(rows)
    for time, at_once in groupby(sorted(requests, key=lambda each: each.time), key=lambda each: each.time):
        together = list(at_once)
        there = [row for row in landed if row.time < time]
        before = [(row, row.id, row.deleted) for row in there]
        for request, name, value in _settings_in_order(together):
            for row, called, deleted in before:
                if called == request.id and not deleted:
                    row.fields[name] = value
                    _touched(row, request)
        for move in _moves_that_count(together):
            for row, called, deleted in before:
                if called == move.id and deleted == (move.op == "undelete"):
                    _move(row, move)
    return landed


def _settings_in_order(together: Iterable[Request]) -> list[tuple[Request, str, str | None]]:
    """What updates of one time set, field by field; of one field the one that counts comes last."""
    settings = [
        (request, name, value)
        for request in together
        if request.op == "update"
        for name, value in request.fields.items()
    ]
    return sorted(settings, key=lambda each: (each[0].order, each[2] is not None, each[2] or ""))


def _moves_that_count(together: Iterable[Request]) -> list[Request]:
    """Of the moves of one id at one time, the last."""
    last: dict[str, Request] = {}
    for request in together:
        if request.op in {"rename", "merge", "delete", "undelete"}:
            known = last.get(request.id)
            if known is None or _rank(request) > _rank(known):
                last[request.id] = request
    return [each for each in last.values() if not (each.op in {"rename", "merge"} and each.new_id == each.id)]


def _rank(request: Request) -> tuple[Any, ...]:
    target = request.new_id if request.op in {"rename", "merge"} else request.id
    return (*request.order, request.op, target)


def _move(row: Row, request: Request) -> None:
    if request.op in {"rename", "merge"}:
        assert request.new_id is not None
        row.id = request.new_id
    row.deleted = request.op == "delete"
    row.hops += 1
    _touched(row, request)


def _touched(row: Row, request: Request) -> None:
    """The last request that reached a row: by time, then by sequence."""
    reached = (request.time, request.seq)
    if row.last is None or (request.time, *request.order) >= (
        row.last[0],
        row.last[1] is not None,
        row.last[1] or 0,
    ):
        row.last = reached
