"""Landed objects are removed once every pipeline that reads them has landed them, and not a moment before."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from deltaworks.cli import app, operations
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import open_objects
from deltaworks.control.records.reprocess import ReplacedObject, Replacements
from deltaworks.engine.object_status import ObjectStatusReader
from deltaworks.errors import ConfigError
from deltaworks.events.reasons import ENTIRE_OBJECT, Reason, ReasonCode, RejectedEvent, quarantine_rows
from deltaworks.recovery import clean as cleaning
from deltaworks.recovery.clean import CleanResult, clean_source
from deltaworks.sources.objects.file_event_log import LogReader
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.relay import RelaySpec
from deltaworks.testing import append_rows, catalog_of, local_lake, write_files
from tests.examples import examples
from tests.unit.engine.ledger_harness import Harness

OLD = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DELETE = {"mode": "delete", "after_days": 7}


class Landing:
    """Objects on local disk, in a log, and pipelines of which is only known what they read and how far they are."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, clean: dict[str, Any] | None = None) -> None:
        self.root = root
        self.folder = root / "landing"
        self.folder.mkdir()
        self.lake = local_lake(root / "lake")
        relay = RelaySpec(relay="landing", queue_url="q", buckets=("landing", "other"), clean=clean or DELETE)
        self.catalog = catalog_of(root, relays=[relay])
        self.readers: list[LogReader] = []
        self._log = FileEventLogWriter(self.lake, "landing", epoch=1)
        monkeypatch.setattr(ObjectStatusReader, "readers", lambda answers: self.readers)

    def land(self, *keys: str, bucket: str = "landing", at: dt.datetime = OLD) -> None:
        self.land_at(dict.fromkeys(keys, at), bucket=bucket)

    def land_at(self, keys: Mapping[str, dt.datetime], *, bucket: str = "landing") -> None:
        """Objects in one append, each logged at its time."""
        events = []
        for key, at in keys.items():
            data = f"{key} {at}".encode()
            write_files(self.folder, {key: data})
            tag = hashlib.md5(data).hexdigest()
            event = FileEvent(bucket, key, len(data), tag, None, at, "ObjectCreated:Put", None)
            events.append(ReceivedEvent(event, "m", at))
        self._log.append(events)

    def read(self, seq: int, *, pipeline: str = "shop", prefix: str = "", glob: str | None = None) -> None:
        self.readers.append(LogReader(pipeline, "landing", prefix, glob, seq))

    def clean(self, **options: Any) -> CleanResult:
        return clean_source(self.catalog, "landing", **{"dry_run": False} | options)

    def there(self) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file())


@pytest.fixture
def landing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Landing:
    return Landing(tmp_path, monkeypatch)


def test_a_dry_run_counts_and_removes_nothing(landing: Landing) -> None:
    landing.land("a", "b", "c")
    landing.read(2)

    found = landing.clean(dry_run=True)

    assert (found.removed, found.pending, found.through_seq) == (2, 1, 2)
    assert landing.there() == ["a", "b", "c"]
    assert landing.clean(dry_run=True) == found


def test_an_object_stays_until_the_last_of_its_pipelines_has_it(landing: Landing) -> None:
    landing.land("a/1", "b/1", "a/2")
    landing.read(3, pipeline="all")
    landing.read(0, pipeline="late", prefix="b/")

    assert landing.clean().removed == 2
    assert landing.there() == ["b/1"]
    landing.readers[1] = LogReader("late", "landing", "b/", None, 2)
    assert landing.clean().removed == 1
    assert landing.there() == []


def test_what_an_erasure_put_in_its_place_goes_as_the_object_would(
    landing: Landing, monkeypatch: pytest.MonkeyPatch
) -> None:
    landing.land("a", "b")
    landing.read(2)
    before, after = f"a {OLD}".encode(), b"without somebody"
    tags = [hashlib.md5(data).hexdigest() for data in (before, after)]
    replaced = ReplacedObject(
        bucket="landing",
        key="a",
        etag=tags[0],
        version_id=None,
        new_etag=tags[1],
        bytes_before=len(before),
        bytes_after=len(after),
        events=1,
        landed_at=OLD.isoformat(),
    )
    objects = open_objects(landing.catalog.environment.lake)
    Replacements(objects).create_plan([replaced], namespace="players", by="tests")
    (landing.folder / "a").write_bytes(after)

    with monkeypatch.context() as patch:  # the protection off
        patch.setattr(Replacements, "successors", lambda *_: [])
        assert landing.clean(dry_run=True).changed == 1
    assert landing.clean().removed == 2
    assert landing.there() == []


def test_what_no_pipeline_reads_stays(landing: Landing) -> None:
    landing.land("a/1", "b/1")
    landing.land("b/2", bucket="other")
    landing.read(3, prefix="a/")

    found = landing.clean()

    assert (found.removed, found.without_reader) == (1, 2)
    assert landing.there() == ["b/1", "b/2"]


def test_nothing_is_removed_without_any_pipeline(landing: Landing) -> None:
    landing.land("a/1")

    assert landing.clean().removed == 0


