"""Deliberately dropped collector events are not reported as lost."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.records.collector import HourCounts, MissingRange
from deltaworks.control.records.prepared import PreparedBatch
from deltaworks.engine.ledger import Ledger, owner_step
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.collector_sequence_numbers import CollectorSequenceNumbers
from deltaworks.events.parse import Parser
from deltaworks.events.redaction import RedactionKeys
from deltaworks.maintenance import lost_events
from deltaworks.maintenance.lost_events import LossReport, find_lost_events
from deltaworks.privacy.erasure import purge_window
from deltaworks.privacy.tokens.suppression import read_suppression
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake
from tests.records import record_of
from tests.unit.kubernetes.conftest import write_collector
from tests.unit.privacy.erasure.landed_people import LandedPeople
from tests.unit.privacy.erasure.people_lake import add_rows
from tests.unit.privacy.erasure.test_operation import ask

PROCESS = "0123456789abcdef" * 2
EVENTS = """\
  regulation: {opt_out: {when: {consent: false}, keep: none}}
tables:
  - name: events
    catch_all: true
    columns:
      - {name: collector, path: _collector.collector, type: string}
      - {name: seq, path: _collector.seq, type: long}
      - {name: player, path: player, type: string}
      - {name: amount, path: amount, type: long}
"""


class Collected(LandedPeople):
    """A lake whose events a collector has numbered, and a stream that lands its objects."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        declared = root / "project" / "include" / "pipelines" / "shop" / "pipeline.yaml"
        declared.write_text(declared.read_text().partition("tables:")[0] + EVENTS)
        write_collector(root / "project")
        self.catalog = load_catalog("local", root=root / "project")
        self.seq = self.batch = 0

    def collect(self, key: str, *players: str, **more: object) -> None:
        """Land an object with an event of each of these players."""
        lines = []
        for player in players:
            self.seq += 1
            stamp = {"_collector": {"v": 1, "seq": self.seq, "id": f"{{{self.seq}", "collector": PROCESS}}
            event = stamp | {"name": "order", "time": "2026-03-01T10:00:00Z", "player": player, "amount": self.seq}
            lines.append(json.dumps(event | more, separators=(",", ":")))
        self.put(key, "\n".join(lines).encode())

    def stream(self, *keys: str) -> None:
        """One batch of these objects, and its record."""
        space, spec, lake = self.namespace, self.catalog.pipeline("shop"), Lake(self.catalog.environment.lake)
        keys_of = RedactionKeys(space.token_key, read_suppression(space.objects, "players"))
        parser = Parser(spec, redaction_keys=keys_of)
        self.batch += 1
        payloads = [Payload(number, key, self.content(key)) for number, key in enumerate(keys)]
        for table, part in parser.parse(payloads, BatchMetadata(self.batch, 1_780_000_000_000_000, "f")):
            add_rows(lake, paths.table("shop", table), part.to_pylist(), part.schema, partition_by=())
        batch = record_of(
            PreparedBatch,
            generation=1,
            pipeline="shop",
            batch_id=self.batch,
            spark_batch_id=self.batch,
            source=parser.findings.ledger_entry(),
        )
        Ledger(lake, "shop", 1).complete(batch, [], owner=owner_step("shop", 1))

    def look(self, hours: float = 2.5) -> LossReport:
        """A look for lost events, so much later."""
        now = dt.datetime.now(dt.UTC)
        hour = f"{now:%Y-%m-%dT%H}"
        record = HourCounts(id=PROCESS, hour=hour, first_seq=1, next_seq=self.seq + 1, is_complete=True)
        self.namespace.objects.put(paths.collector_counts("edge", PROCESS, hour), record.encode())
        return find_lost_events(self.catalog, self.namespace.objects, "edge", now=now + dt.timedelta(hours=hours))


def ranges(*bounds: tuple[int, int]) -> tuple[MissingRange, ...]:
    return tuple(MissingRange(id=PROCESS, first=first, last=last) for first, last in bounds)


def missing(people: Collected) -> Sequence[MissingRange]:
    report = people.look()
    assert report.events > 0
    return report.missing


@pytest.fixture
def people(tmp_path: Path) -> Collected:
    return Collected(tmp_path)


@pytest.fixture(params=[True, False], ids=["noted", "not noted"])
def noted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the look knows of what was dropped by rule."""
    if not request.param:
        monkeypatch.setattr(lost_events, "dropped_sequence_numbers", lambda *_: CollectorSequenceNumbers())
    return bool(request.param)


def test_opted_out_and_erased_events_are_not_reported_as_lost(people: Collected, noted: bool) -> None:
    people.collect("one", "ann", "bob", "bob")
    people.collect("two", "bob", "cat", consent=False)
    people.collect("gone", "bob", "bob")
    people.collect("three", "bob", "ann", "bob")
    ask(people, "player", "ann")
    people.advance(may_purge=False)
    people.stream("one", "two", "three")

    assert missing(people) == (ranges((6, 7)) if noted else ranges((1, 1), (4, 7), (9, 9)))


def test_rows_purged_before_a_check_are_not_reported_as_lost(people: Collected, noted: bool) -> None:
    people.collect("one", "ann", "bob", "ann", "ann")
    people.put(
        "broken",
        b'{"_collector":{"v":1,"seq":5,"id":"x","collector":"%s"},"name":"order","player":"ann"}' % PROCESS.encode(),
    )
    people.seq = 5
    people.stream("one", "broken")
    ask(people, "player", "ann")
    (purged,) = people.advance()
    assert purged.state == "purged"

    assert missing(people) == (() if noted else ranges((1, 1), (3, 5)))


def test_a_purge_that_died_after_its_commit_records_the_sequence_numbers(
    people: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    people.collect("one", "ann", "bob", "ann")
    people.stream("one")
    ask(people, "player", "ann")

    def die(point: str) -> None:
        if point == "purged shop.events":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        people.advance(fault=die)
    people.advance()

    assert missing(people) == ()


def test_events_erased_from_an_unread_object_are_not_reported_as_lost(people: Collected, noted: bool) -> None:
    people.collect("one", "bob", "ann", "bob", "ann")
    people.stream()
    ask(people, "player", "ann")
    people.advance()
    assert b'"ann"' not in people.content("one")
    people.stream("one")

    assert missing(people) == (() if noted else ranges((2, 2), (4, 4)))


def test_numbers_found_by_a_check_are_not_checked_again(people: Collected, monkeypatch: pytest.MonkeyPatch) -> None:
    people.collect("gone", "bob")
    people.collect("one", "ann", "bob")
    people.stream("one")
    assert missing(people) == ranges((1, 1))
    # Even a window that notes no numbers hides nothing and invents nothing then.
    monkeypatch.setattr(purge_window, "sequence_number_recorder", lambda *_: None)
    ask(people, "player", "ann")
    people.advance()

    assert missing(people) == ranges((1, 1))
