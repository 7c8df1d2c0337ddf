"""The redactor, its tokens, truncated addresses and suppression list, compared with a slow reference implementation."""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ContractError
from deltaworks.privacy import paths
from deltaworks.privacy.tokens.envelope_encryption import (
    RANDOM_TOKEN_PREFIX,
    TOKEN_LENGTH,
    Identity,
    derive_day_key,
    is_token,
    normalize,
    suppression_digest,
    token,
)
from deltaworks.privacy.tokens.redactor import RedactionOutcome, RedactionResult, Redactor, truncate_ip
from deltaworks.privacy.tokens.suppression import (
    NO_SUPPRESSION,
    Suppression,
    SuppressionRecord,
    merge_records,
    read_suppression,
)
from deltaworks.specs.privacy import PrivacySpec
from tests.unit.privacy.tokens.reference_redactor import redact_slowly as slowly

KEY = bytes(range(32))
NOW_MS = 1_795_435_200_000
FIELDS: list[tuple[str, str, str | None]] = [
    ("a.b", "token", "player"),
    ("a.c", "vault", "email"),
    ("b", "token", "player"),
    ("c[].a", "vault", "player"),
    ("c[].b.c", "drop", None),
    ("d", "truncate_ip", None),
]


def spec_of(fields: list[tuple[str, str, str | None]] = FIELDS, **more: Any) -> PrivacySpec:
    declared = [{"path": path, "action": action} | ({"as": kind} if kind else {}) for path, action, kind in fields]
    return PrivacySpec.model_validate({"namespace": "players", "fields": declared, **more})


def strip(event: dict[str, Any], **more: Any) -> tuple[RedactionOutcome, dict[str, Any], RedactionResult]:
    walker, noted = Redactor(spec_of(**more), KEY), RedactionResult()
    own = copy.deepcopy(event)
    return walker.redact(own, at_ms=NOW_MS, result=noted), own, noted


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.sampled_from(
        ["", "ada@example.org", "p-7", "203.0.113.77", "2002:cb00:714d::1", "::ffff:203.0.113.77", '{"b":1}']
    )
    | st.just(token(KEY, kind="player", value="p-7"))
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcde"), inner, max_size=4)
)
events = st.dictionaries(st.sampled_from("abcde"), values, max_size=5)


@given(events)
def test_an_event_is_redacted_like_by_the_reference_redactor(event: dict[str, Any]) -> None:
    outcome, own, _ = strip(event)

    assert outcome is RedactionOutcome.KEPT
    assert own == slowly(event, FIELDS, KEY)


@given(events)
def test_redaction_is_idempotent_and_seals_nothing_twice(event: dict[str, Any]) -> None:
    _, once, _ = strip(event)
    _, twice, noted = strip(once)

    assert twice == once
    assert noted.identities == []
    assert noted.counts["tokens"] == 0


@given(events)
def test_nothing_is_added_and_what_is_not_declared_stays(event: dict[str, Any]) -> None:
    _, own, _ = strip(event)

    assert own.keys() <= event.keys()
    assert own.get("e") == event.get("e")


def test_equal_identifiers_of_a_kind_have_equal_tokens_in_all_fields() -> None:
    _, own, _ = strip({"a": {"b": "p-7", "c": "p-7"}, "b": "p-7", "c": [{"a": "p-7"}, {"a": 7}]})

    assert own["a"]["b"] == own["b"] == own["c"][0]["a"] == token(KEY, kind="player", value="p-7")
    assert own["a"]["c"] != own["b"]
    assert own["c"][1]["a"] == token(KEY, kind="player", value="7")


def test_vault_values_are_recorded_with_their_subject_and_tokens_as_links() -> None:
    _, own, noted = strip({"a": {"b": "p-7", "c": "Ada@example.org"}, "c": [{"a": "bob"}]}, subject=["b", "a.b"])
    subject = own["a"]["b"]

    assert noted.identities == [
        Identity(subject, "email", own["a"]["c"], "Ada@example.org", NOW_MS),
        Identity(subject, "player", own["c"][0]["a"], "bob", NOW_MS),
    ]
    _, _, again = strip({"a": {"b": "p-7"}, "c": [{"a": own["c"][0]["a"]}]}, subject=["a.b"])
    assert again.identities == [Identity(subject, "player", own["c"][0]["a"], None, NOW_MS)]


