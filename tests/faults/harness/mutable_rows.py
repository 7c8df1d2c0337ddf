"""Random rows and mutation requests, and the expected table after a replay of all requests."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

from deltaworks.control import paths
from deltaworks.mutations.state_tables import IdMapping, NameRequest
from deltaworks.specs.mutation import RENAME_OPERATIONS
from deltaworks.tables.lake import Lake
from deltaworks.testing import declare_table, present
from tests.faults.harness.fault_project import FaultProject
from tests.spark.mutations.mutation_harness import START
from tests.unit.mutations.replay_oracle import Request, Row, replay

ORGANISATIONS = ("acme", "bolt", "core")
IDS = "abcdef"
#: The only field that updates set, and its initial value.
FIELD, UNSET = "f", "f0"
OPS = ("rename", "rename", "merge", "delete", "undelete", "update", "rename_name")
TABLES: list[dict[str, Any]] = [
    declare_table(
        "activities",
        *(
            f"{name} string from {path}"
            for name, path in (
                ("org_id", "org"),
                ("contact_id", "contact"),
                ("origin_contact_id", "contact"),
                (FIELD, "field"),
                (f"origin_{FIELD}", "field"),
            )
        ),
        when="activity",
        partition_by=["org_id"],
        zorder_by=["event_time"],
        mutable={"id": "contact_id", "origin": "origin_contact_id", "fields": {FIELD: f"origin_{FIELD}"}},
    ),
    declare_table(
        "requests",
        *(
            f"{name} {kind} from request.{name}"
            for name, kind in (
                *((name, "string") for name in ("org_id", "op", "id", "new_id", "name")),
                ("fields", "map<string,string>"),
                ("seq", "long"),
            )
        ),
        when="request",
    ),
    declare_table(
        "notifications",
        "org_id string from org",
        announces={"table": "activities"},
        partition_by=["org_id", "ingested_date"],
    ),
]


class MutableRows:
    """Random rows and requests, some with past times, and the rows that result from replaying them."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._time = 0
        self.rows: list[tuple[str, str, int, str]] = []
        self.requests: list[tuple[str, NameRequest]] = []

    def add(self, *, rows: int = 60, requests: int = 12) -> tuple[list[Any], list[Any]]:
        """Adds this many rows and requests."""
        chance, first = self._chance, (len(self.rows), len(self.requests))
        self._time += 20
        for _ in range(rows):
            event = f"r{len(self.rows)}"
            self.rows.append((event, chance.choice(ORGANISATIONS), self._past(), chance.choice(IDS)))
        for seq in range(first[1], first[1] + requests):
            op = chance.choice(OPS)
            new = chance.choice(IDS) if op in RENAME_OPERATIONS else None
            name = f"n{seq}" if op == "rename_name" else None
            at = START + dt.timedelta(seconds=self._past())
            asked = NameRequest(op, chance.choice(IDS), new, name, at, seq)
            self.requests.append((chance.choice(ORGANISATIONS), asked))
        return self.rows[first[0] :], self.requests[first[1] :]

    def _past(self) -> int:
        return max(1, self._time - self._chance.randrange(40))

    def expected_rows(self) -> Counter[tuple[str, str, bool, str]]:
        """Returns event, id, whether it is deleted, and the field for every row."""
        found: Counter[tuple[str, str, bool, str]] = Counter()
        for org in ORGANISATIONS:
            landed = {event: Row(origin=each_id, time=time_of(at)) for event, of, at, each_id in self.rows if of == org}
            log = [_as_request(each) for of, each in self.requests if of == org and each.op != "rename_name"]
            replay(landed.values(), log)
            for event, row in landed.items():
                found[event, row.id, row.deleted, row.fields.get(FIELD) or UNSET] += 1
        return found

    def expected_names(self) -> set[tuple[str, str, str]]:
        """Returns organisation, id and name."""
        return {
            (org, each_id, given.name)
            for org in ORGANISATIONS
            for each_id, given in IdMapping("keep_target")
            .replay(each for of, each in self.requests if of == org)
            .items()
        }


@dataclass(frozen=True)
class Damage:
    """Differences between a lake's tables and the expected rows."""

    rows: int
    names: int
    announced_twice: int

    def __bool__(self) -> bool:
        return bool(self.rows or self.names or self.announced_twice)

    def __str__(self) -> str:
        return f"wrong rows {self.rows}, wrong names {self.names}, told twice {self.announced_twice}"


def find_damage(lake: Lake, pipeline: str, truth: MutableRows) -> Damage:
    """Returns rows that differ from the replay (wrong, lost or doubled), wrong names, and keys one batch announced
    twice.
    """

    def of(table: str) -> list[dict[str, Any]]:
        found = present(lake.rows(paths.table(pipeline, table)))
        return found.to_pylist()  # type: ignore[no-any-return]

    seen = Counter((row["event_id"], row["contact_id"], bool(row["_deleted"]), row[FIELD]) for row in of("activities"))
    expected = truth.expected_rows()
    names = {(row["org_id"], row["id"], row["name"]) for row in of("names") if not row["_deleted"]}
    told = Counter(
        (row["batch"], key) for row in of("notifications") if row["batch_kind"] == "mutation" for key in row["keys"]
    )
    return Damage(
        rows=(expected - seen).total() + (seen - expected).total(),
        names=len(names ^ truth.expected_names()),
        announced_twice=sum(count - 1 for count in told.values()),
    )


def time_of(at: int) -> dt.datetime:
    return START + dt.timedelta(seconds=at)


def _as_request(asked: NameRequest) -> Request:
    fields = {FIELD: f"t{asked.seq}"} if asked.op == "update" else {}
    return Request(time=asked.time, op=asked.op, id=asked.id, new_id=asked.new_id, fields=fields, seq=asked.seq)


def events_of(stage: FaultProject, truth: MutableRows, **counts: int) -> list[dict[str, Any]]:
    """Adds rows and requests and returns them as events of one object."""
    rows, requests = truth.add(**counts)
    events = []
    for event, org, at, each_id in rows:
        values = {"org": org, "contact": each_id, "field": UNSET}
        events.append({**stage.event("activity", at=_epoch(time_of(at)), **values), "id": event})
    for org, each in requests:
        asked = {name: getattr(each, name) for name in ("op", "id", "new_id", "name", "seq")}
        asked |= {"org_id": org, "fields": {FIELD: f"t{each.seq}"} if each.op == "update" else None}
        events.append(stage.event("request", at=_epoch(each.time), request=asked))
    return events


def _epoch(at: dt.datetime) -> int:
    return int(at.timestamp())
