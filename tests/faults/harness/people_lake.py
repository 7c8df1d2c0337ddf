"""A lake with millions of rows of people, a stream, mutation requests, and landed objects that contain their
identifiers.

Most rows are written directly as files, without product code. Landed objects contain plain identifiers, including those
of people who are being erased.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from deltalake import DeltaTable, write_deltalake

from deltaworks.control import paths
from deltaworks.privacy.erasure.requests import Namespace, open_namespace
from deltaworks.privacy.tokens.envelope_encryption import token
from deltaworks.specs.project import load_catalog
from deltaworks.testing import declare_table
from tests.faults.harness import mutable_rows
from tests.faults.harness.fault_project import FIRST_TIME, PIPELINE, FaultProject
from tests.faults.harness.mutable_rows import MutableRows, events_of

#: `events` and k01 to k03; k01 has the bulk rows.
TABLES = 4
BULK = "k01"
DAYS, FILES_A_DAY = 20, 5
_PRIVACY = {
    "namespace": "players",
    "subject": "player",
    "fields": [{"path": "player", "action": "token", "as": "player"}],
}


def declare(stage: FaultProject) -> None:
    """Declares tables with a player in each row, some with Z-order, a mutable table, a keyring and a vault."""
    player = {"name": "player", "path": "player", "type": "string"}
    columns = [{"name": "n", "path": "n", "type": "long", "required": True}, player]
    activities, *others = mutable_rows.TABLES
    tables: list[dict[str, Any]] = [
        declare_table("events", "n long", player, zorder_by=["event_name"]),
        *({"name": kind, "when": {"name": kind}, "columns": columns, "zorder_by": ["n"]} for kind in stage.kinds),
        {**activities, "columns": [*activities["columns"], player]},
        *others,
    ]
    stage.declare(
        tables=tables,
        privacy=_PRIVACY,
        source={"max_files_per_batch": 200},
        stream={"trigger_seconds": 3, "lease_ttl_seconds": 10},
        mutations={"requests": "requests", "notifications": "notifications", "small_merge_bytes": 0},
        maintenance={"closed_after_hours": 0, "vacuum_dry_run": False},
    )
    environment = stage.root / "include" / "environments" / "local.yaml"
    declared = yaml.safe_load(environment.read_text())
    declared["privacy"] = {
        "keys": {"kind": "keyring", "folder": str(stage.root / "keys")},
        "vault": {"root": f"file://{stage.root}/vault"},
    }
    environment.write_text(yaml.safe_dump(declared, sort_keys=False))


class People:
    """The people in the lake, the erasure requests, and the events landed for each person.

    Args:
        rows: number of rows written as files.
        requests: number of people to erase.
    """

    def __init__(self, stage: FaultProject, *, rows: int, requests: int) -> None:
        self.stage = stage
        self.rows = rows
        self._chance = random.Random(stage.seed)
        self.players = [f"player-{number:07d}" for number in range(max(2_000, rows // 2_000))]
        self.erased = frozenset(self._chance.sample(self.players, requests))
        self.owed: Counter[tuple[str, str]] = Counter()
        self.truth = MutableRows(stage.seed)
        #: The player of each row of the mutable table, by event id.
        self.player_of: dict[str, str] = {}
        self._sent: Counter[tuple[str, str]] = Counter()

    @property
    def namespace(self) -> Namespace:
        return open_namespace(load_catalog("local", root=self.stage.root), "players")

    def tokens(self) -> dict[str, str]:
        """Returns every person's token."""
        key = self.namespace.token_key
        return {player: token(key, kind="player", value=player) for player in self.players}

    def land(self, *, each: int = 10) -> None:
        """Lands one object for the tables of one kind and quarantine, and one with mutable rows and requests."""
        stage, events = self.stage, []
        for kind in stage.kinds * each:
            events.append(stage.event(kind, player=self._random_person()))
            self._owe(events[-1], kind, "events")
            self._sent[kind, events[-1]["player"]] += 1
        events.append(stage.event(stage.kinds[0], n="no number", player=self._random_person()))
        self._owe(events[-1], "quarantine")
        stage.announce(events)
        changing = events_of(stage, self.truth, rows=20, requests=2)
        for event in changing:
            event["player"] = self._random_person()
            # Requests name no person, so a moved row proves the erasure right or wrong.
            if event["name"] == "request":
                del event["player"]
            else:
                self.player_of[event["id"]] = event["player"]
            self._owe(event, "events")
        stage.announce(changing)

    def write_rows(self, lake: Path) -> None:
        """Writes the bulk rows as files of the table that the stream has created."""
        folder = str(lake / paths.table(PIPELINE, BULK))
        schema = pa.schema(DeltaTable(folder).schema().to_arrow())
        tokens = pa.array(list(self.tokens().values()))
        chance = np.random.default_rng(self.stage.seed)
        count, first = max(1, self.rows // (DAYS * FILES_A_DAY)), 0
        for part in range(DAYS * FILES_A_DAY):
            start = FIRST_TIME + (part // FILES_A_DAY) * 86_400
            numbers = np.arange(first, first + count)
            date = dt.datetime.fromtimestamp(start, dt.UTC).date()
            values = {
                "event_id": pa.array([f"b{number}" for number in numbers]),
                "event_name": pa.array([BULK] * count),
                "event_time": pa.array((start * 1_000_000 + numbers % 1_000_000), pa.int64()),
                "event_date": pa.array([date] * count),
                "n": pa.array(numbers),
                "player": tokens.take(pa.array(chance.integers(0, len(tokens), count))),
                "_seq": pa.array(np.zeros(count, dtype=np.int64)),
                "_position": pa.array(numbers),
                "_batch_id": pa.array(np.zeros(count, dtype=np.int64)),
                "_ingested_at": pa.array(np.full(count, start * 1_000_000), pa.int64()),
            }
            columns = [
                values[field.name].cast(field.type) if field.name in values else pa.nulls(count, field.type)
                for field in schema
            ]
            write_deltalake(folder, pa.Table.from_arrays(columns, schema=schema), mode="append")
            first += count
        self.rows = first

    def sent_to(self, table: str) -> Counter[str]:
        """Returns how many events of each player were landed for a table."""
        return Counter({player: count for (name, player), count in self._sent.items() if name == table})

    def expected_mutable(self) -> Counter[tuple[str, str, bool, str]]:
        """Returns event, id, whether it is deleted and the field for every row of a person who is not erased."""
        rows = self.truth.expected_rows()
        return Counter({row: count for row, count in rows.items() if self.player_of[row[0]] not in self.erased})

    def _random_person(self) -> str:
        """Returns a random person; one in ten is being erased, so their events land before and after the erasure."""
        return self._chance.choice(sorted(self.erased) if self._chance.random() < 0.1 else self.players)

    def _owe(self, event: dict[str, Any], *tables: str) -> None:
        if event.get("player") not in self.erased:
            self.owed.update((table, event["id"]) for table in tables)


def named_in(path: Path) -> set[str]:
    """Returns the players that a landed object contains."""
    return {str(json.loads(line).get("player")) for line in path.read_text().splitlines()}