def test_only_events_of_an_erased_subject_are_dropped() -> None:
    ada = token(KEY, kind="player", value="ada")
    suppression = Suppression(1, {suppression_digest(KEY, ada): None})
    walker, noted = Redactor(spec_of(), KEY, suppression=suppression), RedactionResult()

    outcomes = [
        walker.redact(event, at_ms=NOW_MS, result=noted)
        for event in ({"b": "ada"}, {"b": ada}, {"b": "bob"}, {"c": [{"a": "bob"}, {"a": "ada"}]}, {})
    ]

    assert outcomes == [
        RedactionOutcome.SUPPRESSED,
        RedactionOutcome.SUPPRESSED,
        RedactionOutcome.KEPT,
        RedactionOutcome.SUPPRESSED,
        RedactionOutcome.KEPT,
    ]
    assert noted.counts["suppressed"] == 3
    assert not [item for item in noted.identities if item.token == ada]


CHILD = {"child": {"when": {"age": "under_13"}, "drop": ["d"]}}


def test_a_child_has_tokens_of_the_day_and_no_row_in_the_vault() -> None:
    event = {"age": "under_13", "b": "p-7", "a": {"c": "kid@example.org"}, "d": "203.0.113.77"}
    _, own, noted = strip(event, regulation=CHILD, subject=["b"])
    walker = Redactor(spec_of(regulation=CHILD), KEY)
    next_day = copy.deepcopy(event)
    walker.redact(next_day, at_ms=NOW_MS + 86_400_000, result=RedactionResult())

    assert own["b"] == token(derive_day_key(KEY, "2026-11-23"), kind="player", value="p-7")
    assert own["b"] not in (token(KEY, kind="player", value="p-7"), next_day["b"])
    assert "d" not in own
    assert noted.identities == []
    _, grown, of_others = strip({**event, "age": "13_15"}, regulation=CHILD, subject=["b"])
    assert grown["b"] == token(KEY, kind="player", value="p-7")
    assert [item.value for item in of_others.identities] == ["kid@example.org"]


@pytest.mark.parametrize(
    ("consent", "outcome"),
    [(False, RedactionOutcome.OPTED_OUT), (True, RedactionOutcome.KEPT), (0, RedactionOutcome.KEPT)],
)
def test_an_opted_out_event_is_counted_and_dropped(consent: object, outcome: RedactionOutcome) -> None:
    refused = {"opt_out": {"when": {"consent.analytics": False}}}
    result, _, noted = strip({"consent": {"analytics": consent}, "b": "p-7"}, regulation=refused)

    assert result is outcome
    assert noted.counts["opted_out"] == (outcome is RedactionOutcome.OPTED_OUT)
    assert not noted.identities


def test_undeclared_texts_are_scanned() -> None:
    event = {"e": "write to ada@example.org", "a": {"n": ["call +49 30 901820", "plain 2026-11-23 00:00:00"]}}
    _, own, counted = strip(event, scan={"email": "count", "phone": "count"})

    assert own == event
    assert (counted.counts["scan_email"], counted.counts["scan_phone"]) == (1, 1)
    _, own, dropped = strip(event, scan={"email": "drop", "phone": "drop"})
    assert own == {"e": None, "a": {"n": [None, "plain 2026-11-23 00:00:00"]}}
    assert dropped.counts["scan_email_dropped"] == 1


def test_6to4_and_mapped_addresses_are_truncated() -> None:
    written = ["203.0.113.77", "::ffff:203.0.113.77", "2002:cb00:714d::1", "2001:db8:1:2::3", "203.0.113.77, 10.0.0.1"]

    assert [strip({"d": address})[1]["d"] for address in written] == [
        "203.0.113.0",
        "203.0.113.0",
        "2002:cb00:7100::",
        "2001:db8:1::",
        "203.0.113.0",
    ]
    assert not any(is_token(str(strip({"d": address})[1]["d"])) for address in written)


