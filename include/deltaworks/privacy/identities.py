"""Identities: what a writer tells the vault, once it is sealed: which token stands for which value of which subject."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple


class Identity(NamedTuple):
    """A token seen in an event of a subject.

    `subject` is the token of the event's subject, equal to `token` where the event has only that one. `value` is what
    the token stands for, where the field's action is `vault`; None says only that the two were seen in one event.
    `at_ms`: when the event came in, milliseconds since 1970.
    """

    subject: str
    kind: str
    token: str
    value: str | None
    at_ms: int


def encode_identities(identities: Iterable[Identity]) -> bytes:
    """The plaintext of a sealed frame: JSON, a list an identity."""
    return json.dumps([list(identity) for identity in identities], separators=(",", ":")).encode()


def decode_identities(data: bytes) -> list[Identity]:
    """What `encode_identities` made.

    Raises:
        ValueError: it made something else.
    """
    return [Identity(*parts) for parts in json.loads(data)]
