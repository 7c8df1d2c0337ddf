"""Unusual, overwritten, deleted, damaged and unannounced objects, failing storage and listings, a reset event log."""

from __future__ import annotations

import gzip
import json
import shutil
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from deltaworks.control.clock import utc_now
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.health.verdicts import evaluate_health
from deltaworks.control.objects import open_objects
from deltaworks.control.paths import relay_control
from deltaworks.errors import DeltaworksError
from deltaworks.sources.objects.file_event_log import FileEventLog, file_events_key
from deltaworks.sources.objects.file_event_log_writer import FileEventLogWriter, ReceivedEvent
from deltaworks.sources.objects.payloads import FileOpener, FileReference
from deltaworks.sources.objects.relay import bucket
from deltaworks.sources.objects.relay.lister import read_listing_record, request_listing
from deltaworks.sources.objects.relay.messages import FileEvent
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.sources.objects.slices import FileEventPlanner, SliceLimits
from deltaworks.tables.lake import Lake
from deltaworks.testing import local_lake
from sandbox.servers.fault_proxy import Action, Fault, FaultProxy
from tests.faults.files.conftest import Tell
from tests.faults.harness.bucket_project import BucketProject, RowsVerdict
from tests.faults.harness.fault_project import FaultProject
from tests.faults.harness.file_log_verdict import proxied_landing
from tests.faults.harness.file_protections import switch_off
from tests.unit.sources.objects.relay.relay_harness import running
from tests.waiting import eventually

Say = Callable[..., None]
MakeStage = Callable[..., FaultProject]
ODD_KEYS = [
    "games/two words.json",
    "games/a+b.json",
    "games/100%.json",
    "games/100%25.json",
    "games/a=b&c?d#e.json",
    unicodedata.normalize("NFC", "games/ü é.json"),
    unicodedata.normalize("NFD", "games/ü é.json"),
    "games/日本 🎮.json",
    "games/" + "x" * (1024 - len("games/")),
    "games//double/./dots/../x.json",
]


def relayed(landing: Any, **changes: Any) -> None:
    spec = landing.spec(**changes)
    Relay(spec, lake=landing.lake, queue=landing.queue(), landing=landing.storage, until_drained=True).run()


def opened(landing: Any) -> dict[int, tuple[str, bytes | None, str]]:
    """Returns by seq the key, the content as a task reads it, and the reason if there is none."""
    opener = FileOpener(landing.storage, compression="auto")
    found = {}
    for row in FileEventLog(Lake(landing.lake), "landing").read(0).to_pylist():
        payload = opener(FileReference(row["seq"], row["key"], row["etag"], row["version_id"]))
        found[row["seq"]] = (row["key"], payload.data, str(payload.problem.code) if payload.problem else "")
    return found


@pytest.mark.parametrize("without", [[], ["key_decoding"]], ids=["protected", "without"])
def test_20_objects_of_every_name_are_read(
    landing: Any, report_files_fault: Tell, monkeypatch: pytest.MonkeyPatch, without: list[str]
) -> None:
    switch_off(monkeypatch, without)
    for key in ODD_KEYS:
        landing.put(key, body=key.encode())
    relayed(landing)
    contents = {key: data for key, data, _ in opened(landing).values()}
    wrong = [key for key in ODD_KEYS if contents.get(key) != key.encode()]
    verdict = report_files_fault("20 keys", ODD_KEYS, off=", ".join(without), note=f"read wrongly {len(wrong)}")
    assert verdict.is_exact == (not without)
    assert bool(wrong) == bool(without)


@pytest.mark.parametrize("without", [[], ["tags"]], ids=["protected", "without"])
def test_21_an_object_overwritten_before_it_is_read_gives_one_content(
    landing: Any, print_result: Say, monkeypatch: pytest.MonkeyPatch, without: list[str]
) -> None:
    """Overwrites before the first message is received, between message and read, and between two listings."""
    switch_off(monkeypatch, without)
    landing.put("a", body=b"a1")
    landing.put("a", body=b"a2")
    landing.put("b", body=b"b1")
    relayed(landing)
    landing.put("b", body=b"b2")
    relayed(landing)
    landing.s3.put_bucket_notification_configuration(Bucket=landing.bucket, NotificationConfiguration={})
    for body in (b"c1", b"c2"):
        landing.put("c", body=body)
        relayed(landing, listing={"backfill_interval_hours": 1e-6})
    found = opened(landing)
    contents = [data for _, data, _ in found.values() if data is not None]
    told = sorted((key, reason) for key, _, reason in found.values() if reason)
    doubled = len(contents) - len(set(contents))
    how = f"WITHOUT {', '.join(without)}" if without else "protected"
    print_result("21 overwritten", how, f"contents {sorted(contents)}", f"told {told}", f"doubled {doubled}")
    assert sorted(set(contents)) == [b"a2", b"b2", b"c2"]
    assert bool(doubled) == bool(without)
    assert told == ([] if without else [("a", "object_changed"), ("b", "object_changed"), ("c", "object_changed")])


