"""Generates many request logs, one per organisation, and compares resolve with the oracle's replay.

A resolve takes Spark about a second for one log or thousands. The logs are therefore resolved in one batch, which also
tests that organisations with equal ids and times do not mix.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from deltaworks.mutations.requests import REQUEST_SCHEMA
from tests.unit.mutations.replay_oracle import Request, Row, replay

_START = datetime(2026, 1, 1)
_IDS, _TIMES = "abcde", range(1, 9)
_VALUES = st.sampled_from(["x", "y", None])
_FIELDS = st.dictionaries(st.sampled_from("fgh"), _VALUES, max_size=2)
_SEQ = st.sampled_from([None, 1, 2, 3, 4])
_OPS = st.sampled_from(["rename"] * 5 + ["update"] * 3 + ["merge", "delete", "delete", "undelete", "undelete"])

#: The request log of one organisation.
Log = tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A row for which resolve and the replay disagree."""

    log: Log
    row: tuple[str, Any]
    expected: Any
    found: Any


def at(time: Any) -> datetime:
    """Returns a log time as a timestamp."""
    return _START + timedelta(seconds=time)


def frame(spark: SparkSession, logs: Sequence[Log]) -> DataFrame:
    """Returns the logs as requests, one organisation per log."""
    rows = [
        (str(org), each.op, each.id, each.new_id, dict(each.fields), each.seq, at(each.time))
        for org, log in enumerate(logs)
        for each in log
    ]
    return spark.createDataFrame(rows, REQUEST_SCHEMA)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Generates a log with few ids and times, so that requests interact; some are doubled, in random order."""
    ids = st.sampled_from(_IDS[: draw(st.integers(1, len(_IDS)))])
    times = st.sampled_from(_TIMES)
    log = [_request(draw, ids, times) for _ in range(draw(st.integers(1, 14)))]
    for _ in range(draw(st.integers(0, 2))):
        again = draw(st.sampled_from(log))
        log.append(
            Request(
                time=again.time,
                op=again.op,
                id=again.id,
                new_id=again.new_id,
                fields=again.fields,
                seq=draw(st.sampled_from([again.seq, 4])),
            )
        )
    if draw(st.booleans()):
        one, other, time = draw(ids), draw(ids), draw(times)
        log += [
            Request(time=time, op="rename", id=one, new_id=other, seq=4),
            Request(time=time, op="rename", id=other, new_id=one, seq=4),
        ]
    for move in [each for each in log if each.op in {"rename", "merge", "delete"}][: draw(st.integers(0, 3))]:
        # An update at the time of a move of the same id, and another one of the same field at the target.
        name, seq = draw(st.sampled_from("fgh")), draw(_SEQ)
        log.append(Request(time=move.time, op="update", id=move.id, fields={name: draw(_VALUES)}, seq=seq))
        target, later = move.new_id or move.id, draw(st.integers(move.time, max(_TIMES)))
        log.append(Request(time=later, op="update", id=target, fields={name: draw(_VALUES)}, seq=draw(_SEQ)))
    return tuple(draw(st.permutations(log)))


def _request(draw: st.DrawFn, ids: st.SearchStrategy[str], times: st.SearchStrategy[int]) -> Request:
    op = draw(_OPS)
    return Request(
        time=draw(times),
        op=op,
        id=draw(ids),
        new_id=draw(ids) if op in {"rename", "merge"} else None,
        fields=draw(_FIELDS) if op == "update" else {},
        seq=draw(_SEQ),
    )


def generated(count: int, *, start: int) -> list[Log]:
    """Returns this many logs; deterministic for the same start."""
    found: list[Log] = []

    @seed(start)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(logs())
    def collect(log: Log) -> None:
        found.append(log)

    collect()
    return found


def differences(logs: Sequence[Log], intervals: DataFrame) -> list[Difference]:
    """Returns every row for which resolve and the replay disagree, or that several intervals claim."""
    by_id: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for each in intervals.collect():
        by_id[each.org_id, each.id].append(each)
    return [
        Difference(log, (row.origin, row.time), expected, found)
        for org, log in enumerate(logs)
        for row in replay(_probes(log), log)
        if (found := _resolved(by_id.get((str(org), row.origin), []), row)) != (expected := _replayed(row))
    ]


def smallest(differences: Sequence[Difference]) -> Difference | None:
    """Returns the difference of the shortest log, for debugging."""
    return min(differences, key=lambda each: len(each.log), default=None)


def _probes(log: Log) -> list[Row]:
    """Returns rows of every id at every request's time, between any two, before and after."""
    return [Row(origin=name, time=half / 2) for name in _IDS for half in range(2 * max(_TIMES) + 3)]


