"""A relay that lists its buckets: initial load, missed notifications, and its report."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError
from deltaworks.sources.objects.file_event_log import FileEventLog
from deltaworks.sources.objects.relay import bucket, lister
from deltaworks.sources.objects.relay.bucket import list_pages
from deltaworks.sources.objects.relay.lister import ListingRecord, read_listing_record, request_listing
from deltaworks.sources.objects.relay.relay import Relay
from deltaworks.specs.relay import ListingSpec, RelaySpec
from deltaworks.specs.sources import glob_expression, key_matcher
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.unit.sources.objects.relay.relay_harness import drain, keys, running
from tests.waiting import eventually

NO_GRACE = {"grace_minutes": 0}


def listing_relay(landing: Any, *, with_queue: bool = False, until_drained: bool = False, **changes: Any) -> Relay:
    of_queue = {} if with_queue else {"queue_url": None}
    spec = landing.spec(**({"listing": {}} | of_queue | changes))
    queue = landing.queue() if with_queue else None
    return Relay(spec, lake=landing.lake, queue=queue, landing=landing.storage, until_drained=until_drained)


def record_of(landing: Any) -> ListingRecord:
    return present(read_listing_record(open_objects(landing.lake), "landing"))


def unannounced(landing: Any, *names: str) -> None:
    """Put objects no message comes about."""
    landing.s3.put_bucket_notification_configuration(Bucket=landing.bucket, NotificationConfiguration={})
    landing.put(*names)


def test_existing_objects_are_loaded_once_in_pages(landing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "_KEYS_PER_PAGE", 7)
    names = [f"games/day={number % 3}/{number:03} ä.json" for number in range(25)]
    unannounced(landing, *names, "other/1.json", "games/day=1/notes.txt", "games/")
    options = {"listing": {"prefix": "games/", "glob": "**/*.json"}, "until_drained": True}
    counts = listing_relay(landing, **options).run()
    assert sorted(keys(landing)) == sorted(names)
    assert (counts.listed, counts.events, counts.lost) == (25, 25, 0)
    request_listing(open_objects(landing.lake), "landing", by="a test")
    counts = listing_relay(landing, **options).run()
    assert (counts.listed, counts.events, counts.duplicates) == (25, 0, 25)
    assert record_of(landing).passes == 2


def test_an_object_both_listed_and_announced_is_one_file(landing: Any) -> None:
    landing.put("games/1", "games/2")
    with running(listing_relay(landing, with_queue=True)) as relay:
        eventually(lambda: drain(landing) and record_of(landing).passes == 1, "both ways have brought them")
    assert sorted(keys(landing)) == ["games/1", "games/2"]
    # The queue may deliver a message again: each delivery but the first to bring its object is a duplicate.
    counts = relay.counts
    assert (counts.events, counts.listed) == (2, 2)
    assert counts.duplicates == counts.messages + counts.listed - 2 >= 2


def test_an_unannounced_object_is_found_by_the_next_pass_and_reported_lost(landing: Any) -> None:
    landing.put("games/1")
    with running(listing_relay(landing, with_queue=True, listing=NO_GRACE)):
        eventually(lambda: drain(landing) and record_of(landing).passes == 1, "the first pass")
        unannounced(landing, "games/2", "games/3")
        request_listing(open_objects(landing.lake), "landing", by="a test")
        eventually(lambda: record_of(landing).passes == 2, "the second pass")
    found = record_of(landing)
    assert (found.new, found.lost) == (2, 2)
    assert found.lost_examples == (f"{landing.bucket}/games/2", f"{landing.bucket}/games/3")
    assert sorted(keys(landing)) == ["games/1", "games/2", "games/3"]


def test_an_object_whose_message_may_be_waiting_is_not_reported_lost(landing: Any) -> None:
    landing.put("games/1")
    with running(listing_relay(landing, with_queue=True, listing={"grace_minutes": 60})):
        eventually(lambda: drain(landing) and record_of(landing).passes == 1, "the first pass")
        unannounced(landing, "games/2")
        request_listing(open_objects(landing.lake), "landing", by="a test")
        eventually(lambda: record_of(landing).passes == 2, "the second pass")
    assert (record_of(landing).new, record_of(landing).lost) == (1, 0)


def test_existing_objects_are_ignored_if_declared_also_after_a_restart(
    landing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    unannounced(landing, "games/old")
    monkeypatch.setattr(lister, "iso_now", later.isoformat)
    options = {"listing": {"include_existing": False}, "until_drained": True}
    assert listing_relay(landing, **options).run().events == 0
    monkeypatch.undo()
    request_listing(open_objects(landing.lake), "landing", by="a test")
    assert listing_relay(landing, **options).run().events == 0
    assert record_of(landing).passes == 2


def test_no_pass_runs_before_it_is_due(landing: Any) -> None:
    unannounced(landing, "games/1")
    listing_relay(landing, until_drained=True).run()
    unannounced(landing, "games/2")
    with running(listing_relay(landing, max_run_seconds=10)):
        eventually(lambda: record_of(landing).passes == 1, "nothing more")
    assert keys(landing) == ["games/1"]
    hourly = {"backfill_interval_hours": 1e-6}
    listing_relay(landing, until_drained=True, listing=hourly).run()
    assert keys(landing) == ["games/1", "games/2"]


def test_every_version_is_listed_with_its_name_oldest_first(landing: Any) -> None:
    versioned = {"Bucket": landing.bucket, "VersioningConfiguration": {"Status": "Enabled"}}
    landing.s3.put_bucket_versioning(**versioned)
    for body in (b"one", b"two", b"three"):
        unannounced(landing)
        landing.put("games/1", body=body)
    listing_relay(landing, until_drained=True, overwrites="every_version").run()
    rows = FileEventLog(Lake(landing.lake), "landing").read(0).to_pylist()
    assert [row["size"] for row in rows] == [3, 3, 5]
    assert len({row["version_id"] for row in rows} - {None}) == 3
    assert {row["origin"] for row in rows} == {"listing"}


def test_a_bucket_without_list_permission_is_a_config_error(landing: Any) -> None:
    with pytest.raises(ConfigError, match="LISTING_REFUSED"):
        listing_relay(landing, buckets=("not-there",), until_drained=True).run()


def test_a_relay_with_neither_queue_nor_listing_is_rejected() -> None:
    with pytest.raises(ValueError, match="queue_url, a listing"):
        RelaySpec(relay="landing", buckets=("b",))


def test_local_files_are_listed_with_the_etags_of_their_reads(landing: Any) -> None:
    folder = landing.lake.model_copy(update={"root": landing.lake.root + "/landing"})
    for name in ("a/1.json", "a/b/2.json"):
        path = __import__("pathlib").Path(folder.prefix, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"{}")
    found = [event for page in list_pages(folder, "landing", glob="a/*.json") for event in page]
    assert [(event.key, event.etag) for event in found] == [("a/1.json", "99914b932bd37a50b983c5e7c90ae93b")]


@pytest.mark.parametrize(
    ("glob", "fitting", "other"),
    [
        ("*.json", "a.json", "b/a.json"),
        ("**/*.json", "b/c/a.json", "b/c/a.csv"),
        ("**/*.json", "a.json", "a.jsonl"),
        ("logs/{eu,us}-?/x+(1).gz", "logs/eu-1/x+(1).gz", "logs/eu-11/x+(1).gz"),
        ("a/**", "a/b/ü c", "b/a/x"),
    ],
)
def test_globs(glob: str, fitting: str, other: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    assert key_matcher(glob)(fitting)
    assert not key_matcher(glob)(other)
    found = pc.match_substring_regex(pa.array([fitting, other]), f"^{glob_expression(glob)}$")
    assert found.to_pylist() == [True, False]


@pytest.mark.parametrize("glob", ["a{b", "a}b", "{a,{b,c}}"])
def test_an_invalid_glob_is_rejected(glob: str) -> None:
    with pytest.raises(ValueError, match="unbalanced or nested braces"):
        ListingSpec(glob=glob)
