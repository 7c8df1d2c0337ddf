"""Identities, which link a token to its subject and its original value. Writers encrypt them for the vault."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple


class Identity(NamedTuple):
    """A token that occurred in an event, with its subject and its original value.

    Attributes:
        subject: token of the event's subject; equal to `token` if the event has only that one.
        value: the tokenized value, for fields with the action `vault`; None only links the token to the subject.
        at_ms: arrival time of the event in milliseconds since 1970.
    """

    subject: str
    kind: str
    token: str
    value: str | None
    at_ms: int


def encode_identities(identities: Iterable[Identity]) -> bytes:
    """Encodes identities as JSON, the plaintext of an encrypted frame. Each identity is a list."""
    return json.dumps([list(identity) for identity in identities], separators=(",", ":")).encode()


def decode_identities(data: bytes) -> list[Identity]:
    """Decodes the output of `encode_identities`.

    Raises:
        ValueError: invalid data.
    """
    return [Identity(*parts) for parts in json.loads(data)]
