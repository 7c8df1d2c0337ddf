"""Stamps: clock skew, ids of events without one, truncated addresses."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from collector.stamps import epoch_ms, iso
from tests.unit.collector.request_handler_harness import NOW, HandlerHarness, declared

RECEIVED = datetime.fromtimestamp(NOW, UTC)


def at(**ago: float) -> str:
    return (RECEIVED - timedelta(**ago)).isoformat().replace("+00:00", "Z")


def stamps(harness: HandlerHarness) -> list[dict[str, object]]:
    return [event["_collector"] for event in harness.events()]


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_an_hour_off_is_corrected(hours: int) -> None:
    harness = HandlerHarness()
    wrong = timedelta(hours=hours)
    happened = [RECEIVED + wrong - timedelta(seconds=seconds) for seconds in (30, 20, 10)]

    batch = [{"timestamp": time.isoformat()} for time in happened]
    harness.send({"batch": batch, "sentAt": (RECEIVED + wrong).isoformat()})

    assert [stamp["time"] for stamp in stamps(harness)] == [iso(int((NOW - ago) * 1000)) for ago in (30, 20, 10)]
    assert {tuple(stamp["flags"]) for stamp in stamps(harness)} == {("skewed",)}  # type: ignore[arg-type]
    assert [event["timestamp"] for event in harness.events()] == [time.isoformat() for time in happened]


@pytest.mark.parametrize("threshold", ["as declared", "off"])
def test_a_devices_order_is_preserved_although_batches_are_delayed(threshold: str) -> None:
    harness = HandlerHarness(declared(skew_minutes=5 if threshold == "as declared" else 1e-9))
    chance = random.Random(3)
    for number in range(30):
        happened = NOW + number
        harness.now = happened + chance.uniform(0.1, 60)
        harness.send({"batch": [{"timestamp": iso(int(happened * 1000))}], "sentAt": iso(int(happened * 1000) + 50)})

    times = [stamp["time"] for stamp in stamps(harness)]

    assert (times == sorted(times)) == (threshold == "as declared")  # type: ignore[type-var]


def test_a_retry_with_the_time_of_its_first_attempt_is_not_shifted() -> None:
    harness = HandlerHarness()
    newest = at(hours=1)

    harness.send({"batch": [{"timestamp": at(hours=3)}, {"timestamp": newest}], "sentAt": at(hours=2)})

    assert [stamp["time"] for stamp in stamps(harness)] == [
        iso(int((NOW - 3 * 3600) * 1000)),
        iso(int((NOW - 3600) * 1000)),
    ]
    assert all("flags" not in stamp for stamp in stamps(harness))


def test_late_and_future_events_are_flagged_and_never_dropped() -> None:
    harness = HandlerHarness(declared(late_hours=2))
    harness.send({"batch": [{"timestamp": at(hours=3)}, {"timestamp": at(hours=-1)}, {"timestamp": "nonsense"}]})

    assert [stamp.get("flags") for stamp in stamps(harness)] == [["late"], ["future"], None]


def test_bots_are_flagged_by_their_user_agent() -> None:
    harness = HandlerHarness()
    for agent in ("Mozilla/5.0 (compatible; Googlebot/2.1)", "Mozilla/5.0 (X11; Linux) Cubot", "Mozilla/5.0 (iPhone)"):
        harness.send({"batch": [{}]}, user_agent=agent)

    assert [stamp.get("flags") for stamp in stamps(harness)] == [["bot"], ["bot"], None]


def test_a_repeated_batch_without_ids_gets_the_same_ids() -> None:
    harness = HandlerHarness()
    batch = [{"timestamp": at(seconds=5), "n": number} for number in range(3)]
    harness.send({"batch": batch, "sentAt": at(seconds=1)})
    harness.now += 70
    harness.send({"batch": batch, "sentAt": at(seconds=-69)})

    ids = [stamp["id"] for stamp in stamps(harness)]
    assert ids[:3] == ids[3:]
    assert len({*ids}) == 3
    assert {stamp["id_from"] for stamp in stamps(harness)} == {"digest"}


def test_random_ids_would_duplicate_a_repeated_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collector.stamps._event_id", lambda event, time, key: ("random", f'"{random.random()}"'))
    harness = HandlerHarness()
    for _ in range(2):
        harness.send({"batch": [{"timestamp": at(seconds=5), "n": 1}], "sentAt": at(seconds=1)})

    assert len({str(stamp["id"]) for stamp in stamps(harness)}) == 2


def test_an_event_without_a_time_gets_a_new_id_each_time() -> None:
    harness = HandlerHarness()
    harness.send({"batch": [{"n": 1}, {"n": 1}]})

    assert [stamp["id_from"] for stamp in stamps(harness)] == ["random", "random"]
    assert len({str(stamp["id"]) for stamp in stamps(harness)}) == 2


@pytest.mark.parametrize(
    ("event", "name"), [({"messageId": "m"}, "m"), ({"event_id": 7}, "7"), ({"id": 'q"\u2028'}, 'q"\u2028')]
)
def test_a_clients_id_is_kept(event: dict[str, object], name: str) -> None:
    harness = HandlerHarness()
    harness.send({"batch": [event]})

    assert (stamps(harness)[0]["id"], stamps(harness)[0]["id_from"]) == (name, "client")


@pytest.mark.parametrize(
    ("hops", "forwarded", "address"),
    [
        (0, "198.51.100.9", "203.0.113.0"),
        (1, "192.0.2.1, 198.51.100.9", "198.51.100.0"),
        (2, "192.0.2.1, 198.51.100.9", "192.0.2.0"),
        (3, "192.0.2.1, 198.51.100.9", "192.0.2.0"),
    ],
)
def test_an_address_set_by_the_client_is_ignored(hops: int, forwarded: str, address: str) -> None:
    harness = HandlerHarness(declared(listen={"trusted_hops": hops}))
    harness.send({"batch": [{}]}, x_forwarded_for=forwarded)

    assert stamps(harness)[0]["ip"] == address


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        ("2026-11-23T12:00:00.123Z", int(NOW * 1000) + 123),
        ("2026-11-23T13:00:00+01:00", int(NOW * 1000)),
        ("2026-11-23T12:00:00", int(NOW * 1000)),
        (NOW, int(NOW * 1000)),
        (int(NOW * 1000) + 5, int(NOW * 1000) + 5),
        (True, None),
        (1e300, None),
        (float("inf"), None),
        ("", None),
        ("tomorrow", None),
        ([], None),
    ],
)
def test_times_are_parsed_in_all_client_formats(value: object, milliseconds: int | None) -> None:
    assert epoch_ms(value) == milliseconds
    if milliseconds is not None:
        assert epoch_ms(iso(milliseconds)) == milliseconds
