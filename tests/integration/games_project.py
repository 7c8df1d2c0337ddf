"""The games pipeline with four tables under real Airflow processes, and an independent reading of the landed objects.

Two columns are declared with a wrong path at first, as a user might do. Their rows land without values until the
declaration is corrected and the objects are reprocessed.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import yaml

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import airflow_run_of
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.specs.schedules import SCHEDULES_VARIABLE
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from generator.games import deliveries
from generator.reference_scan import scan
from generator.settings import FaultRates, GamesSettings
from sandbox.demo.landing_sink import landing_sink
from sandbox.servers.landing import LANDING_BUCKET
from sandbox.stack.home import StackHome
from tests.integration.airflow_harness import BACK_SECONDS, linked_project, people_of, running_stack, wait
from tests.integration.airflow_people import People

TABLES = ("events", "session_start", "install", "purchase")
#: Column with the wrong path, by table, and its correct path.
MISTAKEN = {
    "events": ("platform", "eventParams.platform"),
    "session_start": ("device_model", "eventParams.device_model"),
}
WRONG_PATH = "eventParams.no_such_field"
SETTINGS = GamesSettings(
    seed=5,
    days=3,
    target_events=4_000,
    events_per_file=250,
    buffer_seconds=21_600,
    rates=FaultRates(**{rate.name: 0.02 if rate.name == "duplicates" else 0.0 for rate in fields(FaultRates)}),
)
#: One object that no pipeline reads, and one with an event that fits no table.
UNCLAIMED, UNFIT = "aside/notes.json", "games/2024/03/09/00/unfit.json"
#: Quarantine stores only the beginning of long payloads, so a replay needs the object.
UNFIT_EVENT = {"eventName": "install", "eventTime": 1_709_300_000, "eventParams": {"note": "x" * 100_000}}
#: Time limit of a task: a JVM start and its work on a busy machine.
JOB_SECONDS = 300.0
#: The event's id, its time in seconds, and the value of the column that is mistaken at first.
Row = tuple[str, int, str | None]


@dataclass(frozen=True, slots=True)
class Landed:
    """One landed event, read independently of the product."""

    key: str
    name: str
    event_id: str
    seconds: int
    params: dict[str, Any]

    @property
    def date(self) -> date:
        return datetime.fromtimestamp(self.seconds, UTC).date()


def _declare(project: Path, *, mended: bool) -> None:
    declared = yaml.safe_load((PROJECT_ROOT / "include" / "pipelines" / "games" / "pipeline.yaml").read_text())
    declared["tables"] = [table for table in declared["tables"] if table["name"] in TABLES]
    for table in declared["tables"]:
        if not mended and table["name"] in MISTAKEN:
            column = next(column for column in table["columns"] if column["name"] == MISTAKEN[table["name"]][0])
            column["path"] = WRONG_PATH
    # All that reads tables which are left out, or gold.
    for key in ("live", "gold", "dashboards", "views", "models", "training", "rules", "feeds"):
        declared.pop(key, None)
    declared["source"] |= {"max_files_per_batch": 4}
    declared["stream"] |= {"trigger_seconds": 1, "lease_ttl_seconds": 6}
    declared["maintenance"] = {"optimize": False}
    (project / "include" / "pipelines" / "games" / "pipeline.yaml").write_text(yaml.safe_dump(declared))


def _project(folder: Path) -> Path:
    project = linked_project(folder)
    (project / "include" / "pipelines" / "games").mkdir(parents=True)
    _declare(project, mended=False)
    relay = project / "include" / "relays" / "landing.yaml"
    relay.write_text(relay.read_text() + "clean: {mode: delete, after_days: 7}\n")
    return project


@dataclass
class GamesProject:
    """The running stack, and the events landed in it."""

    home: StackHome
    catalog: Catalog
    landed: list[Landed] = field(default_factory=list)
    #: Objects whose rows in a table have been read with the correct declaration.
    read_again: dict[str, frozenset[str]] = field(default_factory=lambda: dict.fromkeys(TABLES, frozenset()))

    def mend(self) -> None:
        """Corrects the declaration file."""
        _declare(self.home.project, mended=True)

    def restart(self, people: People) -> None:
        """Accepts the current declaration and restarts the stream with it, by clearing its task."""
        objects = open_objects(self.catalog.environment.lake)
        before = present(read_heartbeat(objects, paths.pipeline_control("games", "heartbeat.json")))
        dag_id, run_id = airflow_run_of(before.run)
        spec = load_catalog("local", root=self.home.project).pipeline("games")
        specs = PipelineHome.open(self.catalog.environment.lake, "games").specs
        # Older and newer rows have different column meanings until the older ones are reprocessed.
        specs.accept(spec, by="tests", reason="the paths were wrong")
        people.clear_task(dag_id, run_id, "ingest")

        def begun() -> bool:
            return not PipelineHome.open(self.catalog.environment.lake, "games").specs.changes(spec)

        wait(begun, "the stream has not begun with the new declaration", BACK_SECONDS)

    @contextmanager
    def people(self) -> Iterator[People]:
        """Returns a client for Airflow's API with actions of people."""
        with people_of(self.home) as people:
            yield people

    @property
    def lake(self) -> Lake:
        return Lake(self.catalog.environment.lake)

    def land(self) -> None:
        """Lands all objects, including the unread one and the unfitting one, and waits for the last row."""
        put = landing_sink(self.catalog.environment.landing)
        for delivery in deliveries(SETTINGS):
            pieces = list(scan(gzip.decompress(delivery.body)))
            body = b"".join(piece.raw for piece in pieces if _event_of(piece.value)["eventName"] in TABLES)
            put(delivery.key, gzip.compress(body))
            self.landed += _read_plainly(delivery.key, body)
        put(UNCLAIMED, b'{"note": 1}')
        put(UNFIT, json.dumps({"body": json.dumps(UNFIT_EVENT)}).encode())
        wait(
            lambda: len(self.rows("events")) >= len(self.landed) and self._rows("quarantine", ["raw"]) != [],
            f"not all of {len(self.landed)} events have landed",
            BACK_SECONDS,
        )

    def _rows(self, table: str, columns: list[str]) -> list[dict[str, Any]]:
        answer = self.lake.rows(paths.table("games", table), columns=columns)
        return [] if answer is None else answer.to_pylist()

    def rows(self, table: str) -> Counter[Row]:
        """Returns the rows of a table, or of its shadow."""
        column = MISTAKEN.get(table.partition("__")[0], ("event_id",))[0]
        rows = self._rows(table, sorted({"event_id", "event_time", column}))
        return Counter((row["event_id"], int(row["event_time"].timestamp()), row[column]) for row in rows)

    def batch_of_rows(self, table: str) -> dict[tuple[str, int], int]:
        """Returns the batch of each row of a table."""
        rows = self._rows(table, ["event_id", "event_time", "_batch_id"])
        return {(row["event_id"], int(row["event_time"].timestamp())): row["_batch_id"] for row in rows}

    def version(self, table: str) -> int:
        return present(self.lake.open(paths.table("games", table))).version()

    def versions(self) -> dict[str, int]:
        return {table: self.version(table) for table in TABLES}

    @property
    def landing(self) -> frozenset[str]:
        """Returns the keys of all objects in the landing bucket."""
        bucket = self.home.lake / LANDING_BUCKET
        return frozenset(str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file())

    def owed(self, table: str, *, read_again: Collection[str] | None = None) -> Counter[Row]:
        """Returns the expected rows of a table for these objects, with the correct declaration."""
        right = self.read_again[table] if read_again is None else read_again
        return Counter(
            (event.event_id, event.seconds, self._value(table, event, right=event.key in right))
            for event in self.landed
            if table in ("events", event.name)
        )

    @staticmethod
    def _value(table: str, event: Landed, *, right: bool) -> str | None:
        if table not in MISTAKEN:
            return event.event_id
        return event.params.get(MISTAKEN[table][1].rpartition(".")[2]) if right else None

    def note_read_again(self, keys: frozenset[str]) -> None:
        """Records that all tables now must hold these objects' rows as the correct declaration reads them."""
        self.read_again = {table: already | keys for table, already in self.read_again.items()}

    def check(self) -> None:
        """Checks that every table holds exactly the expected rows."""
        for table in TABLES:
            assert self.rows(table) == self.owed(table), table

    @property
    def keys(self) -> frozenset[str]:
        """Returns the keys of all objects with events."""
        return frozenset(event.key for event in self.landed)

    def keys_of_batches(self, first: int, last: int) -> frozenset[str]:
        """Returns the objects of some batches, from the batch number in their rows."""
        batches = self.batch_of_rows("events")
        return frozenset(e.key for e in self.landed if first <= batches[e.event_id, e.seconds] <= last)


def _event_of(record: Any) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(record["body"])
    return event


def _read_plainly(key: str, body: bytes) -> Iterator[Landed]:
    for piece in scan(body):
        event = _event_of(piece.value)
        params = event["eventParams"]
        yield Landed(key, event["eventName"], params["event_id"], event["eventTime"], params)


@contextmanager
def running_games(folder: Path) -> Iterator[GamesProject]:
    """Runs a stack in which everything has landed with the first declaration; nothing is scheduled."""
    with running_stack(_project(folder), variables={SCHEDULES_VARIABLE: "off"}) as (home, catalog):
        stage = GamesProject(home, catalog)
        stage.land()
        yield stage
