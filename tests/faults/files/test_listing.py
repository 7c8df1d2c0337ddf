"""Objects without a notification, and bucket listings that fail halfway."""

from __future__ import annotations

from typing import Any

import pytest

from deltaworks.control.clock import utc_now
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.health.verdicts import evaluate_health
from deltaworks.control.objects import open_objects
from deltaworks.control.paths import relay_control
from deltaworks.sources.objects.relay import bucket
from deltaworks.sources.objects.relay.lister import read_listing_record, request_listing
from deltaworks.sources.objects.relay.relay import Relay
from sandbox.servers.fault_proxy import Action, Fault, FaultProxy
from tests.faults.files.conftest import Tell
from tests.faults.harness.file_log_verdict import proxied_landing
from tests.faults.harness.file_protections import switch_off
from tests.unit.sources.objects.relay.relay_harness import running
from tests.waiting import eventually

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
