"""Columnar redaction gives the same rows, findings and identities as the row parser."""

from __future__ import annotations

import copy
import gzip
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaworks.events.chunks import Payload
from deltaworks.events.collector_sequence_numbers import CollectorSequenceNumbers
from deltaworks.events.columnar_redaction import EventTypeRedactor
from deltaworks.events.parse import Parser
from deltaworks.events.redaction import RedactionKeys, SealKeys
from deltaworks.privacy.key_service import DataKey, decapsulate_key, public_key
from deltaworks.privacy.tokens.envelope_encryption import (
    Identity,
    SealedKind,
    SealedPayload,
    derive_day_key,
    suppression_digest,
    token,
    unseal_bytes,
)
from deltaworks.privacy.tokens.redactor import Scanner
from deltaworks.privacy.tokens.suppression import Suppression
from deltaworks.specs.catalog import project_root
from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.privacy import PrivacySpec
from tests.examples import examples
from tests.shared_data import SHARED_DATA
from tests.unit.events.spoilt_events import VALUES, with_value
from tests.unit.events.test_columnar import (
    COLUMNS,
    EVENTS,
    LOGINS,
    NOW,
    ORDERS,
    PATHS,
    STAMP,
    Outcome,
    declared,
    differences,
    games_objects,
    good_event,
    numbered,
    outcome,
    payloads_of,
    spoilt_games,
)

EDITS = SHARED_DATA / "wikipedia_edits" / "wikiticker-2015-09-12-sampled.json.gz"
KEY = bytes(range(32))
SEAL_KEY, DAY_KEY = bytes(range(32, 64)), bytes(range(64, 96))
DEVICES = ("ios", "android", "web")
PROCESSES = ("0123456789abcdef" * 2, "f" * 32)
FIELDS: dict[str, dict[str, Any]] = {
    "device": {"path": "device", "action": "token", "as": "device"},
    "tags": {"path": "tags[]", "action": "token", "as": "tag"},
    "blob": {"path": "params.blob", "action": "vault", "as": "blob"},
    "names": {"path": "params.deep.place.names[]", "action": "vault", "as": "device"},
    "x": {"path": "params.deep.place.x", "action": "drop"},
    "ip": {"path": "_collector.ip", "action": "truncate_ip"},
    "email": {"path": "params.email", "action": "vault", "as": "email"},
    "friends": {"path": "friends[].name", "action": "token", "as": "device"},
    "more": {"path": "more[].deep.who", "action": "drop"},
    "level": {"path": "params.level", "action": "drop"},
    "id": {"path": "id", "action": "token", "as": "player"},
}
OPT_OUT = {"opt_out": {"when": {"consent.ads": False}}}
CHILD = {"child": {"when": {"params.age": ["under_13", 12]}, "drop": ["params.email"]}}
SCAN = {"email": "count", "phone": "count"}
LOUD = ("ada@example.org", "call +49 30 901820", "0049 30\\/901820", "a\\u0040example.org", "plain 2024-05-01")


def private(spec: PipelineSpec, *fields: str, **more: Any) -> PipelineSpec:
    declared_privacy = {"namespace": "players", "fields": [FIELDS[name] for name in fields or FIELDS], **more}
    return spec.model_copy(update={"privacy": PrivacySpec.model_validate(declared_privacy)})


def redaction_keys(*erased: str) -> RedactionKeys:
    data_key = DataKey(SEAL_KEY, b"wrapped", "key")
    seal = SealKeys("players", "shop", "g000000-000000000001", data_key, "2026-11-23", public_key(DAY_KEY))
    digests = {suppression_digest(KEY, one): None for one in erased}
    return RedactionKeys(KEY, Suppression(len(digests), digests), seal)


