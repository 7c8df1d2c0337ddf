"""Rows and requests of generated logs that land in random order, and the rows that a replay of the logs expects."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence
from typing import Any

from tests.spark.mutations.cases import Log
from tests.spark.mutations.mutation_harness import FIELDS, START, MutationHarness
from tests.unit.mutations.replay_oracle import Row, replay


def moment(time: float) -> dt.datetime:
    return START + dt.timedelta(seconds=time)


class Interleaving:
    """Organisations with one log each, whose rows and requests land in random order in several parts."""

    def __init__(self, logs: Sequence[Log], *, parts: int, seed: int) -> None:
        self._logs = logs
        chance = random.Random(seed)
        self.rows: list[list[dict[str, Any]]] = [[] for _ in range(parts)]
        self.requests: list[list[dict[str, Any]]] = [[] for _ in range(parts)]
        for org, log in enumerate(logs):
            for number, (name, half) in enumerate(_probes(chance)):
                row = {"org_id": f"o{org}", "event_id": f"o{org}-{number}", "id": name, "time": moment(half / 2)}
                chance.choice(self.rows).append(row)
            for each in log:
                request = {"org_id": f"o{org}", "op": each.op, "id": each.id, "new_id": each.new_id, "seq": each.seq}
                given = list(each.fields.items()) or None
                chance.choice(self.requests).append({**request, "time": moment(each.time), "fields": given})

    def expected(self) -> dict[str, tuple[str, bool, dict[str, str]]]:
        """Returns the oracle's rows after all requests."""
        found = {}
        for org, log in enumerate(self._logs):
            landed = [row for part in self.rows for row in part if row["org_id"] == f"o{org}"]
            by_event = {row["event_id"]: Row(origin=row["id"], time=_seconds(row["time"])) for row in landed}
            replay(list(by_event.values()), log)
            for event, row in by_event.items():
                values = {name: row.fields.get(name) or f"{name}0" for name in FIELDS}
                found[event] = (row.id, row.deleted, values)
        return found


def _probes(chance: random.Random) -> Iterator[tuple[str, int]]:
    for name in "abcde":
        for half in chance.sample(range(19), 5):
            yield name, half


def _seconds(time: dt.datetime) -> float:
    return (time - START).total_seconds()


def ended(stage: MutationHarness) -> dict[str, tuple[str, bool, dict[str, str]]]:
    rows = stage.rows()
    assert len({row["event_id"] for row in rows}) == len(rows)
    return {
        row["event_id"]: (row["contact_id"], bool(row["_deleted"]), {name: row[name] for name in FIELDS})
        for row in rows
    }


def request(org: str, time: float, op: str, each_id: str, to: str | None = None, **values: Any) -> dict[str, Any]:
    base = {"org_id": org, "op": op, "id": each_id, "new_id": to, "seq": 1, "time": moment(time), "fields": None}
    return base | values


def row(org: str, event: str, each_id: str, time: float) -> dict[str, Any]:
    return {"org_id": org, "event_id": event, "id": each_id, "time": moment(time)}