def _replayed(row: Row) -> Any:
    last = None if row.last is None else (at(row.last[0]), row.last[1])
    return row.id, row.deleted, row.fields, row.hops, last


def _resolved(intervals: Sequence[Any], row: Row) -> Any:
    time = at(row.time)
    met = [
        each
        for each in intervals
        if (each.valid_from is None or each.valid_from <= time) and (each.valid_to is None or time < each.valid_to)
    ]
    if len(met) > 1:
        return f"{len(met)} intervals: {met}"
    if not met:
        return row.origin, False, {}, 0, None
    (only,) = met
    return only.final_id, only.deleted, only.fields, only.hops, (only.last_time, only.last_seq)


def kinds(logs: Sequence[Log]) -> Mapping[str, int]:
    """Counts difficult situations in the logs, as the replay sees them."""
    counted: Counter[str] = Counter()
    for log in logs:
        replayed = replay(_probes(log), log)
        moves = {(each.time, each.id, each.new_id) for each in log if each.op == "rename" and each.id != each.new_id}
        counted["swaps"] += any((time, new, old) in moves for time, old, new in moves)
        counted["ties"] += len({(each.time, each.id) for each in log}) < len(log)
        counted["duplicates"] += len(set(map(repr, log))) < len(log)
        counted["chains"] += any(row.hops >= 3 for row in replayed)
        counted["cycles"] += any(row.hops >= 2 and row.id == row.origin and not row.deleted for row in replayed)
        counted["deleted"] += any(row.deleted for row in replayed)
        counted["updated"] += any(row.fields and row.hops for row in replayed)
        counted["updates at the time of a move"] += _fields(log, delay=0.25) != _fields(log, delay=0)
        counted["fields set again after a move"] += _set_again(log)
        counted["last by an update of a move's time"] += any(_last_by_update(log, row) for row in replayed)
        by_id: dict[str, set[str]] = defaultdict(set)
        for row in replayed:
            by_id[row.origin].add(row.id)
        counted["ids used again"] += any(len(ends) >= 3 for ends in by_id.values())
        undeletes = [each for each in log if each.op == "undelete"]
        without = replay(_probes(log), [each for each in log if each.op != "undelete"])
        counted["undeleted"] += bool(undeletes) and [row.deleted for row in without] != [
            row.deleted for row in replayed
        ]
    return counted


def _fields(log: Log, *, delay: float) -> list[Mapping[str, str | None]]:
    """Returns the fields that updates set on initial rows, if all updates came this much later."""
    delayed = [replace(each, time=each.time + delay) if each.op == "update" else each for each in log]
    return [row.fields for row in replay(_first_rows(), delayed)]


def _set_again(log: Log) -> bool:
    """Whether a row's field is set, the row moves, and the field is set to another value."""
    known: dict[tuple[int, str], tuple[int, str | None]] = {}
    for time in _TIMES:
        for index, row in enumerate(replay(_first_rows(), [each for each in log if each.time <= time])):
            for name, value in row.fields.items():
                hops, before = known.setdefault((index, name), (row.hops, value))
                if row.hops > hops and value != before:
                    return True
    return False


def _last_by_update(log: Log, row: Row) -> bool:
    """Whether the last request of a row is an update at the time of its last move, with a higher sequence."""
    if row.last is None or not row.hops:
        return False
    time, seq = row.last
    moving = [each.seq for each in log if each.time == time and each.op != "update"]
    return bool(moving) and seq is not None and all(each is None or each < seq for each in moving)


def _first_rows() -> list[Row]:
    return [Row(origin=name, time=0) for name in _IDS]