def sealed_in(frames: Sequence[Sequence[Any]]) -> tuple[set[Identity], set[bytes]]:
    """What the vault is told: identities, and bodies that could not be read."""
    identities: set[Identity] = set()
    bodies: set[bytes] = set()
    for kind, payload in frames:
        frame = SealedPayload.decode(payload)
        key = SEAL_KEY if kind == SealedKind.IDENTITIES else decapsulate_key(DAY_KEY, frame.wrapped)
        plain = unseal_bytes(key, frame.blob, frame.additional_data)
        if kind == SealedKind.IDENTITIES:
            new = [Identity(*item) for item in json.loads(plain)]
            assert len({one._replace(at_ms=0) for one in new} - identities) == len(new), "one is sealed twice"
            identities.update(new)
        else:
            bodies.add(plain)
    return identities, bodies


def read(
    spec: PipelineSpec, payloads: Sequence[Payload], keys: RedactionKeys, **how: Any
) -> tuple[Outcome, Any, Parser]:
    parser = Parser(spec, redaction_keys=keys, **how)
    # What a record says of itself is stripped in place.
    tables, findings = outcome(parser, copy.deepcopy(payloads))
    findings.pop("sealed")
    return (tables, findings), sealed_in(parser.findings.sealed_frames), parser


def assert_equal_to_row_parser(
    spec: PipelineSpec, payloads: Sequence[Payload], chunk_events: int = 20_000, erased: Sequence[str] = ()
) -> Parser:
    """Read both ways; the parser that decoded."""
    keys = redaction_keys(*erased)
    by_rows, sealed_by_rows, _ = read(spec, payloads, keys, columnar_from_bytes=None, chunk_events=chunk_events)
    by_columns, sealed, parser = read(spec, payloads, keys, columnar_from_bytes=0, chunk_events=chunk_events)
    assert differences(by_rows, by_columns) == []
    assert sealed == sealed_by_rows
    return parser


def personal_event(rng: Random) -> dict[str, Any]:
    """An event with persons in it, some of them children, some of whom refuse."""
    event = good_event(rng)
    event["device"] = rng.choice([*DEVICES, token(KEY, kind="device", value="ios"), "", None])
    if rng.random() < 0.3:
        event["params"]["email"] = rng.choice(["Ada@example.org", "ada@example.org ", "bob@example.org"])
    if rng.random() < 0.2:
        event["friends"] = [{"name": rng.choice(DEVICES), "level": 2}, rng.choice(["ada", 7, None, ["x"]])]
    if rng.random() < 0.2:
        event["_collector"] = {"ip": rng.choice(["203.0.113.77", "2002:cb00:714d::1", "none"])}
        event["_collector"] |= {"v": 1, "seq": rng.randrange(5_000), "collector": rng.choice(PROCESSES)}
    if rng.random() < 0.2:
        event["consent"] = {"ads": rng.choice([True, False, 0])}
    if rng.random() < 0.1:
        event["params"]["age"] = rng.choice(["under_13", 12, 12.0, "13_15"])
    if rng.random() < 0.1:
        event["note"] = rng.choice(LOUD)
    return event


def personal_payloads(rng: Random, count: int, share: float, *, wrap: bool, record: bool = False) -> list[Payload]:
    """Payloads that came in at different times and in no order of theirs."""
    texts = [json.dumps(personal_event(rng)) for _ in range(count)]
    if wrap:
        texts = [json.dumps({"path": "/v1", "body": text}) for text in texts]
    bodies = [text.encode() for text in texts]
    spoilt = payloads_of(rng, max(1, int(count * share)), 1.0, wrap=wrap) if share else []
    cuts = sorted({0, count, *(rng.randrange(count + 1) for _ in range(6))})
    data = [b"\n".join(bodies[start:end]) for start, end in pairwise(cuts)] + [one.data or b"" for one in spoilt]
    at = [STAMP.ingested_at_us + rng.randrange(-3, 3) * 86_400_000_000 for _ in data]
    record_of: Mapping[str, Any] = {"topic": "t", "offset": 7, "headers": {"who": rng.choice(["", "ada@example.org"])}}
    return [
        Payload(seq, f"k/{seq}", body, arrived_at_us=at_us, record=record_of if record else None)
        for seq, (body, at_us) in enumerate(zip(data, at, strict=True), 1)
    ]


