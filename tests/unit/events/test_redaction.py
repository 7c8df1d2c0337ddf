"""Redaction in the parser: no personal data in columns, reasons or raw values, for any payload."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.redaction import SourceRedactor
from deltaworks.control.objects import LocalObjects, ObjectStore, open_objects
from deltaworks.errors import ConfigError
from deltaworks.events import redaction_keys
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.events.redaction import RedactionKeys
from deltaworks.events.redaction_keys import export_to_vault, load_redaction_keys
from deltaworks.privacy import paths
from deltaworks.privacy.key_service import LocalKeyring, public_key
from deltaworks.privacy.stored_keys import unreadable_day_key
from deltaworks.privacy.tokens.envelope_encryption import (
    SealedKind,
    Sealer,
    Unsealer,
    decode_sealed_file,
    suppression_digest,
    token,
)
from deltaworks.privacy.tokens.redactor import Redactor
from deltaworks.privacy.tokens.suppression import Suppression, SuppressionRecord
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.testing import declare_columns, declare_pipeline, local_storage, present, rows_by_table
from tests.unit.collector.request_handler_harness import HandlerHarness, declared

CANARY = "canary7f3a@example.org"
KEY = bytes(range(32))
STAMP = BatchMetadata(batch_id=1, ingested_at_us=1_795_435_200_000_000, fingerprint="fp")
PRIVACY: dict[str, Any] = {
    "namespace": "players",
    "subject": "p.id",
    "fields": [
        {"path": "p.id", "action": "token", "as": "player"},
        {"path": "p.email", "action": "vault", "as": "email"},
        {"path": "p.friends[].name", "action": "drop"},
    ],
    "regulation": {"opt_out": {"when": {"consent": False}}},
}


def spec_of(*, unwrap: bool = False, source: dict[str, Any] | None = None, **privacy: Any) -> PipelineSpec:
    columns = declare_columns(
        "player_id string from p.id required",
        "email string from p.email",
        "level int from p.level",
        "friends array<struct<name: string, level: int>> from p.friends",
    )
    return PipelineSpec.model_validate(
        declare_pipeline(
            {"name": "plays", "catch_all": True, "columns": columns, "evolve": "rescue"},
            source=source or {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"},
            event={"name": {"constant": "play"}, "time": {"path": "at", "unit": "epoch_seconds"}},
            privacy=PRIVACY | privacy,
        )
        | ({"unwrap": {"path": "body"}} if unwrap else {})
    )


def parsed(spec: PipelineSpec, *data: bytes, keys: RedactionKeys | None = None) -> tuple[dict[str, list[Any]], Parser]:
    # However few the bytes are: what could be decoded into slots would be.
    parser = Parser(spec, redaction_keys=keys or RedactionKeys(KEY), columnar_from_bytes=0)
    return rows_by_table(parser.parse([Payload(seq, "key", body) for seq, body in enumerate(data)], STAMP)), parser


def event(**params: Any) -> dict[str, Any]:
    return {"at": 1_795_435_200, "p": {"id": "p-7", "email": CANARY, **params}}


def said(rows: dict[str, list[Any]], parser: Parser) -> str:
    """Everything that leaves the parser, but for what is sealed."""
    record = {name: value for name, value in parser.findings.as_record().items() if name != "sealed"}
    return repr(rows) + repr(record) + repr(parser.findings.ledger_entry())


def test_a_parser_without_keys_rejects_personal_data() -> None:
    with pytest.raises(ConfigError) as refused:
        Parser(spec_of())

    assert refused.value.condition == "REDACTION_KEYS_MISSING"


def test_columnar_events_are_redacted_too() -> None:
    body = b"\n".join(json.dumps({"at": 1_795_435_200, "p": {"id": "p-7", "email": CANARY}}).encode() for _ in range(9))
    rows, parser = parsed(spec_of(), body)

    assert parser.columnar_count == 9
    assert {row["player_id"] for row in rows["plays"]} == {token(KEY, kind="player", value="p-7")}
    assert "canary" not in said(rows, parser)


def test_columns_contain_tokens_and_undeclared_fields_are_redacted() -> None:
    friends = [{"name": CANARY, "level": 2}]
    body = json.dumps(event(friends=friends, other={"id": 1.10}, note=12345678901234567890123)).encode()
    rows, parser = parsed(spec_of(), body)

    (row,) = rows["plays"]
    assert row["player_id"] == token(KEY, kind="player", value="p-7")
    assert row["email"] == token(KEY, kind="email", value=CANARY)
    assert row["friends"] == [{"name": None, "level": 2}]
    assert "12345678901234567890123" in row["_rescued"]
    assert "canary" not in said(rows, parser)


BROKEN = [
    b'{"at":1795435200,"p":{"email":"' + CANARY.encode(),
    b'["' + CANARY.encode() + b'"]',
    b'"' + CANARY.encode() + b'"',
    b"\xff" + CANARY.encode(),
    json.dumps(event(level=CANARY[:6]) | {"p": {"id": "p-7", "email": CANARY, "level": "x"}}).encode(),
    json.dumps({"p": {"id": "p-7", "email": CANARY}}).encode(),
    json.dumps({"at": 1_795_435_200, "p": {"email": CANARY}}).encode(),
    json.dumps({"at": 1_795_435_200, "p": json.dumps({"email": CANARY})}).encode(),
    json.dumps({"at": 1_795_435_200, "p": [{"id": "p-7", "email": CANARY}]}).encode(),
]


@pytest.mark.parametrize("body", BROKEN)
@pytest.mark.parametrize("unwrap", [False, True])
def test_no_canary_leaves_the_parser_for_any_payload(body: bytes, unwrap: bool) -> None:
    wrapped = body
    if unwrap:
        text = body.decode("latin-1")
        identity = {"requestContext": {"identity": {"sourceIp": CANARY}}}
        wrapped = json.dumps({"body": text, **identity}).encode()
    rows, parser = parsed(spec_of(unwrap=unwrap), wrapped)

    assert "canary" not in said(rows, parser)
    plain = spec_of(unwrap=unwrap).model_copy(update={"privacy": None})
    unstripped = [part.to_pylist() for _, part in Parser(plain).parse([Payload(0, "key", wrapped)], STAMP)]
    assert "canary" in repr(unstripped), "the canary is found where nothing is stripped"


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_no_canary_leaves_the_parser_for_any_bytes(before: bytes, behind: bytes) -> None:
    rows, parser = parsed(spec_of(), before + CANARY.encode() + behind)

    assert "canary" not in said(rows, parser)


def test_quarantine_has_the_redacted_event_which_can_be_replayed() -> None:
    spec = spec_of(unwrap=True)
    body = json.dumps({"body": event(level="x", price=1.10), "requestContext": {"ip": CANARY}}).encode()
    rows, _ = parsed(spec, body)

    (row,) = rows["quarantine"]
    assert row["raw_complete"]
    assert row["raw_bytes"] == len(row["raw"])
    assert json.loads(row["raw"])["body"]["p"]["id"] == token(KEY, kind="player", value="p-7")
    again, parser = parsed(spec, row["raw"].encode())
    assert again["quarantine"][0]["raw"] == row["raw"]
    assert parser.redaction.redact_raw(body) == (row["raw"].encode(), row["raw_bytes"])


def test_unreadable_bodies_are_sealed_and_quarantine_has_length_digest_and_reason(tmp_path: Path) -> None:
    spec, lake = spec_of(), local_storage(tmp_path / "lake")
    keys = load_redaction_keys(spec, lake, seal_for_batch="g000000-000000000001")
    rows, parser = parsed(spec, BROKEN[0], json.dumps(event()).encode(), keys=keys)
    (row,) = rows["quarantine"]
    key = export_to_vault(spec, lake, parser.findings.sealed_frames, name="g000000-000000000001")

    assert (row["raw"], row["raw_bytes"], row["raw_complete"]) == ("", len(BROKEN[0]), False)
    assert "sha256" in row["reasons"][0]["detail"]
    assert key is not None
    vault, service = LocalObjects(tmp_path / "lake-vault"), LocalKeyring(tmp_path / "lake-keyring")
    stored = present(vault.get(key))
    assert b"canary" not in stored.data
    unsealer = Unsealer(service, day_key=lambda space, day: unreadable_day_key(service, vault, space, day))
    frames = {frame.kind: frame.payload for frame in decode_sealed_file(stored.data)}
    assert unsealer.open_unreadable(frames[SealedKind.UNREADABLE]) == BROKEN[0]
    (identity,) = unsealer.open_identities(frames[SealedKind.IDENTITIES])
    assert (identity.kind, identity.value, identity.token) == ("email", CANARY, rows["plays"][0]["email"])
    assert identity.subject == rows["plays"][0]["player_id"]


def test_a_parse_that_seals_nothing_needs_no_vault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, lake = spec_of(), local_storage(tmp_path / "lake")
    opened: list[str] = []

    def noted(storage: StorageSpec) -> ObjectStore:
        opened.append(storage.root)
        return open_objects(storage)

    monkeypatch.setattr(redaction_keys, "open_objects", noted)

    load_redaction_keys(spec, lake)
    assert opened == [lake.root]
    load_redaction_keys(spec, lake, seal_for_batch="g000000-000000000001")
    assert opened == [lake.root, f"{lake.root}-vault"]


def test_identities_of_a_pipeline_without_personal_data_raise(tmp_path: Path) -> None:
    spec = spec_of().model_copy(update={"privacy": None})

    with pytest.raises(ValueError, match="declares no personal data"):
        export_to_vault(spec, local_storage(tmp_path / "lake"), [(0, b"sealed")], name="batch")


def test_events_of_an_erased_subject_are_dropped_and_counted(tmp_path: Path) -> None:
    spec, lake = spec_of(), local_storage(tmp_path / "lake")
    first = present(load_redaction_keys(spec, lake))
    erased = token(first.token_key, kind="player", value="p-7")
    record = SuppressionRecord(
        namespace="players",
        number=1,
        request_id="r1",
        created_at="2026-11-23T00:00:00+00:00",
        digests=(suppression_digest(first.token_key, erased),),
    )
    LocalObjects(tmp_path / "lake").put(paths.suppression_record_key("players", 1), record.encode())
    keys = present(load_redaction_keys(spec, lake))
    bodies = [json.dumps(event(**more)).encode() for more in ({}, {"level": "x"}, {"id": erased}, {"id": "p-8"})]

    rows, parser = parsed(spec, *bodies, keys=keys)

    assert [row["_seq"] for row in rows["plays"]] == [3]
    assert "quarantine" not in rows
    assert parser.findings.ledger_entry()["privacy"]["suppressed"] == 3
    assert keys.suppression.number == 1
    without, _ = parsed(spec, *bodies, keys=RedactionKeys(keys.token_key, Suppression()))
    assert len(without["plays"]) == 3, "with the list left out they land"


def test_an_opt_out_is_counted_and_dropped() -> None:
    rows, parser = parsed(spec_of(), json.dumps(event() | {"consent": False}).encode())

    assert rows == {}
    assert parser.findings.ledger_entry()["privacy"] == {"opted_out": 1}


def test_an_event_has_the_same_token_in_collector_kafka_file_and_reprocess(tmp_path: Path) -> None:
    kafka = spec_of(source={"kind": "kafka", "bootstrap_servers": "b:1", "topics": ["t"], "format": "json"})
    sealer = Sealer(
        LocalKeyring(tmp_path), namespace="players", writer="edge", day_key=lambda day: public_key(bytes(32))
    )
    privacy = spec_of().privacy
    assert privacy is not None
    stage = HandlerHarness(declared(), strip=SourceRedactor(Redactor(privacy, KEY), sealer))
    stage.send({"batch": [event()]}, "/v1/batch")
    (landed,) = [payload for payload in stage.payloads if payload.startswith(b'{"_collector"')]

    tokens = []
    for spec, body in (
        (spec_of(), json.dumps(event()).encode()),
        (spec_of(), landed),
        (kafka, json.dumps(event()).encode()),
    ):
        for _ in range(2):
            rows, parser = parsed(spec, body)
            tokens.append((rows["plays"][0]["player_id"], rows["plays"][0]["email"]))
            assert "canary" not in said(rows, parser)
    assert len(set(tokens)) == 1
    other, _ = parsed(spec_of(), json.dumps(event()).encode(), keys=RedactionKeys(bytes(32)))
    assert other["plays"][0]["player_id"] not in tokens[0], "another key has other tokens"
    assert len(stage.sealed) == 1
    for kept in (*stage.payloads, *stage.sealed):
        assert CANARY.encode() not in kept
        assert base64.b64encode(CANARY.encode())[:20] not in kept


def test_quarantine_stores_no_key_and_headers_of_a_record() -> None:
    kafka = spec_of(source={"kind": "kafka", "bootstrap_servers": "b:1", "topics": ["t"], "format": "json"})
    parser = Parser(kafka, redaction_keys=RedactionKeys(KEY))
    record = {"topic": "t", "partition": 0, "offset": 7, "key": CANARY, "headers": {"who": CANARY}}
    payload = Payload(0, "t/0/7", json.dumps(event(level="x")).encode(), record=record)

    rows = {name: part.to_pylist() for name, part in parser.parse([payload], STAMP)}

    assert json.loads(rows["quarantine"][0]["record"]) == {"topic": "t", "partition": 0, "offset": 7}
    assert "canary" not in said(rows, parser)