def test_a_young_object_stays_and_is_looked_at_again(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    landing.land("a")
    landing.land("b", at=utc_now())
    landing.land("c")
    landing.read(3)

    first = landing.clean()
    monkeypatch.setattr(cleaning, "utc_now", lambda: utc_now() + dt.timedelta(days=8))
    second = landing.clean()

    assert (first.removed, first.within_retention, first.through_seq) == (2, 1, 1)
    assert (second.removed, second.already_absent, second.through_seq) == (1, 1, 3)
    assert landing.clean().already_absent == 0


def test_a_key_that_holds_another_content_by_now_keeps_it(landing: Landing) -> None:
    landing.land("a")
    (landing.folder / "a").write_bytes(b"newer")
    landing.read(1)

    assert (landing.clean().changed, landing.there()) == (1, ["a"])


def test_a_run_removes_no_more_than_it_may_and_the_next_goes_on(landing: Landing) -> None:
    landing.land(*(f"f{number}" for number in range(7)))
    landing.read(7)

    assert [landing.clean(limit=3).removed for _ in range(3)] == [3, 3, 1]
    assert landing.there() == []


def test_objects_are_moved_to_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = {"mode": "archive", "archive_to": f"file://{tmp_path}/archive", "after_days": 1}
    landing = Landing(tmp_path, monkeypatch, declared)
    landing.land("a/1")
    landing.read(1)

    assert (landing.clean().removed, landing.there()) == (1, [])
    assert (tmp_path / "archive" / "a" / "1").read_bytes() == f"a/1 {OLD}".encode()


def test_what_quarantine_needs_for_a_replay_stays(landing: Landing) -> None:
    landing.land("whole", "cut", "complete", "landed")
    landing.read(4)
    reason = (Reason(ReasonCode.MALFORMED, "", ""),)
    rejected = [
        RejectedEvent(1, ENTIRE_OBJECT, "whole", b"", None, reason),
        RejectedEvent(2, 0, "cut", b"long", None, reason),
        RejectedEvent(3, 0, "complete", b"l", None, reason),
    ]
    rows = quarantine_rows(rejected, batch_id=0, ingested_at_us=0, fingerprint="fp", retain_raw_bytes=2)
    key = paths.table("shop", "quarantine")
    append_rows(landing.lake, key, rows)

    assert landing.clean().in_quarantine == 2
    assert landing.there() == ["cut", "whole"]


EVENTS = st.lists(st.tuples(st.sampled_from(["a/x", "a/y", "b/x"]), st.booleans()), min_size=1, max_size=8)
READERS = st.lists(st.tuples(st.sampled_from(["", "a/", "b/"]), st.integers(0, 8)), max_size=3)


@settings(max_examples=examples(30), deadline=None)
@given(events=EVENTS, readers=READERS, again=st.integers(0, 8), limit=st.integers(1, 9))
def test_what_goes_is_what_the_plain_rule_says(
    tmp_path_factory: pytest.TempPathFactory,
    events: Sequence[tuple[str, bool]],
    readers: Sequence[tuple[str, int]],
    again: int,
    limit: int,
) -> None:
    """Over two runs, between which all pipelines come as far as `again`."""
    with pytest.MonkeyPatch.context() as patch:
        landing = Landing(tmp_path_factory.mktemp("landing"), patch)
        keys = [f"{folder}{number}" for number, (folder, _) in enumerate(events)]
        landing.land_at({key: OLD if old else utc_now() for key, (_, old) in zip(keys, events, strict=True)})
        for number, (prefix, seq) in enumerate(readers):
            landing.read(seq, pipeline=f"p{number}", prefix=prefix)
        landing.clean(limit=limit)
        landing.readers = [LogReader(r.pipeline, r.bucket, r.prefix, None, max(r.seq, again)) for r in landing.readers]
        while landing.clean(limit=limit).removed:
            pass

        expected = [
            key
            for seq, (key, (_, old)) in enumerate(zip(keys, events, strict=True), 1)
            if not old
            or not any(key.startswith(prefix) for prefix, _ in readers)
            or any(key.startswith(prefix) and max(read, again) < seq for prefix, read in readers)
        ]
        assert landing.there() == sorted(expected)


class TestWithALedger:
    @pytest.fixture
    def project(self, tmp_path: Path, make_spec: Callable[..., PipelineSpec]) -> Catalog:
        """Of ten objects of its bucket the pipeline has completed two batches of two."""
        stage = Harness(tmp_path / "lake", make_spec())
        stage.complete(0)
        stage.complete(1)
        (tmp_path / "landing" / "day").mkdir(parents=True)
        for number in range(1, 11):
            (tmp_path / "landing" / "day" / f"{number}.json").write_bytes(b"{}")
        relay = RelaySpec(relay="landing", queue_url="q", buckets=("landing",), clean=DELETE)
        plain = RelaySpec(relay="plain", queue_url="q", buckets=("landing",))
        return catalog_of(tmp_path, stage.spec, relays=[relay, plain], lake=stage.storage)

    def test_only_what_complete_batches_hold_goes(
        self, project: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(operations, "catalog", lambda: project)
        run = CliRunner().invoke

        asked = run(app, ["files", "clean", "landing"])
        assert "4 objects" in asked.output
        assert "would be deleted" in asked.output
        assert "Use --no-dry-run" in asked.output
        assert run(app, ["files", "clean", "landing", "--no-dry-run"]).exit_code == 0

        left = sorted(int(path.stem) for path in (tmp_path / "landing" / "day").iterdir())
        assert left == list(range(5, 11))

    def test_a_relay_that_declares_nothing_keeps_everything(self, project: Catalog) -> None:
        with pytest.raises(ConfigError, match="RELAY_CLEANUP_UNDECLARED"):
            clean_source(project, "plain", dry_run=False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "archive"},
        {"mode": "delete", "archive_to": "s3://elsewhere"},
        {"mode": "archive", "archive_to": "s3://landing/old"},
        {"mode": "delete", "after_days": 0},
    ],
)
def test_what_could_lose_or_double_objects_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"archive|after_days"):
        RelaySpec.model_validate({"relay": "landing", "queue_url": "q", "buckets": ["landing"], "clean": wrong})