@given(st.binary(min_size=3, max_size=3), st.binary(min_size=32, max_size=32))
def test_a_token_is_the_keyed_digest_of_kind_and_value_each_with_its_length(value: bytes, key: bytes) -> None:
    text = value.hex()
    message = b"\x00\x00\x00\x06player\x00\x00\x00\x06" + text.encode()
    digest = hmac.new(key, message, hashlib.sha256).digest()[:16]

    assert token(key, kind="player", value=text) == "p1_" + base64.b32encode(digest).decode().rstrip("=").lower()


@given(st.text(max_size=50), st.text(alphabet="abcdef_", min_size=1, max_size=9))
@example("\ud800", "player")
def test_a_token_is_29_characters_and_is_recognised(value: str, kind: str) -> None:
    made = token(KEY, kind=kind, value=value)

    assert len(made) == TOKEN_LENGTH
    assert is_token(made)
    assert made == token(KEY, kind=kind, value=value)


def test_other_keys_kinds_and_days_have_other_tokens() -> None:
    tokens = {
        token(KEY, kind="player", value="p-7"),
        token(KEY, kind="device", value="p-7"),
        token(bytes(32), kind="player", value="p-7"),
        token(derive_day_key(KEY, "2026-11-23"), kind="player", value="p-7"),
        token(derive_day_key(KEY, "2026-11-24"), kind="player", value="p-7"),
        token(KEY, kind="playe", value="rp-7"),
    }

    assert len(tokens) == 6


def test_notations_of_an_email_give_one_token() -> None:
    written = {"Ada@Example.org", " ada@example.org ", "ada@example.org", "\uff21da@example.org"}

    assert {normalize("email", text) for text in written} == {"ada@example.org"}
    assert len({token(KEY, kind="player", value=text) for text in written}) == 4


def test_notations_of_a_phone_number_give_one_token() -> None:
    written = {"+49 (30) 901820", "0049-30-901820", "+4930901820"}

    assert {normalize("phone", text) for text in written} == {"+4930901820"}


def test_only_texts_with_the_form_of_a_token_are_tokens() -> None:
    made = token(KEY, kind="player", value="p-7")

    assert is_token(RANDOM_TOKEN_PREFIX + made[3:])
    assert not is_token(made.upper())
    assert not is_token(made + "a")
    assert not is_token(made[:-1] + "1")
    assert not is_token("")


def test_a_suppression_list_reveals_no_token_without_the_key() -> None:
    made = token(KEY, kind="player", value="p-7")

    assert suppression_digest(KEY, made) != suppression_digest(bytes(32), made)
    assert len(suppression_digest(KEY, made)) == 32
    assert made[3:] not in suppression_digest(KEY, made)


