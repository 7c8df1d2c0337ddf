"""Tokens: what stands for an identifier wherever it would be kept.

A token is made of the namespace's key, the kind and the normalised value alone (HMAC-SHA-256, RFC 2104), so whoever has
the key makes the same one without a look-up: collectors, parsers, and a reprocess a year later. Without the key nobody
can try out which address a token stands for, as anybody can with a hash.
"""

from __future__ import annotations

import hmac
import os
import re
import unicodedata
from typing import Final

#: How tokens begin: `p`, and the number of the way in which values are normalised.
TOKEN_PREFIX: Final = "p1_"
#: How identities begin that stand for an erased subject: random, and recorded nowhere.
RANDOM_TOKEN_PREFIX: Final = "x1_"
_TOKEN_BYTES: Final = 16
_DIGEST_BYTES: Final = 16
TOKEN_LENGTH: Final = 29
#: Base32 (RFC 4648) in lower case, two characters at once: four times as fast as the standard library's.
_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"
_PAIRS: Final = [first + second for first in _ALPHABET for second in _ALPHABET]
_PADDING_BITS: Final = 2
_SHIFTS: Final = range(8 * _TOKEN_BYTES + _PADDING_BITS - 10, -1, -10)
_TOKEN_PATTERN = re.compile(r"[px]1_[a-z2-7]{26}")
_PHONE_SEPARATORS = re.compile(r"[\s().\-/\u00a0\u2010-\u2015]+")


def token(key: bytes, *, kind: str, value: str) -> str:
    """The token of an identifier: `p1_` and 26 letters and digits. The same for equal keys, kinds and values.

    Args:
        key: of the namespace, 32 bytes.
        kind: `email` and `phone` are normalised; values of any other kind count byte for byte.
    """
    text = normalize(kind, value).encode("utf-8", "surrogatepass")
    name = kind.encode()
    message = len(name).to_bytes(4, "big") + name + len(text).to_bytes(4, "big") + text
    digest = hmac.digest(key, message, "sha256")[:_TOKEN_BYTES]
    return TOKEN_PREFIX + _base32(digest)


def random_token() -> str:
    """An identity for rows that stay without whose they were: random, of the form of a token, and recorded nowhere."""
    return RANDOM_TOKEN_PREFIX + _base32(os.urandom(_TOKEN_BYTES))


def is_token(value: str) -> bool:
    """Whether a text has the form of a token: stripping leaves it as it is, so stripping twice is stripping once."""
    return len(value) == TOKEN_LENGTH and _TOKEN_PATTERN.fullmatch(value) is not None


def normalize(kind: str, value: str) -> str:
    """The form of a value in which it becomes a token.

    An email: NFKC, without blanks around it, in lower case. A phone: E.164 as far as the text has it: digits behind a
    plus, `00` read as one. A number without a country stays without: whoever sends it has to add it.
    """
    if kind == "email":
        return unicodedata.normalize("NFKC", value).strip().lower()
    if kind == "phone":
        digits = _PHONE_SEPARATORS.sub("", unicodedata.normalize("NFKC", value))
        return f"+{digits[2:]}" if digits.startswith("00") else digits
    return value


def derive_day_key(key: bytes, day: str) -> bytes:
    """The key for tokens that hold for one day (`2026-11-23`, UTC): nobody follows them from day to day."""
    return hmac.digest(key, b"deltaworks.tokens.day\0" + day.encode(), "sha256")


def suppression_digest(key: bytes, token: str) -> str:
    """What a suppression list says of a token: a second HMAC, 32 hexadecimal digits.

    So the list names nobody: not even who has the lake's rows can say which of their tokens are on it.
    """
    second = hmac.digest(key, b"deltaworks.suppression", "sha256")
    return hmac.digest(second, token.encode(), "sha256")[:_DIGEST_BYTES].hex()


def _base32(data: bytes) -> str:
    number = int.from_bytes(data, "big") << _PADDING_BITS
    return "".join([_PAIRS[number >> shift & 1023] for shift in _SHIFTS])
