"""Redaction in a collector: no personal data in the spool, and no sealed frame is lost on the way to the vault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from collector.drain import VAULT_SOURCE, Drain, RecordDestination
from collector.redaction import SourceRedactor
from collector.segments import FrameKind, encode_frame
from collector.sinks.vault import VaultSink
from collector.spool_folder import SpoolFolder
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import TransientError
from deltaworks.privacy.key_service import Context, DataKey, LocalKeyring, public_key
from deltaworks.privacy.tokens.envelope_encryption import (
    Identity,
    SealedKind,
    Sealer,
    Unsealer,
    decode_sealed_file,
    suppression_digest,
    token,
)
from deltaworks.privacy.tokens.redactor import Redactor
from deltaworks.privacy.tokens.suppression import Suppression
from deltaworks.specs.privacy import PrivacySpec
from deltaworks.testing import present
from tests.unit.collector.request_handler_harness import NOW, HandlerHarness, code, content, declared
from tests.unit.collector.spool_harness import WrittenSpool
from tests.unit.collector.test_drain import MemorySink

KEY = bytes(range(32))
CANARY = "canary7f3a@example.org"
PRIVACY = PrivacySpec.model_validate(
    {
        "namespace": "players",
        "subject": "id",
        "fields": [
            {"path": "id", "action": "token", "as": "player"},
            {"path": "context.traits.email", "action": "vault", "as": "email"},
        ],
        "regulation": {"opt_out": {"when": {"consent": False}}},
    }
)


class UnavailableKeys(LocalKeyring):
    """A key service that does not answer."""

    def new_key(self, context: Context) -> DataKey:
        raise TransientError("KEY_SERVICE_UNREACHABLE", "away")


def source_redactor(keyring: LocalKeyring, suppression: Suppression | None = None) -> SourceRedactor:
    sealer = Sealer(keyring, namespace="players", writer="edge", day_key=lambda day: public_key(bytes(32)))
    return SourceRedactor(Redactor(PRIVACY, KEY, suppression=suppression or Suppression()), sealer)


def batch(*events: Any) -> dict[str, Any]:
    return {"batch": list(events), "context": {"traits": {"email": CANARY}}}


def identities(keyring: LocalKeyring, data: bytes) -> list[Identity]:
    unsealer = Unsealer(keyring, day_key=lambda _namespace, _day: bytes(32))
    frames = [frame for frame in decode_sealed_file(data) if frame.kind == SealedKind.IDENTITIES]
    return [identity for frame in frames for identity in unsealer.open_identities(frame.payload)]


def test_the_canary_of_a_batch_is_sealed_and_nowhere_else(tmp_path: Path) -> None:
    harness = HandlerHarness(strip=source_redactor(LocalKeyring(tmp_path)))
    harness.send(batch({"id": "p-7"}, {"id": "p-8"}))

    ids = [event["id"] for event in harness.events()]
    assert ids == [token(KEY, kind="player", value=name) for name in ("p-7", "p-8")]
    assert harness.events()[0]["context"]["traits"]["email"] == token(KEY, kind="email", value=CANARY)
    assert "canary" not in b"".join([*harness.payloads, *harness.sealed]).decode()
    plain = HandlerHarness()
    plain.send(batch({"id": "p-7"}))
    assert "canary" in b"".join(plain.payloads).decode(), "with stripping off it is there"


def test_suppressed_events_are_dropped_and_counted(tmp_path: Path) -> None:
    erased = suppression_digest(KEY, token(KEY, kind="player", value="p-9"))
    strip = source_redactor(LocalKeyring(tmp_path), Suppression(1, {erased: None}))
    harness = HandlerHarness(strip=strip)
    answer = harness.send({"batch": [{"id": "p-7"}, {"id": "p-8", "consent": False}, {"id": "p-9"}, 3]})

    assert content(answer) == {
        "success": True,
        "accepted": 1,
        "kept": 1,
        "verdicts": {"1": "dropped", "2": "dropped", "3": "kept:malformed"},
    }
    assert len(harness.payloads) == 2
    assert (strip.counts["opted_out"], strip.counts["suppressed"], strip.counts["unreadable"]) == (1, 1, 1)
    strip.suppress(Suppression())
    assert content(harness.send({"batch": [{"id": "p-9"}]}))["accepted"] == 1


def test_without_an_encryption_key_a_request_is_rejected_and_retried(tmp_path: Path) -> None:
    harness = HandlerHarness(strip=source_redactor(UnavailableKeys(tmp_path)))

    assert code(harness.send(batch({"id": "p-7"}))) == (503, "keys")
    assert harness.payloads == []


def test_sealed_frames_are_delivered_from_the_spool_to_the_vault(tmp_path: Path) -> None:
    keyring, vault = LocalKeyring(tmp_path / "keys"), LocalObjects(tmp_path / "vault")
    strip, spool, games = source_redactor(keyring), WrittenSpool(tmp_path / "w0").segment(), MemorySink()
    for number in range(3):
        request = strip.begin_request(int(NOW * 1000))
        request.redact({"id": f"p-{number}", "context": {"traits": {"email": f"{number}{CANARY}"}}})
        sealed = present(request.sealed_payload(f"r{number}"))
        with (spool.path / sorted(path.name for path in spool.path.glob("seg-*"))[-1]).open("ab") as file:
            file.write(encode_frame(spool.next_seq, FrameKind.IDENTITIES, 0, sealed))
        spool.write(2)
        if number == 1:
            spool.segment()
    folder = SpoolFolder.acquire(spool.path)
    ways = {"games": RecordDestination(open_sink=lambda: games)}

    drain = Drain(folder, ways, vault=VaultSink(vault, folder.collector_hex), durable_position=spool.durable)
    drain.start()
    assert drain.stop(timeout_seconds=60)

    assert games.seqs == [1, 2, 3, 4, 5, 6], "sealed frames are no events"
    (key,) = vault.list("sealed/")
    assert key == f"sealed/{folder.collector_hex}/{1:020d}-{5:020d}.dws"
    stored = present(vault.get(key))
    assert [item.value for item in identities(keyring, stored.data)] == [f"{number}{CANARY}" for number in range(3)]
    assert drain.states()[VAULT_SOURCE].objects == 1
    drain.delete_delivered()
    assert len(list(spool.path.glob("seg-*"))) == 1
    again = Drain(folder, ways, vault=VaultSink(vault, folder.collector_hex), durable_position=spool.durable)
    again.start()
    assert again.stop(timeout_seconds=60)
    assert vault.list("sealed/") == [key], "what is delivered is not delivered again"
    folder.close()


class UnavailableVault:
    """A vault that does not answer."""

    def put(self, key: str, data: bytes) -> None:
        raise TransientError("STORAGE_UNREACHABLE", "away")


def test_a_segment_stays_until_the_vault_has_its_sealed_frames(tmp_path: Path) -> None:
    strip, spool, games = source_redactor(LocalKeyring(tmp_path)), WrittenSpool(tmp_path / "w0").segment(), MemorySink()
    request = strip.begin_request(int(NOW * 1000))
    request.redact({"id": "p-7", "context": {"traits": {"email": CANARY}}})
    with next(spool.path.glob("seg-*")).open("ab") as file:
        file.write(encode_frame(spool.next_seq, FrameKind.IDENTITIES, 0, request.sealed_payload("r") or b""))
    spool.write(2)
    spool.segment().write(1)
    folder = SpoolFolder.acquire(spool.path)
    drain = Drain(
        folder,
        {"games": RecordDestination(open_sink=lambda: games)},
        vault=VaultSink(UnavailableVault(), folder.collector_hex),
        durable_position=spool.durable,
    )

    drain.start()
    assert not drain.stop(timeout_seconds=2)

    assert games.seqs == [1, 2, 3]
    assert drain.delete_delivered() == 0
    assert len(list(spool.path.glob("seg-*"))) == 2
    assert "canary" not in b"".join(path.read_bytes() for path in spool.path.glob("seg-*")).decode("latin-1")
    folder.close()


def test_an_unreadable_body_is_encrypted_with_the_key_of_its_day(tmp_path: Path) -> None:
    harness = HandlerHarness(strip=source_redactor(LocalKeyring(tmp_path)))
    harness.send('{"batch":[{"email":"' + CANARY)

    (sealed,) = harness.sealed
    ((kind, _),) = json.loads(sealed)
    assert kind == SealedKind.UNREADABLE
    assert "canary" not in b"".join([*harness.payloads, sealed]).decode()


@pytest.mark.parametrize("field", ["messageId", "timestamp", "name"])
def test_headers_and_addresses_are_not_stored(tmp_path: Path, field: str) -> None:
    harness = HandlerHarness(strip=source_redactor(LocalKeyring(tmp_path)))
    harness.send({"batch": [{"id": "p-7", field: "x"}]}, f"/v1/batch?who={CANARY}", referer=CANARY, user_agent=CANARY)

    assert b"canary" not in b"".join(harness.payloads)
    assert b"203.0.113.77" not in b"".join(harness.payloads)


HOSTILE = {
    "infinite and large numbers": '{"id":"p","a":1e999,"b":123456789012345678901234567890}',
    "an infinite number": '{"id":"p","a":1e999}',
    "an infinite number with zeros": '{"id":"p","a":-1E+000309}',
    "an infinite number of digits": '{"id":"p","a":' + "9" * 400 + ".0}",
    "an infinite number of digits and an exponent": '{"id":"p","a":' + "9" * 250 + "e99}",
    "half a surrogate pair": '{"id":"\\ud800","context":{"traits":{"email":"\\udfff"}}}',
    "half a surrogate pair as a name": '{"\\ud800":{"\\udc00":1e999},"id":"p"}',
    "deep nesting": '{"id":"p","a":' + "[" * 900 + "]" * 900 + "}",
    "deep objects": '{"id":"p","a":' + '{"a":' * 300 + "1" + "}" * 300 + "}",
    "many digits": '{"id":"p","a":' + "1" * 4_000 + "}",
    "too many digits": '{"id":"p","a":' + "1" * 5_000 + "}",
    "an id that is a list": '{"id":[{"id":[1e400]}]}',
}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("wrap", ["none", "api_gateway"])
def test_one_hostile_event_does_not_reject_its_batch(kind: str, wrap: str, tmp_path: Path) -> None:
    harness = HandlerHarness(declared({"wrap": wrap}), strip=source_redactor(LocalKeyring(tmp_path)))

    answer = harness.send('{"batch":[{"id":"p-1"},' + HOSTILE[kind] + ',{"id":"p-2"}]}')

    assert answer.status == 200
    assert len(harness.payloads) == 3
    stored = harness.payloads[1]
    if b"raw_sha256" in stored:
        assert content(answer)["verdicts"] == {"1": "kept:malformed"}
        assert b'\\"kept\\":\\"malformed\\"' in stored or b'"kept":"malformed"' in stored
        assert harness.sealed, "only its sealed copy is stored"
    else:
        assert content(answer)["kept"] == 0
        assert b"Infinity" not in stored


def test_a_number_beyond_floating_point_is_never_stored_as_null(tmp_path: Path) -> None:
    harness = HandlerHarness(strip=source_redactor(LocalKeyring(tmp_path)))
    harness.send('{"batch":[{"id":"p","a":1e999},{"id":"q"}],"context":{"a":2e400}}')

    assert [b"raw_sha256" in stored for stored in harness.payloads] == [True, True]
    assert not any(b"null" in stored for stored in harness.payloads)