KAFKA = {"kind": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["orders"]}
RESCUING = declared(EVENTS | {"evolve": "rescue", "columns": COLUMNS}, ORDERS | {"evolve": "rescue"}, LOGINS)
ALL = {"subject": ["device", "params.email"], "regulation": OPT_OUT | CHILD, "scan": SCAN}
ONE = ORDERS | {"catch_all": True, "when": {}}
SOME = ("device", "tags", "blob", "names", "ip", "email", "friends", "more")
#: Pipelines with personal data of which some events have slots.
DECODED = {
    "tokens": private(declared(), "device", "id", subject="device"),
    "everything": private(declared(), *SOME, **ALL),
    "wrapped": private(declared(unwrap={"path": "body"}), *SOME, **ALL),
    "rescue": private(RESCUING, *SOME, **ALL),
    "add columns": private(declared(EVENTS, ORDERS | {"evolve": "add_columns"}, LOGINS), *SOME, **ALL),
    "dropped texts": private(declared(), *SOME, **ALL | {"scan": {"email": "drop", "phone": "drop"}}),
    "dropped": private(declared(), "x", "more", "email", "level"),
    "lasting children": private(
        declared(), *SOME, **ALL | {"regulation": {"child": CHILD["child"] | {"tokens": "permanent", "vault": True}}}
    ),
    "children drop what lies around": private(
        declared(), "email", "names", regulation={"child": CHILD["child"] | {"drop": ["params", "params.email"]}}
    ),
    "records": private(declared(source=KAFKA), *SOME, **ALL),
    "records, dropped texts": private(declared(source=KAFKA), *SOME, **ALL | {"scan": {"email": "drop"}}),
    "ages": private(declared(event={"time": {"path": "time", "unit": "epoch_seconds", "max_age_days": 30}}), **ALL),
    "one name": private(
        declared(ORDERS | {"catch_all": True, "when": {}}, event={"name": {"constant": "order"}}), **ALL
    ),
    "a name decides": private(declared(), "device", regulation={"opt_out": {"when": {"name": "refund"}}}),
}


@pytest.mark.parametrize("branch", DECODED)
def test_every_columnar_redaction_equals_the_row_parser(branch: str) -> None:
    spec = DECODED[branch]
    rng = Random(branch)
    for count, share, chunk_events in ((300, 0.0, 20_000), (200, 0.3, 97)):
        payloads = personal_payloads(rng, count, share, wrap=spec.unwrap is not None, record="records" in branch)
        parser = assert_equal_to_row_parser(
            spec, payloads, chunk_events, erased=[token(KEY, kind="device", value="web")]
        )
        assert parser.row_parser_reason is None
        assert parser.columnar_count > 0, parser.row_parser_reasons


def test_sequence_numbers_of_dropped_events_are_recorded_by_both_parsers() -> None:
    spec, erased = DECODED["everything"], token(KEY, kind="device", value="web")
    process = PROCESSES[0]
    events = [good_event(Random(6)) | {"device": "ios", "consent": {"ads": True}} for _ in range(60)]
    for seq, event in enumerate(events):
        event["_collector"] = {"v": 1, "seq": seq, "collector": process}
    for seq in (3, 4, 5, 20):
        events[seq]["consent"] = {"ads": False}
    events[30]["device"] = "web"
    lines = [json.dumps(event, separators=(",", ":")) for event in events]
    # Of another person's tag, in quarantine for its time: its number is in `raw`; that of an erased one is not.
    lines += [
        json.dumps({"_collector": {"v": 1, "seq": 60 + place, "collector": process}, "name": "order", "device": device})
        for place, device in enumerate(("ios", "web"))
    ]
    wanted = CollectorSequenceNumbers()
    for seq in (3, 4, 5, 20, 30, 61):
        wanted.add(process, seq)

    parser = assert_equal_to_row_parser(spec, [Payload(1, "k", "\n".join(lines).encode())], erased=[erased])

    assert parser.columnar_count > 50
    assert parser.findings.dropped_sequence_numbers == wanted
    assert parser.findings.ledger_entry()["dropped_sequence_numbers"] == wanted.encode()


