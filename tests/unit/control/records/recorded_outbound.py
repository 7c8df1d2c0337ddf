"""Expected records of collectors, rules, feeds and remediations."""

from __future__ import annotations

import datetime as dt

from deltaworks.control.records.collector import CollectorHeartbeat, HourCounts, LostEvents, MissingRange, SourceStatus
from deltaworks.control.records.feeds import (
    DeadLetters,
    Delivery,
    DeliveryRecord,
    FeedRecord,
    Position,
    ReplayRequest,
)
from deltaworks.control.records.remediation import RemediationRecord
from deltaworks.control.records.store import UnversionedRecord
from deltaworks.rules.annotations import Annotation
from deltaworks.rules.baselines import BaselineRow, DateBaseline
from deltaworks.rules.stored_state import AlertEvent, AlertRecord, EpisodeRecord, RuleState, SeriesRecord

AT = "2026-01-02T03:04:05.678+00:00"
MINUTE = "2026-01-02T03:04Z"
BASE = Position(kind="table", table_id="5f0c", version=7)
DELIVERY = Delivery(
    number=4,
    base=BASE,
    target=Position(kind="table", table_id="5f0c", version=9),
    started_at=AT,
    sent_changes=20,
    dead_letters=1,
)
OUTWARD: dict[str, UnversionedRecord] = {
    "collector_beat": CollectorHeartbeat(
        collector="edge",
        id="0a1b",
        state="running",
        written_at=AT,
        started_at=AT,
        next_seq=4097,
        spool_bytes=1234,
        spool_max_bytes=10_737_418_240,
        oldest_at=AT,
        damaged=("seg-00000000000000000001.wal.damaged",),
        sources={
            "games": SourceStatus(delivered=4000, objects=3, dead_letters=1, problem="no bucket", problem_since=AT)
        },
        host="edge-0",
        pid=17,
    ),
    "collector_counts": HourCounts(
        id="0a1b",
        hour="2026-01-02T03",
        first_seq=1,
        next_seq=4097,
        sources={"games": {"event": 4090}},
        is_complete=True,
    ),
    "collector_losses": LostEvents(
        checked_at=AT, checked_up_to={"0a1b": 4096}, missing=(MissingRange(id="0a1b", first=12, last=14),)
    ),
    "feed": FeedRecord(
        incarnation="c0ffee",
        number=3,
        position=BASE,
        current_delivery=DELIVERY,
        delivered_at=AT,
        pending_since=AT,
        changes=120,
        dead_letters=2,
    ),
    "feed_delivery": DeliveryRecord(delivery=DELIVERY, ended_at=AT),
    "feed_dead_letters": DeadLetters(number=4, letters=({"id": "9", "key": {"country": "de"}, "reason": "too_large"},)),
    "feed_replay": ReplayRequest(since=3, by="ada", at=AT),
    "remediation": RemediationRecord(
        remediation="shift_cdn",
        notification="n1",
        subject="video_qos.cdn_slow{cdn=a}",
        state="verified",
        at=AT,
        source="a",
        target="b",
        before={"a": 0.5, "b": 0.5},
        after={"a": 0.3, "b": 0.7},
        value=812.5,
        attempted_at=AT,
        called_at=AT,
        ended_at=AT,
        reason="it fell to 520",
    ),
    "annotation": Annotation(
        pipeline="games", text="price change", at=dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC), author="ada"
    ),
    "rule_baseline": DateBaseline(
        pipeline="games",
        rule="bookings_low",
        date="2026-01-02",
        rows=(BaselineRow(labels=("de", None), hour=3, value=12.5, spread=1.5, is_hour_of_week=True),),
    ),
    "rule_state": RuleState(
        pipeline="games",
        rule="bookings_low",
        labels=("country",),
        last_minute=MINUTE,
        series=(
            SeriesRecord(
                labels=("de",),
                phase="firing",
                began=MINUTE,
                fired=MINUTE,
                last_row_minute=MINUTE,
                changed_minute=MINUTE,
                value=3.5,
            ),
        ),
        episodes=(EpisodeRecord(labels=("de",), began=MINUTE, fired=MINUTE, worst=2.5),),
        alerts=(AlertRecord(subject="games.bookings_low{country=de}", episode=MINUTE, labels={}, members=(("de",),)),),
        rule_alerts={"RULE_UNKNOWN": AT},
        outbox=(
            AlertEvent(
                kind="raise",
                cause="RULE_FIRING",
                subject="games.bookings_low{country=de}",
                severity="critical",
                summary="bookings are low",
                detail={"value": 3.5},
            ),
        ),
        data_until=AT,
        problem="",
    ),
}
