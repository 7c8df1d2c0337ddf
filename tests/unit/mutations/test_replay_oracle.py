"""The replay oracle gives the documented result for every example."""

from __future__ import annotations

import pytest

from tests.unit.mutations.examples import EXAMPLES, Example
from tests.unit.mutations.replay_oracle import Request, Row, replay


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