def test_most_valid_events_are_redacted_columnar() -> None:
    payloads = personal_payloads(Random(1), 600, 0.0, wrap=False)
    parser = assert_equal_to_row_parser(DECODED["everything"], payloads)

    counts = parser.findings.ledger_entry()["privacy"]
    assert counts.keys() == {"tokens", "child", "opted_out", "scan_email", "scan_phone"}
    assert parser.columnar_count > 0.9 * parser.findings.events


def test_each_value_in_each_personal_field_equals_the_row_parser() -> None:
    event = personal_event(Random(2)) | {"name": "order", "id": "a"}
    paths = [*PATHS, ("consent", "ads"), ("consent",), ("params", "age"), ("params", "email"), ("_collector", "ip")]
    paths += [("_collector",), ("friends",), ("more",), ("params", "deep", "place", "names"), ("params", "deep")]
    texts = [with_value(event, path, value) for path in paths for value in VALUES]
    texts += [with_value(event, path, value, twice=True) for path in paths for value in ("null", "1", '"a"', "[]")]
    raw = "\n".join(texts).encode("utf-8", "surrogatepass")

    parser = assert_equal_to_row_parser(DECODED["everything"], [Payload(1, "k", raw)])

    assert parser.columnar_count > len(paths) * 10


def shipped(name: str, **more: Any) -> PipelineSpec:
    spec = load_spec(PipelineSpec, project_root() / "include" / "pipelines" / name / "pipeline.yaml")
    assert spec.privacy is not None
    return spec.model_copy(update=more)


@pytest.mark.parametrize(("kind", "chunk_events"), [("clean", 20_000), ("faulty", 97), ("spoilt", 997)])
def test_redacted_game_events_give_the_same_rows(kind: str, chunk_events: int) -> None:
    objects = games_objects(900, faults=kind == "faulty")
    if kind == "spoilt":
        objects = spoilt_games(objects, 0.05, Random(3), [])

    parser = assert_equal_to_row_parser(shipped("games"), numbered(objects), chunk_events)

    assert parser.columnar_count > 0.7 * parser.findings.events


def test_redacted_edits_give_the_same_rows() -> None:
    if not EDITS.is_file():
        pytest.skip(f"no edits at {EDITS}; name their folder in DELTAWORKS_SHARED_DATA")
    with gzip.open(EDITS) as stream:
        lines = [line.strip() for line in islice(stream, 2_000)]

    parser = assert_equal_to_row_parser(shipped("edits"), [Payload(1, "k", b"\n".join(lines))])

    assert parser.columnar_count > 0.9 * parser.findings.events


def test_lookups_and_masks_use_the_row_parser() -> None:
    masked = shipped("video_qos", enrich=())
    event = {
        "type": "play",
        "received_at": "2026-11-23T10:00:00Z",
        "event_id": "a",
        "ip": "203.0.113.7",
        "user_id": "u",
    }
    raw = "\n".join(json.dumps(event | {"event_id": str(number)}) for number in range(50)).encode()

    parser = assert_equal_to_row_parser(masked, [Payload(1, "k", raw)])

    assert parser.row_parser_reason == "fields are looked up or masked in the events"


CONTACTS = [{"name": name, "path": name, "type": "string"} for name in ("org_id", "contact", "title")]


def test_redacted_contacts_in_two_columns_give_the_same_rows() -> None:
    columns = [*CONTACTS, {"name": "first_contact", "path": "contact", "type": "string", "required": True}]
    orders = ORDERS | {"columns": columns, "partition_by": ["org_id"]}
    privacy = {
        "namespace": "contacts",
        "subject": "contact",
        "fields": [
            {"path": "contact", "action": "token", "as": "contact"},
            {"path": "title", "action": "vault", "as": "name"},
        ],
    }
    spec = declared(EVENTS, orders, LOGINS).model_copy(update={"privacy": PrivacySpec.model_validate(privacy)})
    events = [
        {
            "name": "order",
            "time": NOW - row,
            "id": str(row),
            "org_id": "o",
            "contact": f"c{row % 9}",
            "title": "T",
        }
        for row in range(300)
    ]

    parser = assert_equal_to_row_parser(spec, [Payload(1, "k", "\n".join(map(json.dumps, events)).encode())])

    assert parser.columnar_count == 300


