"""Tokens: deterministic per key and kind, and irreversible without the key."""

from __future__ import annotations

import base64
import hashlib
import hmac

from hypothesis import example, given
from hypothesis import strategies as st

from deltaworks.privacy.tokens.envelope_encryption import (
    RANDOM_TOKEN_PREFIX,
    TOKEN_LENGTH,
    derive_day_key,
    is_token,
    normalize,
    suppression_digest,
    token,
)

KEY = bytes(range(32))


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
