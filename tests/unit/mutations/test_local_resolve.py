"""Requests resolved without Spark give the rows that a replay of the requests gives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given

from deltaworks.mutations.local_resolve import Interval, RequestRow, connected_ids, resolve_locally
from tests.spark.mutations.cases import Log, logs
from tests.unit.mutations.examples import EXAMPLES, Example
from tests.unit.mutations.replay_oracle import Request, Row, replay


def at(time: float) -> int:
    return int(time * 1_000_000)


def requests_of(several: Sequence[Log]) -> list[RequestRow]:
    """Returns the requests of several logs, one organisation each."""
    return [
        RequestRow(
            org_id=str(org),
            op=each.op,
            id=each.id,
            new_id=each.new_id,
            fields=dict(each.fields) if each.op == "update" else None,
            seq=each.seq,
            time=at(each.time),
        )
        for org, log in enumerate(several)
        for each in log
    ]


def outcomes(several: list[Log], rows: dict[int, list[Row]]) -> dict[tuple[int, str, float], Any]:
    """Returns what intervals say of each row: id, whether it is deleted, fields, hops and the last request."""
    by_id: dict[tuple[str, str], list[Interval]] = defaultdict(list)
    for interval in resolve_locally(requests_of(several)):
        by_id[interval.org_id, interval.id].append(interval)
    found = {}
    for org, probes in rows.items():
        for row in probes:
            met = [
                one
                for one in by_id[str(org), row.origin]
                if (one.valid_from is None or one.valid_from <= at(row.time))
                and (one.valid_to is None or at(row.time) < one.valid_to)
            ]
            assert len(met) <= 1
            last = None if not met or met[0].last_time is None else (met[0].last_time, met[0].last_seq)
            found[org, row.origin, row.time] = (
                (met[0].final_id, met[0].deleted, met[0].fields, met[0].hops, last)
                if met
                else (row.origin, False, {}, 0, None)
            )
    return found


@given(logs(), logs())
def test_generated_logs_resolve_as_they_replay(first: Log, second: Log) -> None:
    several = [first, second]
    probes = {
        org: [Row(origin=name, time=half / 2) for name in "abcde" for half in range(19)] for org in range(len(several))
    }

    found = outcomes(several, probes)

    for org, log in enumerate(several):
        for row in replay(probes[org], log):
            last = None if row.last is None else (at(row.last[0]), row.last[1])
            assert found[org, row.origin, row.time] == (row.id, row.deleted, row.fields, row.hops, last)


def test_every_example_of_the_documents_resolves_as_stated() -> None:
    several = [example.requests for example in EXAMPLES]
    probes = {
        org: [Row(origin=origin, time=time) for origin, time in example.rows] for org, example in enumerate(EXAMPLES)
    }

    found = outcomes(several, probes)

    for org, example in enumerate(EXAMPLES):
        for (origin, time), outcome in example.rows.items():
            final_id, deleted, fields, *_ = found[org, origin, time]
            assert (None if deleted else final_id, fields) == (outcome.id, outcome.fields), example.name


def test_invalid_requests_take_no_effect() -> None:
    valid = RequestRow(org_id="o", op="rename", id="a", new_id="b", time=5)
    missing: Any = None
    invalid = [
        RequestRow(org_id="o", op="paint", id="a", time=1),
        RequestRow(org_id="o", op="rename", id="a", time=2),
        RequestRow(org_id="o", op="update", id="a", fields={}, time=3),
        RequestRow(org_id=missing, op="delete", id="a", time=4),
        RequestRow(org_id="o", op="delete", id=missing, time=4),
        RequestRow(org_id="o", op="delete", id="a", time=missing),
    ]

    assert not any(request.is_valid for request in invalid)
    assert resolve_locally([*invalid, valid]) == resolve_locally([valid])
    assert connected_ids([*invalid, valid]) == {("o", "a"): ("a", 2), ("o", "b"): ("a", 2)}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_replay_gives_the_stated_outcome(example: Example) -> None:
    rows = [Row(origin=origin, time=time) for origin, time in example.rows]

    replayed = replay(rows, example.requests)

    found = {(row.origin, row.time): (None if row.deleted else row.id, row.fields) for row in replayed}
    assert found == {place: (outcome.id, outcome.fields) for place, outcome in example.rows.items()}


def test_the_last_request_that_reached_a_row_and_its_moves_are_known() -> None:
    requests = [
        Request(time=1, op="rename", id="a", new_id="b", seq=4),
        Request(time=2, op="rename", id="b", new_id="c", seq=5),
        Request(time=2, op="update", id="b", fields={"stage": "won"}, seq=6),
        Request(time=3, op="rename", id="b", new_id="d", seq=7),
    ]

    (row,) = replay([Row(origin="a", time=0)], requests)

    assert (row.hops, row.last) == (2, (2, 6))