def parquet_cut(_: bytes) -> bytes:
    return b"PAR1" + b"\x15\x04" * 100


#: How objects are damaged, and the reason recorded for each.
DAMAGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "in/cut.json.gz": (lambda body: gzip.compress(body)[:-9], "object_unreadable"),
    "in/half.parquet": (parquet_cut, "object_wrong_format"),
    "in/nothing.json": (lambda _: b"", "object_empty"),
    "in/page.html": (lambda _: b"<html><body>Service unavailable</body></html>", "object_wrong_format"),
}


@pytest.fixture
def bucket_stage(make_stage: MakeStage, landing: Any, proxy: FaultProxy) -> BucketProject:
    landing.returns_after(30)
    return BucketProject(make_stage(tables=3), landing, proxy.endpoint)


def fill(stage: BucketProject) -> None:
    """Lands intact objects (one with a byte order mark, one compressed with gzip) and damaged ones."""
    stage.put("in/good-0.json")
    stage.put("in/good-1.json", made=lambda body: b"\xef\xbb\xbf" + body)
    stage.put("in/good-2.json.gz", made=gzip.compress)
    for key, (damage, _) in DAMAGED.items():
        stage.put(key, made=damage, is_owed=False)
    stage.put("in/other.json", made=lambda body: body.replace(b'"n": ', b'"n": "no number "  , "m": '), is_owed=False)
    stage.put("in/gone.json", is_owed=False)
    stage.relay()
    stage._landing.s3.delete_object(Bucket=stage._landing.bucket, Key="in/gone.json")


def told(say: Say, fault: str, verdict: RowsVerdict, *, off: str = "", note: str = "") -> None:
    say(
        fault,
        f"WITHOUT {off}" if off else "protected",
        f"lost {verdict.lost.total()}",
        f"doubled {verdict.doubled.total()}",
        f"objects told {len(verdict.whole)}",
        *([note] if note else []),
    )


def test_22_and_23_objects_that_cannot_be_read_are_told_and_come_once_they_are_mended(
    bucket_stage: BucketProject, print_result: Say
) -> None:
    fill(bucket_stage)
    with bucket_stage.driver() as driver:
        driver.run_to_end()
    verdict = bucket_stage.judge()
    told(print_result, "22 gone, 23 damaged", verdict)
    assert verdict.is_exact
    reasons = {key: reason for key, (_, reason) in DAMAGED.items()} | {"in/gone.json": "object_missing"}
    assert verdict.whole == {key: [reason] for key, reason in reasons.items()}
    assert verdict.parts == {"in/other.json": ["type_mismatch"] * 5}

    for key in reasons:
        bucket_stage.put(key)
    bucket_stage.relay()
    with bucket_stage.driver() as driver:
        driver.run_to_end()
    mended = bucket_stage.judge()
    told(print_result, "23 sent again", mended)
    assert mended.is_exact
    assert mended.whole == verdict.whole


def test_22_without_object_errors_the_stream_stands_still(bucket_stage: BucketProject, print_result: Say) -> None:
    fill(bucket_stage)
    with bucket_stage.driver(off=["object_errors"]) as driver:
        code = driver.wait()
    verdict = bucket_stage.judge()
    told(print_result, "22 gone, 23 damaged", verdict, off="object_errors", note=f"it ended with {code}")
    assert code != 0
    assert verdict.lost == bucket_stage.owed


def weather(key: str) -> list[Fault]:
    """A storage that throttles, fails, answers late and cuts connections, each more often than the client retries."""
    return [
        Fault(action=Action.REFUSE, method="GET", path=f"{key}-0", times=7),
        Fault(action=Action.REFUSE, method="GET", path=f"{key}-1", times=7, status=500, code="InternalError"),
        Fault(action=Action.DELAY, method="GET", path=f"{key}-2", times=1, delay_seconds=5),
        Fault(action=Action.CUT_SHORT, method="GET", path=f"{key}-3", times=3),
        Fault(action=Action.LOSE_REPLY, method="GET", path=f"{key}-4", times=7),
    ]