@pytest.mark.parametrize(
    ("address", "cut"),
    [
        ("203.0.113.77", "203.0.113.0"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::"),
        ("::ffff:203.0.113.77", "203.0.113.0"),
        ("2002:cb00:714d::1", "2002:cb00:7100::"),
        ("[2001:db8::1]", "2001:db8::"),
        (" 203.0.113.77 ", "203.0.113.0"),
        ("203.0.113.77, 198.51.100.9", "203.0.113.0"),
        ("fe80::1%eth0", "fe80::"),
        ("203.0.113.77:51234", "203.0.113.0"),
        ("203.0.113.77:51234, 198.51.100.9:80", "203.0.113.0"),
        ("[2001:db8::1]:443", "2001:db8::"),
        ("[fe80::1%25eth0]:443", "fe80::"),
        ("[fe80::1%eth0]:443", "fe80::"),
        ("[::ffff:203.0.113.77]:443", "203.0.113.0"),
        ("unknown, 203.0.113.77", None),
        ("203.0.113.77/24", None),
        ("unknown", None),
        ("", None),
    ],
)
def test_an_address_keeps_only_its_network(address: str, cut: str | None) -> None:
    assert truncate_ip(address) == cut


ZERO_KEY = bytes(32)
ADA = token(ZERO_KEY, kind="player", value="ada")
BOB = token(ZERO_KEY, kind="player", value="bob")
MAY_US = 1_777_593_600_000_000  # 2026-05-01


def record(number: int, *tokens: str, until: str | None = None, after: str = "drop") -> SuppressionRecord:
    digests = tuple(suppression_digest(ZERO_KEY, item) for item in tokens)
    return SuppressionRecord(
        namespace="players",
        number=number,
        request_id=f"r{number}",
        created_at="2026-04-01T00:00:00+00:00",
        digests=digests,
        until=until,
        after=after,
    )


@pytest.fixture
def lake(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path)


def put(lake: LocalObjects, *records: SuppressionRecord) -> None:
    for item in records:
        assert lake.put_if_absent(paths.suppression_record_key("players", item.number), item.encode())


def test_a_namespace_without_records_suppresses_no_subject(lake: LocalObjects) -> None:
    assert read_suppression(lake, "players") == NO_SUPPRESSION
    assert not NO_SUPPRESSION.matches(ZERO_KEY, [ADA], at_us=0)


def test_the_list_has_every_record_and_the_highest_number(lake: LocalObjects) -> None:
    put(lake, record(1, ADA), record(2, BOB))

    suppression = read_suppression(lake, "players")

    assert suppression.number == 2
    assert suppression.matches(ZERO_KEY, [ADA], at_us=MAY_US)
    assert suppression.matches(ZERO_KEY, ["p1_none", BOB], at_us=MAY_US)
    assert not suppression.matches(ZERO_KEY, [token(ZERO_KEY, kind="player", value="eve")], at_us=MAY_US)
    assert not suppression.matches(bytes(31) + b"1", [ADA], at_us=MAY_US)


def test_an_unchanged_list_is_not_read_again(lake: LocalObjects) -> None:
    put(lake, record(1, ADA))
    first = read_suppression(lake, "players")

    assert read_suppression(lake, "players", since=first) is first
    put(lake, record(2, BOB))
    assert read_suppression(lake, "players", since=first).number == 2


@pytest.mark.parametrize(("after", "suppressed"), [("drop", True), ("accept", False)])
def test_later_events_are_accepted_only_with_a_new_consent(after: str, suppressed: bool) -> None:
    suppression = merge_records([record(1, ADA, until="2026-04-30T12:00:00+00:00", after=after)])

    assert suppression.matches(ZERO_KEY, [ADA], at_us=MAY_US - 86_400_000_000)
    assert suppression.matches(ZERO_KEY, [ADA], at_us=MAY_US) is suppressed


def test_the_later_end_of_two_entries_wins() -> None:
    short = record(1, ADA, until="2026-04-01T00:00:00+00:00", after="accept")

    assert merge_records([short, record(2, ADA)]).matches(ZERO_KEY, [ADA], at_us=MAY_US)
    assert merge_records([record(1, ADA), short]).matches(ZERO_KEY, [ADA], at_us=MAY_US)
    assert not merge_records([short]).matches(ZERO_KEY, [ADA], at_us=MAY_US)


def test_a_record_round_trips() -> None:
    written = record(3, ADA, until="2026-04-30T12:00:00+00:00", after="accept")

    assert SuppressionRecord.decode(written.encode(), key="k") == written
    assert ADA.encode() not in written.encode()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format":2}', b'{"format":1,"digests":[]}'])
def test_an_incomplete_list_is_refused(lake: LocalObjects, data: bytes) -> None:
    put(lake, record(1, ADA))
    lake.put(paths.suppression_record_key("players", 2), data)

    with pytest.raises(ContractError) as refused:
        read_suppression(lake, "players")

    assert refused.value.condition == "SUPPRESSION_UNREADABLE"


def test_a_record_under_another_number_is_refused(lake: LocalObjects) -> None:
    lake.put(paths.suppression_record_key("players", 2), record(1, ADA).encode())

    with pytest.raises(ContractError):
        read_suppression(lake, "players")