@st.composite
def declarations(draw: st.DrawFn) -> PipelineSpec:
    fields = draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, unique=True))
    subjects = [FIELDS[name]["path"] for name in fields if name in ("device", "id", "email")]
    regulation: dict[str, Any] = {}
    for name, rule in (OPT_OUT | CHILD).items():
        if draw(st.booleans()):
            regulation[name] = rule
    if "child" in regulation and draw(st.booleans()):
        drop = draw(st.lists(st.sampled_from(["params.email", "params", "tags", "friends", "_collector.ip", "device"])))
        regulation["child"] = regulation["child"] | {"drop": drop, "vault": draw(st.booleans())}
    scan = draw(st.sampled_from([{}, SCAN, {"email": "drop"}, {"phone": "drop", "email": "count"}]))
    subject = draw(st.lists(st.sampled_from(subjects), unique=True)) if subjects else []
    evolve = draw(st.sampled_from(["ignore", "rescue", "add_columns"]))
    orders = ORDERS | {"evolve": evolve, "columns": draw(st.sampled_from([COLUMNS, COLUMNS[:5]]))}
    spec = declared(EVENTS, orders, LOGINS, event={"id": draw(st.sampled_from(["id", ["id", "device"], []]))})
    return private(spec, *fields, subject=subject, regulation=regulation, scan=scan)


@settings(max_examples=examples(25))
@given(declarations(), st.integers(0, 2**32), st.sampled_from([(60, 0.0), (40, 0.4)]))
def test_both_parsers_redact_any_declaration_equally(spec: PipelineSpec, seed: int, size: tuple[int, float]) -> None:
    rng = Random(seed)
    erased = [token(KEY, kind="device", value="web")] if rng.random() < 0.3 else []

    assert_equal_to_row_parser(spec, personal_payloads(rng, *size, wrap=False), 97, erased=erased)


@pytest.mark.parametrize("branch", DECODED)
@pytest.mark.integration
def test_many_redacted_events_give_the_same_rows(branch: str) -> None:
    spec, rng = DECODED[branch], Random(branch)
    for share in (0.0, 0.1, 1.0):
        payloads = personal_payloads(rng, 3_000, share, wrap=spec.unwrap is not None, record="records" in branch)
        for chunk_events in (97, 1_000, 20_000):
            assert_equal_to_row_parser(spec, payloads, chunk_events, erased=[token(KEY, kind="device", value="web")])


CANARY = "canary7f3a@example.org"


def canaries() -> list[Payload]:
    """A canary as the value of every personal field, in its lists, and in bodies that are broken."""
    rng = Random(5)
    texts = []
    for _ in range(40):
        event = personal_event(rng) | {"name": "order"}
        event |= {"device": CANARY, "tags": [CANARY], "friends": [{"name": CANARY}, CANARY], "more": [CANARY]}
        event |= {"_collector": {"ip": CANARY}, "consent": {}}
        event["params"] |= {"blob": CANARY, "email": CANARY, "age": "13_15"}
        event["params"]["deep"] = {"place": {"x": 1, "at": [], "names": [CANARY]}}
        texts.append(json.dumps(event))
    broken = [texts[0][:-9], texts[1].replace('"order"', "3"), json.dumps([CANARY]), json.dumps({"device": CANARY})]
    records = {"topic": "t", "key": CANARY, "headers": {"who": CANARY}}
    return [Payload(1, "k/1", "\n".join([*texts, *broken]).encode(), record=records)]


