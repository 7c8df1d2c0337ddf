"""Examples of docs/reference/mutations.md: requests, and the rows that result.

Times are integers in any unit. A row is identified by the id and the time it arrived with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.unit.mutations.replay_oracle import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a row is called in the end, None where it was deleted, and the fields that were set on it."""

    id: str | None
    fields: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Requests, and what becomes of rows by the id and time they arrived with."""

    name: str
    requests: tuple[Request, ...]
    rows: Mapping[tuple[str, int], Outcome]


def rename(time: int, old: str, new: str, seq: int = 0) -> Request:
    return Request(time=time, op="rename", id=old, new_id=new, seq=seq)


def merge(time: int, old: str, into: str, seq: int = 0) -> Request:
    return Request(time=time, op="merge", id=old, new_id=into, seq=seq)


def update(time: int, name: str, seq: int = 0, **fields: str | None) -> Request:
    return Request(time=time, op="update", id=name, fields=fields, seq=seq)


def delete(time: int, name: str, seq: int = 0) -> Request:
    return Request(time=time, op="delete", id=name, seq=seq)


def undelete(time: int, name: str, seq: int = 0) -> Request:
    return Request(time=time, op="undelete", id=name, seq=seq)


def named(name: str, **fields: str | None) -> Outcome:
    return Outcome(id=name, fields=fields)


GONE = Outcome(id=None)

EXAMPLES = (
    Example(
        name="a rename onto an id that lives makes one entity of two",
        requests=(rename(10, "a", "b"), update(20, "b", stage="won"), rename(30, "b", "c")),
        rows={
            ("a", 5): named("c", stage="won"),
            ("b", 5): named("c", stage="won"),
            ("a", 15): named("a"),
        },
    ),
    Example(
        name="a cascade ends with its last id, for rows under every id of it",
        requests=(rename(10, "a", "b"), rename(20, "b", "c"), rename(30, "c", "d")),
        rows={("a", 5): named("d"), ("b", 15): named("d"), ("c", 25): named("d"), ("d", 35): named("d")},
    ),
    Example(
        name="a row is affected only by requests after its own time",
        requests=(rename(10, "a", "b"),),
        rows={("a", 9): named("b"), ("a", 10): named("a"), ("a", 11): named("a")},
    ),
    Example(
        name="an id that is used again names another entity",
        requests=(rename(10, "a", "b"), rename(20, "a", "c")),
        rows={("a", 5): named("b"), ("a", 15): named("c"), ("a", 25): named("a"), ("b", 15): named("b")},
    ),
    Example(
        name="requests of one time are simultaneous: a swap",
        requests=(rename(10, "a", "b"), rename(10, "b", "a")),
        rows={("a", 5): named("b"), ("b", 5): named("a")},
    ),
    Example(
        name="simultaneous requests do not chain",
        requests=(rename(10, "a", "b"), rename(10, "b", "c")),
        rows={("a", 5): named("b"), ("b", 5): named("c")},
    ),
    Example(
        name="a cycle goes round as often as it was asked for",
        requests=(rename(10, "a", "b"), rename(20, "b", "a"), rename(30, "a", "b")),
        rows={("a", 5): named("b"), ("a", 15): named("b"), ("a", 25): named("b"), ("b", 25): named("b")},
    ),
    Example(
        name="a rename to itself does nothing",
        requests=(rename(10, "a", "a"), rename(20, "a", "b")),
        rows={("a", 5): named("b"), ("a", 15): named("b")},
    ),
    Example(
        name="of several moves of an id at one time the last by sequence wins",
        requests=(rename(10, "a", "b", seq=1), rename(10, "a", "c", seq=3), delete(10, "a", seq=2)),
        rows={("a", 5): named("c"), ("b", 5): named("b")},
    ),
    Example(
        name="a rename to itself counts among the moves of its time",
        requests=(rename(10, "a", "b", seq=1), rename(10, "a", "a", seq=2)),
        rows={("a", 5): named("a")},
    ),
    Example(
        name="with one sequence, the later operation and target in the alphabet win",
        requests=(rename(10, "a", "b", seq=1), rename(10, "a", "c", seq=1), merge(10, "a", "d", seq=1)),
        rows={("a", 5): named("c")},
    ),
    Example(
        name="a duplicate changes nothing, under another sequence neither",
        requests=(rename(10, "a", "b", seq=1), rename(10, "a", "b", seq=1), rename(10, "a", "b", seq=7)),
        rows={("a", 5): named("b"), ("b", 5): named("b")},
    ),
    Example(
        name="an update finds the entity under the name it then has",
        requests=(rename(10, "a", "b"), update(20, "a", stage="lost"), update(20, "b", stage="won")),
        rows={
            ("a", 5): named("b", stage="won"),
            ("a", 15): named("a", stage="lost"),
            ("b", 15): named("b", stage="won"),
        },
    ),
    Example(
        name="field by field the last update wins",
        requests=(update(10, "a", stage="open", size="5"), update(20, "a", stage="won"), update(20, "a", 1, size="6")),
        rows={
            ("a", 5): named("a", stage="won", size="6"),
            ("a", 15): named("a", stage="won", size="6"),
            ("a", 20): named("a"),
        },
    ),
    Example(
        name="null gives back what arrived",
        requests=(update(10, "a", stage="won"), update(20, "a", stage=None)),
        rows={("a", 5): named("a", stage=None)},
    ),
    Example(
        name="a move and an update of one time act both",
        requests=(rename(10, "a", "b"), update(10, "a", stage="won"), update(10, "b", stage="lost")),
        rows={("a", 5): named("b", stage="won"), ("b", 5): named("b", stage="lost")},
    ),
    Example(
        name="after a delete the id is free",
        requests=(delete(10, "a"), rename(20, "a", "b"), update(30, "a", stage="won")),
        rows={("a", 5): GONE, ("a", 15): named("b"), ("a", 25): named("a", stage="won")},
    ),
    Example(
        name="an undelete brings back what was deleted under the name",
        requests=(rename(5, "x", "a"), delete(10, "a"), undelete(20, "a"), rename(30, "a", "b")),
        rows={("x", 1): named("b"), ("a", 7): named("b"), ("a", 15): named("b"), ("a", 35): named("a")},
    ),
    Example(
        name="the deleted are not called anything: nothing else finds them",
        requests=(delete(10, "a"), update(15, "a", stage="won"), rename(16, "a", "b"), undelete(20, "a")),
        rows={("a", 5): named("a"), ("a", 12): named("b", stage="won")},
    ),
    Example(
        name="an undelete of what was not deleted does nothing",
        requests=(undelete(10, "a"), delete(20, "a")),
        rows={("a", 5): GONE, ("a", 15): GONE},
    ),
    Example(
        name="a merge moves like a rename, and both go on under one id",
        requests=(merge(10, "a", "b"), rename(20, "b", "c")),
        rows={("a", 5): named("c"), ("b", 5): named("c"), ("b", 15): named("c")},
    ),
    Example(
        name="a request before anything has its id changes nothing later",
        requests=(rename(10, "b", "c"), rename(20, "a", "b")),
        rows={("a", 5): named("b"), ("b", 15): named("b"), ("b", 5): named("c")},
    ),
    Example(
        name="the order in which requests arrive does not matter",
        requests=(rename(30, "c", "d"), update(25, "c", stage="won"), rename(10, "a", "b"), rename(20, "b", "c")),
        rows={("a", 5): named("d", stage="won"), ("c", 27): named("d")},
    ),
)