@pytest.mark.parametrize("without", [[], ["patience"]], ids=["protected", "without"])
def test_28_a_storage_that_fails_now_and_then_is_waited_for(
    bucket_stage: BucketProject, proxy: FaultProxy, print_result: Say, without: list[str]
) -> None:
    for number in range(5):
        bucket_stage.put(f"in/good-{number}")
    bucket_stage.relay()
    proxy.faults = weather("in/good")
    with bucket_stage.driver(off=without) as driver:
        code = driver.wait()
    verdict = bucket_stage.judge()
    note = f"faults {len(proxy.incidents)}, it ended with {code}"
    told(print_result, "28 storage", verdict, off=", ".join(without), note=note)
    assert verdict.is_exact == (not without)
    assert (code == 0) == (not without)
    if not without:
        assert len(proxy.incidents) == 25


@pytest.mark.parametrize(
    ("refusal", "expected"),
    [((403, "AccessDenied"), ("OBJECT_FORBIDDEN", 10)), ((503, "SlowDown"), ("STORAGE_UNREACHABLE", 21))],
    ids=["denied", "away"],
)
def test_28_a_storage_that_denies_is_told_apart_from_one_that_is_away(
    bucket_stage: BucketProject,
    proxy: FaultProxy,
    print_result: Say,
    refusal: tuple[int, str],
    expected: tuple[str, int],
) -> None:
    """The retry limit is two seconds here; only the final error matters."""
    bucket_stage.put("in/good-0")
    bucket_stage.relay()
    status, code = refusal
    proxy.faults = [Fault(action=Action.REFUSE, method="GET", path="/in/", status=status, code=code)]
    with bucket_stage.driver(off=["long_patience"]) as driver:
        ended = driver.wait()
    said, message = driver.final_error()
    print_result(f"28 storage answers {status}", said, f"exit code {ended}", message[:80])
    assert (said, ended) == expected


def test_28_an_object_that_is_denied_while_its_neighbours_are_not_stops_nothing(
    bucket_stage: BucketProject, proxy: FaultProxy, print_result: Say
) -> None:
    bucket_stage.put("in/denied", is_owed=False)
    bucket_stage.put("in/good-0")
    bucket_stage.relay()
    proxy.faults = [Fault(action=Action.REFUSE, method="GET", path="/in/denied", status=403, code="AccessDenied")]
    with bucket_stage.driver() as driver:
        driver.run_to_end()
    verdict = bucket_stage.judge()
    told(print_result, "28 one object answers 403", verdict)
    assert verdict.is_exact
    assert verdict.whole == {"in/denied": ["object_unreadable"]}


ANNOUNCED = [f"games/{number}" for number in range(20)]
SILENT = [f"games/silent-{number}" for number in range(5)]


def relay_of(landing: Any, **changes: Any) -> Relay:
    return Relay(landing.spec(**changes), lake=landing.lake, queue=landing.queue(), landing=landing.storage)


@pytest.mark.parametrize("without", ["", "listing"], ids=["protected", "without"])
def test_30_objects_no_message_comes_about_are_found_and_told(
    landing: Any, report_files_fault: Tell, without: str
) -> None:
    declared = {} if without else {"listing": {"grace_minutes": 0}}
    objects = open_objects(landing.lake)
    landing.put(*ANNOUNCED)
    with running(relay_of(landing, **declared)) as relay:
        eventually(lambda: relay.counts.deleted == len(ANNOUNCED), "what is announced is taken")
        if not without:
            eventually(lambda: (read_listing_record(objects, "landing") or never()).passes == 1, "a first pass")
        landing.s3.put_bucket_notification_configuration(Bucket=landing.bucket, NotificationConfiguration={})
        landing.put(*SILENT)
        request_listing(objects, "landing", by="a test")
        if not without:
            eventually(lambda: (read_listing_record(objects, "landing") or never()).passes == 2, "a second pass")
            eventually(lambda: alert_of(landing) == "FILES_LOST", "the alert")
        told = alert_of(landing)
    verdict = report_files_fault("30 never announced", [*ANNOUNCED, *SILENT], off=without, note=f"alert {told}")
    assert verdict.is_exact == (not without)
    assert verdict.lost.total() == (len(SILENT) if without else 0)


def never() -> Any:
    """Time of the last listing when none has been recorded yet."""
    from types import SimpleNamespace

    return SimpleNamespace(passes=-1)


