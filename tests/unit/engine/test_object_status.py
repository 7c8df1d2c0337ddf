"""Status of an object from the log, the ledger and the tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from deltaworks.cli import app, files, operations
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.engine.object_status import ObjectStatusReader
from deltaworks.errors import ConfigError
from deltaworks.events.reasons import ENTIRE_OBJECT, Reason, ReasonCode, RejectedEvent, quarantine_rows
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, QuarantinedMessage
from deltaworks.sources.objects.relay.lister import is_listing_requested
from deltaworks.sources.objects.relay.redrive import reconcile
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec
from deltaworks.tables.lake import Lake
from deltaworks.testing import append_rows, catalog_of, write_files
from tests.unit.engine.ledger_harness import Harness

RELAY = RelaySpec(relay="landing", buckets=("landing",), listing={"grace_minutes": 0})


@pytest.fixture
def harness(tmp_path: Path, make_spec: Callable[..., PipelineSpec]) -> Harness:
    harness = Harness(tmp_path / "lake", make_spec())
    for batch_id in range(2):
        harness.complete(batch_id)
    (tmp_path / "landing").mkdir()
    return harness


@pytest.fixture
def project(harness: Harness, tmp_path: Path) -> Catalog:
    return catalog_of(tmp_path, harness.spec, relays=[RELAY], lake=harness.storage)


def land(harness: Harness, table: str, rows: pa.Table) -> None:
    append_rows(harness.lake, paths.table("shop", table), rows)


def test_a_read_object_shows_its_batch_and_row_counts(harness: Harness, project: Catalog) -> None:
    land(harness, "orders", pa.table({"_seq": pa.array([3, 3, 3, 4], pa.int64())}))
    (answer,) = ObjectStatusReader(project, "landing").by_key("day/3.json")
    (reading,) = answer.outcomes
    assert (answer.event["seq"], answer.event["batch"], answer.event["origin"]) == (3, 1, "sqs")
    assert (reading.pipeline, reading.batch_id, dict(reading.rows), reading.object_error) == (
        "shop",
        1,
        {"orders": 3},
        None,
    )


def test_an_object_without_rows_shows_the_reason(harness: Harness, project: Catalog) -> None:
    whole = RejectedEvent(
        1, ENTIRE_OBJECT, "day/1.json", b"", None, (Reason(ReasonCode.OBJECT_MISSING, "", "not there"),)
    )
    event = RejectedEvent(2, 0, "day/2.json", b"{}", None, (Reason(ReasonCode.UNKNOWN_EVENT, "", "no name"),))
    rows = quarantine_rows([whole, event], batch_id=0, ingested_at_us=0, fingerprint="fp", retain_raw_bytes=10)
    land(harness, "quarantine", rows)
    answers = ObjectStatusReader(project, "landing")
    assert answers.by_key("day/1.json")[0].outcomes[0].object_error == "object_missing: not there"
    partly = answers.by_key("day/2.json")[0].outcomes[0]
    assert (partly.object_error, dict(partly.rejected), dict(partly.rows)) == (None, {"unknown_event": 1}, {})


def test_the_newest_objects_show_which_pipelines_have_read_them(project: Catalog) -> None:
    found = ObjectStatusReader(project, "landing").newest_events(8)
    told = [(a.event["seq"], [(r.pipeline, r.batch_id) for r in a.outcomes]) for a in found]
    assert told[-1] == (4, [("shop", 1)])
    assert told[-2] == (5, [])
    assert told[0] == (11, [("shop", None)])
    assert [a.event["key"] for a in ObjectStatusReader(project, "landing").newest_events(9, glob="*/1*.json")] == [
        "day/10.json",
        "day/1.json",
    ]


def test_a_comparison_finds_unannounced_and_unread_objects(project: Catalog, tmp_path: Path) -> None:
    for name in ("day/5.json", "day/new.json"):
        write_files(tmp_path, {f"landing/{name}": b"{}"})
    lake, landing = Lake(project.environment.lake), project.environment.landing
    by_key = RelaySpec(relay="landing", buckets=("landing",), overwrites="ignore", listing={"grace_minutes": 0})
    found = reconcile(by_key, lake, landing, ObjectStatusReader(project, "landing").readers())
    assert (found.listed, found.logged, found.unannounced) == (2, 11, ["landing/day/new.json"])
    # The first four are gone too, and were read before; the one of another bucket is nobody's.
    assert found.missing == [f"landing/day/{number}.json" for number in (6, 7, 8, 9, 10)]
    patient = RelaySpec(relay="landing", buckets=("landing",), overwrites="ignore", listing={"grace_minutes": 5})
    young = reconcile(patient, lake, landing, [])
    assert (young.unannounced, young.recent, young.missing) == ([], 1, [])


class TestCommand:
    @pytest.fixture
    def run(self, project: Catalog, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
        for module in (files, operations):
            monkeypatch.setattr(module, "catalog", lambda: project)
        monkeypatch.setenv("COLUMNS", "250")
        return lambda *words: CliRunner().invoke(app, ["files", *words], catch_exceptions=False).output

    def test_list_and_show(self, run: Callable[..., str], harness: Harness) -> None:
        land(harness, "orders", pa.table({"_seq": pa.array([3, 3], pa.int64())}))
        assert "shop batch 1" in run("list", "landing")
        shown = run("show", "landing", "day/3.json")
        assert "seq 3, append 1" in shown
        assert re.search(r"read by shop +in batch 1: 2 in orders", shown)

    def test_an_object_without_a_file_event(self, run: Callable[..., str], harness: Harness) -> None:
        writer = FileEventLogWriter(harness.lake, "landing", epoch=2)
        writer.append([], [QuarantinedMessage("m", '{"key": "day/99.json"}', "record_malformed", utc_now())])
        shown = run("show", "landing", "day/99.json")
        assert "record_malformed" in shown
        assert "is in no file event of landing" in shown

    def test_reconcile_asks_the_relay_only_when_told_to(self, run: Callable[..., str], harness: Harness) -> None:
        assert "0 objects listed, 11 file events in the log" in run("reconcile", "landing")
        assert not is_listing_requested(harness.objects, "landing")
        assert "Requested that landing lists its buckets" in run("reconcile", "landing", "--no-dry-run")
        assert is_listing_requested(harness.objects, "landing")

    def test_a_relay_without_a_queue_has_nothing_to_redrive(self, run: Callable[..., str]) -> None:
        with pytest.raises(ConfigError, match="RELAY_WITHOUT_QUEUE"):
            run("redrive", "landing")
