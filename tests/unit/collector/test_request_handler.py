"""The request handler: admission, responses, and the lake's parser applied to accepted events."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest

from collector import request_handler
from collector.admission import Bounds
from collector.bodies import RequestBody, Steps
from collector.responses import REJECTIONS, reject
from collector.stamps import stamp_events
from deltaworks.events.formats.json import Malformed
from deltaworks.privacy.tokens.redactor import _truncate_single
from tests.unit.collector.request_handler_harness import (
    KEY,
    NOW,
    ORIGIN,
    HandlerHarness,
    code,
    content,
    declared,
    digest,
)

TRACK = {"type": "track", "event": "click", "messageId": "m1", "timestamp": "2026-11-23T11:59:59.500Z"}


def headers(answer: Any) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in answer.headers}


@pytest.mark.parametrize("path", ["/v1/batch", "/v1/b", "/v1/import", "/beacon/v1/batch"])
def test_a_batch_is_accepted_at_every_batch_path(path: str) -> None:
    harness = HandlerHarness()

    answer = harness.send({"batch": [TRACK, {"b": 2}], "context": {"app": "x"}, "sentAt": "2026-11-23T12:00:00Z"}, path)

    assert (answer.status, content(answer)) == (200, {"success": True, "accepted": 2, "kept": 0})
    first, second = harness.events()
    stamp = first.pop("_collector")
    assert first == {**TRACK, "context": {"app": "x"}}
    assert stamp == {
        "v": 1,
        "seq": 1,
        "id": "m1",
        "id_from": "client",
        "received_at": "2026-11-23T12:00:00.000Z",
        "sent_at": "2026-11-23T12:00:00.000Z",
        "skew_ms": 0,
        "time": "2026-11-23T11:59:59.500Z",
        "source": "games",
        "collector": "c0",
        "request": "r1",
        "ip": "203.0.113.0",
    }
    assert second["_collector"]["seq"] == 2


@pytest.mark.parametrize(
    "name", ["track", "identify", "page", "screen", "group", "alias", "t", "i", "p", "s", "g", "a"]
)
def test_a_single_event_is_accepted_at_its_short_and_long_path(name: str) -> None:
    harness = HandlerHarness()

    assert content(harness.send(TRACK, f"/v1/{name}"))["accepted"] == 1
    assert harness.events()[0]["event"] == "click"


def test_cloud_events_are_accepted_singly_and_in_batches() -> None:
    harness = HandlerHarness()
    event = {"specversion": "1.0", "id": "c-1", "source": "/shop", "type": "order", "time": "2026-11-23T11:00:00Z"}

    harness.send(event, "/v1/events", content_type="application/cloudevents+json")
    harness.send([event, event], "/v1/events", content_type="application/cloudevents-batch+json")

    assert [item["_collector"]["id"] for item in harness.events()] == ["c-1"] * 3
    assert harness.events()[0]["_collector"]["time"] == "2026-11-23T11:00:00.000Z"


def test_lines_are_accepted_with_any_content_type() -> None:
    harness = HandlerHarness()
    for kind in ("application/x-ndjson", "text/plain", ""):
        assert content(harness.send('{"a":1}\n{"b":2}\n', "/v1/events", content_type=kind))["accepted"] == 2


BAD = [
    "NaN",
    '{"x":NaN}',
    "{broken}",
    '{"a":' * 10_000 + "1" + "}" * 10_000,
    '"\ud7ff"',
    "[1]",
    '{"deep":' + "[" * 1500 + "]" * 1500 + "}",
]


@pytest.mark.parametrize("bad", BAD, ids=lambda text: text[:12])
def test_one_malformed_event_of_a_hundred_is_quarantined_and_does_not_affect_others(bad: str) -> None:
    harness = HandlerHarness()
    good = [json.dumps({"n": number}) for number in range(99)]
    events = [*good[:40], bad, *good[40:]]

    answer = harness.send('{"batch":[' + ",".join(events) + "]}")

    assert answer.status == 200
    assert content(answer) == {"success": True, "accepted": 99, "kept": 1, "verdicts": {"40": "kept:malformed"}}
    landed = harness.landed()
    assert [item["n"] for item in landed if not isinstance(item, Malformed)] == list(range(99))
    [malformed] = [item for item in landed if isinstance(item, Malformed)]
    assert b'"seq":41,' in malformed.raw, "quarantine says which one it was"
    assert json.dumps(bad, ensure_ascii=False)[1:-1].encode() in malformed.raw


def test_without_quarantine_an_unreadable_event_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def dropping(sent: RequestBody, *rest: Any, **options: Any) -> Steps[list[tuple[bytes, ...] | None]]:
        stamped = yield from stamp_events(sent, *rest, **options)
        return [parts if event.value is not None else None for event, parts in zip(sent.events, stamped, strict=True)]

    monkeypatch.setattr(request_handler, "stamp_events", dropping)
    harness = HandlerHarness()

    harness.send('{"batch":[{"n":1},{broken},{"n":2}]}')

    assert [item["n"] for item in harness.landed()] == [1, 2], "nothing is in quarantine"


def test_half_a_surrogate_pair_is_accepted() -> None:
    harness = HandlerHarness()

    answer = harness.send('{"batch":[{"a":"cut \\ud83d"},{"b":1}]}')

    assert content(answer)["accepted"] == 2
    assert b'"a":"cut \\ud83d"' in harness.payloads[0]
    assert [event["b"] for event in harness.events() if "b" in event] == [1]


def test_an_unclosed_event_is_quarantined_with_its_content_and_nothing_is_dropped() -> None:
    harness = HandlerHarness()

    answer = harness.send('{"batch":[{"a":1},{"open":[{"b":2},{"c":3}]}')
    torn = harness.send('{"batch":[{"a":1},{"list":[{"x":1},{"y":2},{"z')

    assert (content(answer)["accepted"], content(answer)["kept"]) == (2, 0)
    assert (content(torn)["accepted"], content(torn)["kept"]) == (1, 1)
    assert b'{\\"x\\":1},{\\"y\\":2},{\\"z' in harness.payloads[-1], "what is inside of it is no event of its own"


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"3", b"[]", b'{"no":"batch"}', gzip.compress(b"{}")[:9]])
def test_every_body_with_a_valid_key_and_size_is_accepted(body: bytes) -> None:
    harness = HandlerHarness()

    assert harness.send(body).status == 200
    if body:
        assert isinstance(harness.landed()[0], Malformed)


def test_a_number_beyond_double_precision_lands_unchanged() -> None:
    harness = HandlerHarness()
    harness.send('{"batch":[{"n":100000000000000000000000000001, "p":1.10,"_collector":{"seq":9},"c":"_collector"}]}')

    assert harness.payloads[0].endswith(b',"n":100000000000000000000000000001,"p":1.10,"c":"_collector"}')
    assert harness.events()[0]["_collector"]["seq"] == 1, "a client's own stamp is nobody's"


@pytest.mark.parametrize("where", ["basic", "query", "body"])
def test_the_key_is_in_the_header_the_query_or_the_body(where: str) -> None:
    harness = HandlerHarness()
    body: dict[str, Any] = {"batch": [TRACK]}
    match where:
        case "basic":
            answer = harness.send(body)
        case "query":
            answer = harness.send(body, "/v1/batch?x=1&writeKey=key+of%20games", key=None)
        case _:
            answer = harness.send(body | {"writeKey": KEY}, key=None)

    assert answer.status == 200
    assert code(harness.send(body | {"writeKey": "other"}, key="other" if where == "basic" else None)) == (
        401,
        "bad_key",
    )
    assert code(harness.send(body, key=None)) == (401, "bad_key")
    assert len(harness.payloads) == 1


def test_an_old_key_is_valid_to_the_end_of_its_last_day_together_with_the_new_one() -> None:
    keys = [{"sha256": digest(KEY), "until": "2026-11-23"}, {"sha256": digest("new")}]
    harness = HandlerHarness(declared({"keys": keys}))
    body = {"batch": [TRACK]}

    assert [harness.send(body, key=key).status for key in (KEY, "new")] == [200, 200]
    harness.now = NOW + 12 * 3600 + 1
    assert [harness.send(body, key=key).status for key in (KEY, "new")] == [401, 200]


def test_scripts_of_declared_origins_may_send_and_read_every_response() -> None:
    harness = HandlerHarness()
    body = {"batch": [TRACK]}
    allowed = [
        harness.send(body, origin=ORIGIN),
        harness.send(body, origin=ORIGIN, key="other"),
        harness.send(b"x" * ((4 << 20) + 1), origin=ORIGIN),
        harness.send(body, origin=ORIGIN, content_encoding="br"),
        harness.send(body, "/v1/nothing", origin=ORIGIN),
    ]
    harness.refusal = "spool_full"
    allowed.append(harness.send(body, origin=ORIGIN))

    assert [answer.status for answer in allowed] == [200, 401, 413, 415, 404, 503]
    for answer in allowed:
        assert headers(answer)["access-control-allow-origin"] == ORIGIN
        assert headers(answer)["access-control-expose-headers"] == "Retry-After"
        assert headers(answer)["vary"] == "Origin"
        assert "access-control-allow-credentials" not in headers(answer)


def test_without_its_headers_an_error_could_not_be_read_by_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = HandlerHarness()
    names = [name for name, _ in harness.send({"batch": []}, key="another", origin=ORIGIN).headers]
    monkeypatch.setattr(harness.door, "with_cors", lambda head, answer: answer)
    bare = [name for name, _ in harness.send({"batch": []}, key="another", origin=ORIGIN).headers]

    assert b"access-control-allow-origin" in names
    assert b"access-control-allow-origin" not in bare


def test_scripts_of_other_origins_are_rejected() -> None:
    harness = HandlerHarness()

    answer = harness.send({"batch": [TRACK]}, origin="https://evil.example.org")

    assert code(answer) == (403, "origin")
    assert "access-control-allow-origin" not in headers(answer)
    assert (
        HandlerHarness(declared({"origins": ["*"]})).send({"batch": [TRACK]}, origin="https://any.example").status
        == 200
    )


def test_a_rate_limit_counts_events_and_returns_when_to_retry() -> None:
    harness = HandlerHarness(declared({"rate": {"events_per_second": 0.001, "burst": 100}}))
    body = {"batch": [TRACK] * 60}

    statuses = [harness.send(body).status for _ in range(3)]
    answer = harness.send(body)

    assert statuses == [200, 200, 429], "what was counted only when it was read may go beyond by one request"
    assert code(answer) == (429, "rate")
    assert 1 <= int(headers(answer)["retry-after"]) <= 30
    assert len(harness.payloads) == 120


@pytest.mark.parametrize("problem", ["spool_full", "disk"])
def test_a_full_spool_rejects_before_the_body_is_read(problem: str) -> None:
    harness = HandlerHarness()
    harness.refusal = problem

    answer = harness.send({"batch": [TRACK]})

    assert code(answer) == (503, problem)
    assert 1 <= int(headers(answer)["retry-after"]) <= 30


def test_a_body_that_decompresses_beyond_the_limit_is_too_large() -> None:
    harness = HandlerHarness()

    bomb = gzip.compress(bytes(64 << 20), 1) * 14  # 900 MB

    assert len(bomb) < 4 << 20
    assert code(harness.send(bomb, content_encoding="gzip")) == (413, "too_large")
    assert code(harness.send(b"{}", content_length=str(1 << 40))) == (413, "too_large")
    assert harness.send(gzip.compress(json.dumps({"batch": [TRACK]}).encode()), content_encoding="gzip").status == 200


def test_every_rejection_has_the_fields_and_the_status_that_sdks_expect() -> None:
    for name, row in REJECTIONS.items():
        answer = reject(name, "r1")
        assert set(content(answer)) == {"code", "message", "request_id"}
        assert answer.status >= 400
        assert ("retry-after" in headers(answer)) == row.is_retryable
        assert row.is_retryable == (answer.status in (429, 500, 503))


def test_the_api_gateway_layout_has_the_event_in_its_body_and_no_address() -> None:
    harness = HandlerHarness(declared({"wrap": "api_gateway"}))
    harness.send({"batch": [{"eventName": "login", "eventTime": 7, "p": 1.10}, 3]})

    wrapper, broken = harness.events()
    assert wrapper["requestContext"]["requestId"] == "r1"
    assert "203.0.113.77" not in json.dumps(harness.events())
    event = json.loads(wrapper["body"])
    assert (event["eventName"], event["eventTime"], event["_collector"]["seq"]) == ("login", int(NOW), 1)
    assert wrapper["body"].endswith('"eventName":"login","p":1.1}') or wrapper["body"].endswith('"p": 1.1}')
    with pytest.raises(ValueError, match="double quotes"):
        json.loads(broken["body"])
    assert '"seq":2,' in broken["body"]


def test_events_are_redacted_before_they_are_stored_and_unreadable_ones_are_not_stored() -> None:
    canary = "canary@example.org"

    class CanaryRedaction:
        """Takes every field that holds the canary out."""

        def begin_request(self, received_ms: int) -> CanaryRedaction:
            return self

        def redact(self, event: dict[str, Any]) -> dict[str, Any] | None:
            return {name: value for name, value in event.items() if canary not in json.dumps(value)}

        def record_unreadable(self, text: str) -> None:
            assert canary in text

        def sealed_payload(self, request: str) -> bytes | None:
            return None

    harness = HandlerHarness(strip=CanaryRedaction())
    events = [
        json.dumps({"a": 1, "email": canary}),
        json.dumps({"context": {"email": canary}}),
        f'{{"email":"{canary}"',
    ]
    answer = harness.send('{"context":{"traits":"' + canary + '"},"batch":[' + ",".join(events))

    assert content(answer)["verdicts"] == {"2": "kept:malformed"}
    assert canary.encode() not in b"".join(harness.payloads)
    assert harness.events()[0]["a"] == 1
    assert b'"raw_bytes":29,"raw_sha256":"' in harness.payloads[2]
    unstripped = HandlerHarness()
    unstripped.send('{"batch":[' + ",".join(events))
    assert unstripped.payloads[2].count(canary.encode()) == 1, "the canary is one"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/batch", '{"batch":[{\n "n": [1,\r\n2]\r}\n],\n"context":{\n"a":\r1}}'),
        ("/v1/track", '{\r\n"n":\n[1,2]}'),
        ("/v1/events", '[{\r"n":\r[1,2]}]'),
        ("/v1/batch", '{"batch":[{\n"n":[1,2],\n"_collector":\n7,\n"eventTime":\r1}]}'),
        ("/v1/batch", '{"batch":[{\n"n":[1,2]\n'),
    ],
)
def test_a_landed_event_is_one_line(path: str, body: str) -> None:
    for wrap in ("none", "api_gateway"):
        harness = HandlerHarness(declared({"wrap": wrap}))
        harness.send(body, path)

        assert harness.payloads
        assert not any(b"\n" in stored or b"\r" in stored for stored in harness.payloads)
    plain = HandlerHarness()
    plain.send('{"n":"a\\nb",\n"m":1.10}', path="/v1/track")
    assert plain.events()[0]["n"] == "a\nb"
    assert b'"m":1.10' in plain.payloads[0]


def test_what_events_become_is_bounded_by_their_context_escapes_and_stamps() -> None:
    growing = {
        "context": json.dumps({"context": {"a": "x" * 2_000}, "batch": [{}] * 20_000}),
        "context and text": json.dumps({"context": {"a": "x" * 9_000}, "batch": [3, {}] * 2_000 + [{"b": 1}] * 2_000}),
    }
    for body in growing.values():
        assert code(HandlerHarness().send(body)) == (413, "too_large")
        unbounded = HandlerHarness(bounds=Bounds(growth_factor=1 << 20))
        assert unbounded.send(body).status == 200
        assert sum(map(len, unbounded.payloads)) > 32 << 20
    wrapped = HandlerHarness(declared({"wrap": "api_gateway"}))
    for byte in (b"\xff", b"\x01", b'"', b"\\"):
        assert wrapped.send(byte * (4 << 20), "/v1/events").status == 200, "escapes of escapes"
    assert max(map(len, wrapped.payloads)) < 32 << 20
    many = HandlerHarness()
    assert many.send(json.dumps({"batch": [{}] * 20_000})).status == 200


def test_caches_hold_no_long_values_of_clients() -> None:
    harness = HandlerHarness(declared(listen={"trusted_hops": 1}))
    start = truncated_addresses()
    for number in range(50):
        long = f"{number}" + "x" * 30_000
        basic = "Basic " + base64.b64encode(f"{KEY}:{long}".encode()).decode()
        answer = harness.send({"batch": [{}]}, key=None, authorization=basic, user_agent=long, x_forwarded_for=long)
        assert answer.status == 200
    assert harness.door.keys.cached_bytes() < 4096
    assert truncated_addresses() <= start + 1, "the empty one"
    for number in range(10_000):
        varied = b"Basic " + base64.b64encode(f"{KEY}:{number}".encode())
        harness.door.keys.authenticate(varied, b"")
    assert harness.door.keys.cached_bytes() < 4096 * 256


def truncated_addresses() -> int:
    return _truncate_single.cache_info().currsize