def alert_of(landing: Any) -> str:
    """Returns the alert cause that the health check finds for the relay; empty if it is healthy."""
    heartbeat = read_heartbeat(open_objects(landing.lake), relay_control("landing", "heartbeat.json"))
    return evaluate_health(heartbeat, None, kind="relay", name="landing", now=utc_now()).cause


@pytest.mark.parametrize("without", [[], ["patience"]], ids=["protected", "without"])
def test_28_a_listing_that_fails_on_the_way_goes_on_where_it_was(
    landing: Any, proxy: FaultProxy, report_files_fault: Tell, monkeypatch: pytest.MonkeyPatch, without: list[str]
) -> None:
    """The first page is throttled and the second is never answered, each more often than the client retries."""
    monkeypatch.setattr(bucket, "_KEYS_PER_PAGE", 7)
    switch_off(monkeypatch, without)
    landing.s3.put_bucket_notification_configuration(Bucket=landing.bucket, NotificationConfiguration={})
    landing.put(*ANNOUNCED)
    proxy.faults = [
        Fault(action=Action.LOSE_REPLY, path="continuation-token", times=7),
        Fault(action=Action.REFUSE, path="list-type=2", times=7),
    ]
    hit = proxied_landing(landing, proxy)
    failure = ""
    try:
        spec = hit.spec(queue_url=None, listing={})
        Relay(spec, lake=hit.lake, queue=None, landing=hit.storage, until_drained=True).run()
    except Exception as error:
        failure = getattr(error, "condition", type(error).__name__)
    note = f"faults {len(proxy.incidents)}, it ended with {failure or 'nothing'}"
    verdict = report_files_fault("28 listing", ANNOUNCED, off=", ".join(without), note=note)
    assert verdict.is_exact == (not without)
    assert bool(failure) == bool(without)
    if not without:
        assert len(proxy.incidents) == 14


BEFORE, AFTER = 5, 20


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose relay's log has five objects. The stream's offset is stored as Spark stores it."""
    announce(tmp_path, [f"old-{number}" for number in range(BEFORE)], epoch=1)
    return tmp_path


def announce(project: Path, keys: list[str], *, epoch: int) -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    events = [FileEvent("b", key, 9, "e", None, at, "ObjectCreated:Put", None) for key in keys]
    lake = local_lake(f"{project}/lake")
    FileEventLogWriter(lake, "landing", epoch=epoch).append([ReceivedEvent(event, "m", at) for event in events])


def read(project: Path, start: dict[str, Any] | None) -> tuple[list[str], dict[str, Any]]:
    """Returns the files that a new run of a stream reads from an offset, and the end offset."""
    lake = local_lake(f"{project}/lake")
    limits = SliceLimits(max_files=500, max_bytes=None)
    batches = FileEventPlanner(FileEventLog(lake, "landing"), bucket="b", prefix="", limits=limits)
    start = json.loads(json.dumps(start or batches.initial_offset()))
    batches.prepare_for_available_now()
    end = batches.next_end_offset(start) or start
    return batches.rows(start, end).column("key").to_pylist(), end


@pytest.mark.parametrize("without", [[], ["log_check"]], ids=["protected", "without"])
@pytest.mark.parametrize("how", ["made anew", "set back"])
def test_15_a_log_that_is_another_one_is_not_read_on(
    project: Path, print_result: Callable[..., None], monkeypatch: pytest.MonkeyPatch, how: str, without: list[str]
) -> None:
    switch_off(monkeypatch, without)
    _, position = read(project, None)
    log = project / "lake" / file_events_key("landing")
    if how == "made anew":
        shutil.rmtree(log)
        owed = [f"new-{number}" for number in range(AFTER)]
        announce(project, owed, epoch=2)
    else:
        DeltaTable(str(log)).restore(0)
        owed = ["new-0"]
        announce(project, owed, epoch=2)
    found: list[str] = []
    refused = ""
    try:
        found, _ = read(project, position)
    except DeltaworksError as error:
        refused = error.condition
    silently_lost = [] if refused else [key for key in owed if key not in found]
    protection = f"WITHOUT {', '.join(without)}" if without else "protected"
    print_result(
        f"15 log {how}", protection, refused or "went on", f"silently lost {len(silently_lost)} of {len(owed)}"
    )
    assert refused == ("" if without else {"made anew": "LOG_REPLACED", "set back": "LOG_ROLLED_BACK"}[how])
    assert bool(silently_lost) == bool(without)
