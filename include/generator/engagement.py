"""Simulates a sales platform: activities and change requests in order of delivery, with the expected results."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from random import Random

import orjson

from generator.engagement_org import Activity, Organisation, Request
from generator.engagement_settings import EngagementSettings
from generator.engagement_truth import EngagementLog, EngagementTruth

ACTIVITIES_TOPIC, REQUESTS_TOPIC = "engagement-activities", "engagement-requests"
_HOUR_MS = 3_600_000
_MIN_LATENESS_MS = 60_000
_ORGANISATIONS_PER_DRAW = 10_000
#: Sends one record, given its topic, key and value.
Send = Callable[[str, str, bytes], None]


@dataclass(frozen=True, slots=True)
class EngagementRecord:
    """One record in delivery order; `event` is None for a malformed record."""

    topic: str
    key: str
    value: bytes
    event: Activity | Request | None


def engagement_records(settings: EngagementSettings) -> Iterator[EngagementRecord]:
    """Yields all records in order of delivery. The seed determines every byte; no clock is read."""
    rng = Random(settings.seed)
    late: list[tuple[float, int, EngagementRecord]] = []
    ordinals = itertools.count()
    now = settings.start_ms
    for generated in _generate_events(settings, rng):
        now = max(now, generated.at_ms)
        while late and late[0][0] <= now:
            yield heapq.heappop(late)[2]
        for delivered in _with_duplicate(generated, settings, rng):
            record = _encode_record(delivered, settings, rng)
            rate = settings.rates.late_requests if isinstance(delivered, Request) else settings.rates.late_activities
            if rng.random() < rate:
                heapq.heappush(late, (now + _lateness_ms(settings, rng), next(ordinals), record))
            else:
                yield record
    while late:
        yield heapq.heappop(late)[2]


def _generate_events(settings: EngagementSettings, rng: Random) -> Iterator[Activity | Request]:
    """Yields activities and requests in order of time."""
    organisations = [Organisation(f"org{n:05}", settings, rng) for n in range(1, settings.organisations + 1)]
    weights = list(itertools.accumulate(1 / n**settings.skew for n in range(1, settings.organisations + 1)))
    share = settings.requests_per_hundred / (100 + settings.requests_per_hundred)
    # A single draw can produce two requests (swaps, ties, repeats), so fewer draws are needed.
    share /= 1 + share * (settings.rates.repeated_requests + 0.4 * (settings.rates.swaps + settings.rates.ties))
    step = settings.days * 24 * _HOUR_MS / settings.activities * (1 - share)
    start_ms = settings.start_ms
    count = ticks = 0
    while count < settings.activities:
        for organisation in rng.choices(organisations, cum_weights=weights, k=_ORGANISATIONS_PER_DRAW):
            at_ms = start_ms + int(ticks * step)
            ticks += 1
            if rng.random() < share:
                for request in organisation.requests(at_ms):
                    yield request
                    if rng.random() < settings.rates.repeated_requests:
                        yield organisation.repeat_request(request)
                continue
            yield organisation.activity(at_ms)
            count += 1
            if count >= settings.activities:
                return


def _with_duplicate(
    event: Activity | Request, settings: EngagementSettings, rng: Random
) -> tuple[Activity | Request, ...]:
    return (event, event) if rng.random() < settings.rates.duplicates else (event,)


def _lateness_ms(settings: EngagementSettings, rng: Random) -> float:
    max_ms = max(settings.late_max_hours * _HOUR_MS, 2 * _MIN_LATENESS_MS)
    return float(_MIN_LATENESS_MS * (max_ms / _MIN_LATENESS_MS) ** rng.random())


def _encode_record(event: Activity | Request, settings: EngagementSettings, rng: Random) -> EngagementRecord:
    if isinstance(event, Request):
        return EngagementRecord(REQUESTS_TOPIC, event.org_id, request_json(event), event)
    value = activity_json(event)
    if rng.random() < settings.rates.malformed:
        return EngagementRecord(ACTIVITIES_TOPIC, event.org_id, value[: len(value) // 2], None)
    return EngagementRecord(ACTIVITIES_TOPIC, event.org_id, value, event)


def activity_json(activity: Activity) -> bytes:
    """Returns an activity as JSON."""
    at = _iso_text(activity.at_ms)
    return orjson.dumps(
        {
            "kind": "activity",
            "event_id": activity.event_id,
            "at": at,
            "org_id": activity.org_id,
            "engagement_id": f"e-{activity.org_id}-{activity.number:x}",
            "contact_id": activity.contact_id,
            "lead_id": activity.lead_id,
            "activity_type": activity.activity_type,
            "engagement_date": at[:10],
            "template_id": activity.template_id,
            "channel": activity.channel,
            "duration_seconds": activity.duration_seconds,
        }
    )


def request_json(request: Request) -> bytes:
    """Returns a request as JSON; fields without a value are omitted."""
    fields = {
        "kind": "request",
        "event_id": request.event_id,
        "at": _iso_text(request.at_ms),
        "org_id": request.org_id,
        "op": request.op,
        "id": request.id,
        "new_id": request.new_id,
        "name": request.name,
        "fields": None if request.template_id is None else {"template_id": request.template_id},
        "seq": request.seq,
    }
    return orjson.dumps({name: value for name, value in fields.items() if value is not None})


@lru_cache(maxsize=2)
def _minute_text(minute: int) -> str:
    return datetime.fromtimestamp(minute * 60, UTC).strftime("%Y-%m-%dT%H:%M:")


def _iso_text(at_ms: int) -> str:
    minute, ms = divmod(at_ms, 60_000)
    return f"{_minute_text(minute)}{ms // 1000:02}.{ms % 1000:03}Z"


def generate_engagement(settings: EngagementSettings, send: Send) -> EngagementTruth:
    """Sends all records in order and returns the expected results.

    Raises:
        Errors of `send`; records sent before remain.
    """
    log = EngagementLog(settings)
    for record in engagement_records(settings):
        send(record.topic, record.key, record.value)
        if record.event is None:
            log.malformed += 1
        else:
            log.record(record.event)
    return log.truth()


def write_engagement(settings: EngagementSettings, directory: Path) -> EngagementTruth:
    """Writes one JSON lines file per topic and the expected results to `directory`, replacing existing files."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {topic: (directory / f"{topic}.jsonl").open("wb") for topic in (ACTIVITIES_TOPIC, REQUESTS_TOPIC)}
    try:
        truth = generate_engagement(settings, lambda topic, _key, value: _write_line(files[topic].write, value))
    finally:
        for file in files.values():
            file.close()
    truth.write(directory)
    return truth


def _write_line(write: Callable[[bytes], int], value: bytes) -> None:
    write(value + b"\n")
