"""The collector as a Lambda: events as API Gateway sends them, answered once the sink has them."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from collector.delivery import CloseThresholds
from collector.drain import LandingDestination, RecordDestination
from collector.lambda_gateway import Gateway, parse_head
from collector.packing import PackedObject, SpooledEvent
from collector.redaction import SourceRedactor
from collector.sinks import DeadLetter, SinkBusyError
from deltaworks.collector_host.aws_lambda import redacting_gateway
from deltaworks.collector_host.redaction import RELOAD_SECONDS
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import TransientError
from deltaworks.privacy.erasure.requests import receive_request
from deltaworks.privacy.key_service import LocalKeyring, public_key
from deltaworks.privacy.tokens.envelope_encryption import Sealer, Unsealer, decode_sealed_file, token
from deltaworks.privacy.tokens.redactor import Redactor
from deltaworks.specs.collector import CollectorSpec
from deltaworks.specs.privacy import PrivacySpec
from deltaworks.testing import present
from tests.unit.privacy.erasure.people_lake import PeopleLake

KEY = "a-write-key"
SPEC = CollectorSpec.model_validate(
    {
        "collector": "edge",
        "sources": {
            "games": {
                "pipeline": "games",
                "keys": [{"sha256": hashlib.sha256(KEY.encode()).hexdigest()}],
                "origins": ["https://play.example.org"],
                "sink": {"kind": "kinesis", "stream": "games"},
            }
        },
    }
)
PRIVACY = PrivacySpec.model_validate(
    {
        "namespace": "players",
        "subject": "id",
        "fields": [
            {"path": "id", "action": "token", "as": "player"},
            {"path": "email", "action": "vault", "as": "email"},
        ],
    }
)
BASIC = "Basic " + base64.b64encode(f"{KEY}:".encode()).decode()


def rest(body: str, **more: Any) -> dict[str, Any]:
    """A request as a REST API hands it over (payload format 1.0)."""
    return {
        "resource": "/v1/{proxy+}",
        "path": "/v1/events",
        "httpMethod": "POST",
        "headers": {"Authorization": BASIC, "Content-Type": "application/json", "Host": "x.execute-api.aws"},
        "multiValueHeaders": {"Authorization": [BASIC], "Content-Type": ["application/json"]},
        "queryStringParameters": None,
        "multiValueQueryStringParameters": None,
        "pathParameters": {"proxy": "events"},
        "stageVariables": None,
        "requestContext": {
            "stage": "prod",
            "requestId": "c6af9ac6-7b61-11e6-9a41-93e8deadbeef",
            "identity": {"sourceIp": "203.0.113.77", "userAgent": "okhttp/4.12"},
        },
        "body": body,
        "isBase64Encoded": False,
        **more,
    }


def http(body: str, **more: Any) -> dict[str, Any]:
    """A request as an HTTP API or a function URL hands it over (payload format 2.0)."""
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/v1/events",
        "rawQueryString": "",
        "headers": {"authorization": BASIC, "content-type": "application/json", "x-forwarded-for": "203.0.113.77"},
        "requestContext": {
            "accountId": "123456789012",
            "apiId": "api-id",
            "http": {
                "method": "POST",
                "path": "/v1/events",
                "protocol": "HTTP/1.1",
                "sourceIp": "203.0.113.77",
                "userAgent": "okhttp/4.12",
            },
            "requestId": "JKJaXmPLvHcESHA=",
            "routeKey": "$default",
            "stage": "$default",
            "timeEpoch": 1_583_348_638_390,
        },
        "body": body,
        "isBase64Encoded": False,
        **more,
    }


class Sink:
    """Takes everything, but for the first `refusing` calls."""

    def __init__(self, refusing: int = 0) -> None:
        self.taken: list[dict[str, Any]] = []
        self.raw: list[bytes] = []
        self._refusing = refusing

    def send(self, events: Sequence[SpooledEvent]) -> list[DeadLetter]:
        if self._refusing:
            self._refusing -= 1
            raise SinkBusyError("away", remaining=events)
        self.raw += [event.payload for event in events]
        return []

    def put(self, item: PackedObject) -> None:
        self.raw += gzip.decompress(item.body).splitlines()

    def close(self) -> None: ...


def gateway(sink: Sink) -> Gateway:
    return Gateway(SPEC, {"games": RecordDestination(open_sink=lambda: sink)}, sleep=lambda _seconds: None)


@pytest.mark.parametrize("form", [rest, http])
def test_an_event_of_either_format_is_in_the_sink_before_the_response(form: Any) -> None:
    sink = Sink()
    answer = gateway(sink).handle(form('{"type": "click", "n": 123456789012345678901234567890}'))
    assert (answer["statusCode"], json.loads(answer["body"])["accepted"]) == (200, 1)
    (raw,) = sink.raw
    assert b'"n": 123456789012345678901234567890' in raw
    stamp = json.loads(raw)["_collector"]
    assert (stamp["source"], stamp["ip"], stamp["seq"]) == ("games", "203.0.113.0", 1)
    assert b"203.0.113.77" not in raw


@pytest.mark.parametrize("form", [rest, http])
def test_lines_and_compressed_bodies_arrive_in_base64(form: Any) -> None:
    sink, lines = Sink(), b'{"n": 1}\n\n{"n": 2}\nno json\n'
    event = form(base64.b64encode(gzip.compress(lines)).decode(), isBase64Encoded=True)
    event["headers"] |= {"content-type": "application/x-ndjson", "content-encoding": "gzip"}
    event["headers"].pop("Content-Type", None)
    answer = json.loads(gateway(sink).handle(event)["body"])
    assert (answer["accepted"], answer["kept"], answer["verdicts"]) == (2, 1, {"2": "kept:malformed"})
    assert len(sink.raw) == 3


def test_a_body_that_is_not_base64_is_kept_unchanged() -> None:
    sink = Sink()
    answer = gateway(sink).handle(rest("%%% no base64", isBase64Encoded=True))
    assert (answer["statusCode"], json.loads(answer["body"])["kept"]) == (200, 1)
    assert b"%%% no base64" in sink.raw[0]


def test_a_deeply_nested_event_does_not_affect_others() -> None:
    sink = Sink()
    event = rest('{"n": 1}\n' + "[" * 100_000 + '\n{"n": 2}')
    event["headers"]["Content-Type"] = "application/x-ndjson"
    answer = json.loads(gateway(sink).handle(event)["body"])
    assert (answer["accepted"], answer["kept"]) == (2, 1)


def test_a_failing_sink_is_retried_before_the_sender_has_to_retry() -> None:
    sink = Sink(refusing=2)
    assert gateway(sink).handle(rest("{}"))["statusCode"] == 200
    assert len(sink.raw) == 1
    answer = gateway(Sink(refusing=99)).handle(rest("{}"))
    assert (answer["statusCode"], json.loads(answer["body"])["code"]) == (503, "sink")
    assert int(answer["headers"]["retry-after"]) >= 1


def test_keys_and_origins_are_checked_in_a_lambda_too() -> None:
    sink = Sink()
    stranger = rest("{}")
    stranger["headers"]["Authorization"] = "Basic bm9ib2R5Og=="
    assert gateway(sink).handle(stranger)["statusCode"] == 401
    asks = http("", **{"requestContext": {"http": {"method": "OPTIONS", "path": "/v1/batch"}, "stage": "$default"}})
    asks["headers"]["origin"] = "https://play.example.org"
    allowed = gateway(sink).handle(asks)
    assert (allowed["statusCode"], allowed["headers"]["access-control-allow-origin"]) == (
        200,
        "https://play.example.org",
    )
    assert not sink.raw


def test_a_lambda_lands_one_object_per_request() -> None:
    sink = Sink()
    way = LandingDestination(sink=sink, prefix="games/", thresholds=CloseThresholds())
    event = rest('{"n": 1}\n{"n": 2}')
    event["headers"]["Content-Type"] = "application/x-ndjson"
    assert Gateway(SPEC, {"games": way}).handle(event)["statusCode"] == 200
    assert [json.loads(line)["n"] for line in sink.raw] == [1, 2]


def test_the_stage_name_is_removed_from_the_path() -> None:
    staged = http("", rawPath="/prod/v1/events")
    staged["requestContext"]["stage"] = "prod"
    assert parse_head(staged).path == "/v1/events"
    assert (
        parse_head(rest("", multiValueQueryStringParameters={"writeKey": ["a", "b"]})).query == b"writeKey=a&writeKey=b"
    )


class UnavailableVault:
    """A vault that does not answer."""

    def put(self, key: str, data: bytes) -> None:
        raise TransientError("STORAGE_UNREACHABLE", "away")


def private_gateway(sink: Sink, vault: Any, keyring: LocalKeyring, **more: Any) -> Gateway:
    sealer = Sealer(keyring, namespace="players", writer="edge", day_key=lambda day: public_key(bytes(32)))
    strips = {"games": SourceRedactor(Redactor(PRIVACY, bytes(32)), sealer)}
    ways = {"games": RecordDestination(open_sink=lambda: sink)}
    return Gateway(SPEC, ways, redactions=strips, vault=vault, sleep=lambda _seconds: None, **more)


@pytest.mark.parametrize("form", [rest, http])
def test_a_lambda_redacts_events_and_stores_sealed_frames_in_the_vault_first(form: Any, tmp_path: Path) -> None:
    sink, vault, keyring = Sink(), LocalObjects(tmp_path / "vault"), LocalKeyring(tmp_path / "keys")
    answer = private_gateway(sink, vault, keyring).handle(form('{"id": "p1", "email": "canary@example.org"}'))

    assert answer["statusCode"] == 200
    (raw,) = sink.raw
    assert b"canary" not in raw
    assert b'"p1"' not in raw
    assert json.loads(raw)["id"] == token(bytes(32), kind="player", value="p1")
    (key,) = vault.list("sealed/")
    (frame,) = decode_sealed_file(present(vault.get(key)).data)
    unsealer = Unsealer(keyring, day_key=lambda _namespace, _day: bytes(32))
    (identity,) = unsealer.open_identities(frame.payload)
    assert (identity.subject, identity.value) == (json.loads(raw)["id"], "canary@example.org")


def test_nothing_is_delivered_while_the_vault_of_a_lambda_is_unavailable(tmp_path: Path) -> None:
    sink = Sink()
    answer = private_gateway(sink, UnavailableVault(), LocalKeyring(tmp_path)).handle(
        rest('{"id": "p1", "email": "a@example.org"}')
    )

    assert (answer["statusCode"], json.loads(answer["body"])["code"]) == (503, "sink")
    assert not sink.raw


def test_a_lambda_opens_its_keys_from_the_environment_and_reloads_suppressions(tmp_path: Path) -> None:
    lake, sink, now = PeopleLake(tmp_path), Sink(), [0.0]
    fields = SPEC.model_dump(by_alias=True, mode="json")
    fields["sources"]["games"]["pipeline"] = "shop"
    spec = CollectorSpec.model_validate(fields)
    ways = {"games": RecordDestination(open_sink=lambda: sink)}
    objects = lake.namespace.objects
    made = redacting_gateway(spec, lake.catalog, objects, destinations=ways, monotonic=lambda: now[0])

    def sent() -> int:
        return int(json.loads(made.handle(rest('{"name": "order", "player": "ann"}'))["body"])["accepted"])

    assert (sent(), json.loads(sink.raw[0])["player"]) == (1, lake.token("player", "ann"))
    request = receive_request(lake.namespace, lake.token("player", "ann"), received_at=datetime.now(UTC), by="tests")
    lake.advance(may_purge=False)
    assert (sent(), len(sink.raw)) == (1, 2)  # the list is read once a minute
    now[0] += RELOAD_SECONDS
    made.handle(rest('{"name": "order", "player": "ann"}'))
    assert len(sink.raw) == 2, request.request_id


def test_the_log_of_a_lambda_has_no_content_of_rejected_events(caplog: pytest.LogCaptureFixture) -> None:
    class Rejecting(Sink):
        def send(self, events: Sequence[SpooledEvent]) -> list[DeadLetter]:
            return [DeadLetter(event, "too large") for event in events]

    ways = {"games": RecordDestination(open_sink=Rejecting)}
    assert Gateway(SPEC, ways).handle(rest('{"email": "canary@example.org"}'))["statusCode"] == 200
    assert "too large" in caplog.text
    assert "SHA-256" in caplog.text
    assert "canary" not in caplog.text
