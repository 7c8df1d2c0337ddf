"""Tokens: pseudonyms that replace identifiers in all stored data.

A token is an HMAC-SHA-256 (RFC 2104) of the kind and the normalized value with the namespace's key. Everyone with the
key derives the same token without a look-up: collectors, parsers, and a reprocess a year later. Without the key,
guessed values cannot be tested against a token, as would be possible with a plain hash.
"""

from __future__ import annotations

import hmac
import os
import re
import unicodedata
from typing import Final

#: Prefix of tokens: `p` and the version of the normalization.
TOKEN_PREFIX: Final = "p1_"  # noqa: S105  a prefix, not a secret
#: Prefix of random tokens, which replace erased subjects and are recorded nowhere.
RANDOM_TOKEN_PREFIX: Final = "x1_"  # noqa: S105  a prefix, not a secret
_TOKEN_BYTES: Final = 16
_DIGEST_BYTES: Final = 16
TOKEN_LENGTH: Final = 29
#: Lower-case Base32 (RFC 4648), two characters at a time: four times as fast as the standard library.
_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]
_PADDING_BITS: Final = 2
_SHIFTS: Final = range(8 * _TOKEN_BYTES + _PADDING_BITS - 10, -1, -10)
_TOKEN_PATTERN = re.compile(r"[px]1_[a-z2-7]{26}")
_PHONE_SEPARATORS = re.compile(r"[\s().\-/\u00a0\u2010-\u2015]+")


def token(key: bytes, *, kind: str, value: str) -> str:
    """Returns the token of an identifier: `p1_` and 26 letters and digits. Deterministic for key, kind and value.

    Args:
        key: token key of the namespace, 32 bytes.
        kind: values of `email` and `phone` are normalized; others are used unchanged.
    """
    text = normalize(kind, value).encode("utf-8", "surrogatepass")
    name = kind.encode()
    message = len(name).to_bytes(4, "big") + name + len(text).to_bytes(4, "big") + text
    digest = hmac.digest(key, message, "sha256")[:_TOKEN_BYTES]
    return TOKEN_PREFIX + _base32(digest)


def random_token() -> str:
    """Returns a random token, for rows that are retained without a subject. It is recorded nowhere."""
    return RANDOM_TOKEN_PREFIX + _base32(os.urandom(_TOKEN_BYTES))


def is_token(value: str) -> bool:
    """Returns whether a text has the form of a token. Redaction does not change tokens and is therefore idempotent."""
    return len(value) == TOKEN_LENGTH and _TOKEN_PATTERN.fullmatch(value) is not None


def normalize(kind: str, value: str) -> str:
    """Returns the normalized form of a value, from which its token is computed.

    Emails: NFKC, trimmed, lower case. Phone numbers: E.164 as far as possible, digits after a plus, with a leading `00`
    read as plus. A missing country code is not added.
    """
    if kind == "email":
        return unicodedata.normalize("NFKC", value).strip().lower()
    if kind == "phone":
        digits = _PHONE_SEPARATORS.sub("", unicodedata.normalize("NFKC", value))
        return f"+{digits[2:]}" if digits.startswith("00") else digits
    return value


def derive_day_key(key: bytes, day: str) -> bytes:
    """Derives the key for tokens that are valid for one day (`2026-11-23`, UTC), so that events of different days
    cannot be linked.
    """
    return hmac.digest(key, b"deltaworks.tokens.day\0" + day.encode(), "sha256")


def suppression_digest(key: bytes, token: str) -> str:
    """Returns the digest of a token for suppression lists: a second HMAC, 32 hexadecimal digits.

    Without the key, the list cannot be compared with tokens in the lake's rows.
    """
    second = hmac.digest(key, b"deltaworks.suppression", "sha256")
    return hmac.digest(second, token.encode(), "sha256")[:_DIGEST_BYTES].hex()


def _base32(data: bytes) -> str:
    number = int.from_bytes(data, "big") << _PADDING_BITS
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