@pytest.mark.parametrize("branch", ["everything", "rescue", "records", "dropped texts"])
def test_a_canary_in_every_field_appears_only_in_sealed_data(branch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = DECODED[branch]

    def found() -> tuple[bool, int]:
        parser = Parser(spec, redaction_keys=redaction_keys(), columnar_from_bytes=0)
        rows = [part.to_pylist() for _, part in parser.parse(canaries(), STAMP)]
        record = {name: value for name, value in parser.findings.as_record().items() if name != "sealed"}
        identities, _ = sealed_in(parser.findings.sealed_frames)
        assert CANARY in {identity.value for identity in identities}
        said = repr(rows) + repr(record) + repr(parser.findings.ledger_entry())
        return "canary" in said, parser.columnar_count

    assert found()[0] is False
    if branch not in {"rescue", "dropped texts"}:
        assert found()[1] >= 39, "all but what is learned of is stripped in slots"

    def as_sent(self: EventTypeRedactor, values: Any, count: int, **how: Any) -> Any:
        kept = dict(values)
        stripped = strip(self, values, count, **how)
        values.update(kept)
        return stripped

    strip = EventTypeRedactor.redact
    monkeypatch.setattr(EventTypeRedactor, "redact", as_sent)
    if found()[1]:
        assert found()[0] is True, "with stripping in the slots left out it is found"


def test_a_failed_conversion_counts_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = personal_payloads(Random(6), 200, 0.2, wrap=False)
    spec = DECODED["everything"]
    expected, sealed, _ = read(spec, payloads, redaction_keys(), columnar_from_bytes=None)
    parser = Parser(spec, redaction_keys=redaction_keys(), columnar_from_bytes=0)
    landing, raised = parser._converter.accept_rows, []

    def failing(chunk: Any, *rest: Any) -> Any:
        if getattr(chunk, "decoded", None) and not raised:
            raised.append(chunk)
            raise MemoryError
        return landing(chunk, *rest)

    monkeypatch.setattr(parser._converter, "accept_rows", failing)
    tables, findings = outcome(parser, payloads)
    findings.pop("sealed")

    assert raised
    assert differences(expected, (tables, findings)) == []
    assert sealed_in(parser.findings.sealed_frames) == sealed


PIECES = st.sampled_from(
    ["ada@example.org", "+49 30/901820", "0049 30 901820", "00", "+4", "é", "a", " ", "/", "\n", '"', "1"]
)


@given(st.lists(PIECES, max_size=6).map("".join), st.booleans(), st.booleans(), st.sampled_from(["", "/", "@", "+0 "]))
def test_the_bytes_precheck_misses_no_counted_text(text: str, ascii_only: bool, wrap: bool, escape: str) -> None:
    privacy = PrivacySpec.model_validate({"namespace": "n", "fields": [FIELDS["device"]], "scan": SCAN})
    scanner, counts = Scanner(privacy), Counter[str]()
    scanner.scan({"a": text}, counts)
    body = json.dumps({"a": text}, ensure_ascii=ascii_only)
    for character in escape:
        body = body.replace(character, "\\/" if character == "/" else f"\\u{ord(character):04x}")
    body = json.dumps({"body": body}) if wrap else body

    assert scanner.may_contain(body) or not counts
    assert scanner.may_contain(body.encode()) or not counts
    assert not scanner.may_contain(json.dumps({"a": "plain", "n": 17, "at": "2024-05-01T00:00:00.000Z"}))


def test_children_have_tokens_of_their_arrival_day() -> None:
    event = {"name": "order", "time": NOW, "id": "a", "device": "ios", "params": {"age": "under_13"}}
    day_us = 86_400_000_000
    payloads = [Payload(seq, "k", json.dumps(event).encode(), arrived_at_us=seq * day_us) for seq in (1, 2)]
    spec = private(declared(), "device", "email", subject="device", regulation=CHILD)

    (tables, _), (identities, _), parser = read(spec, payloads, redaction_keys(), columnar_from_bytes=0)

    days = ("1970-01-02", "1970-01-03")
    assert tables["orders"]["device"].to_pylist() == [
        token(derive_day_key(KEY, day), kind="device", value="ios") for day in days
    ]
    assert parser.columnar_count == 2
    assert not identities
