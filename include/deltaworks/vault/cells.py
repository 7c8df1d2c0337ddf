"""Cells: one value of one subject as it lies in `identities`.

`u8 1 | u16 key_version | 12 B nonce | AES-256-GCM`, whose associated data are namespace, subject, kind and token:
a cell that somebody puts into another row does not open there.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from deltaworks.errors import ContractError
from deltaworks.vault.key_pages import SubjectKey

_HEAD = struct.Struct(">BH")
_FORMAT = 1
_NONCE_BYTES = 12


@dataclass(frozen=True, slots=True)
class CellAddress:
    """The row a cell belongs to."""

    namespace: str
    subject: str
    kind: str
    token: str

    @property
    def associated_data(self) -> bytes:
        """What the cell is bound to: each part with its length, so that no two places have the same bytes."""
        parts = [part.encode() for part in (self.namespace, self.subject, self.kind, self.token)]
        return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def seal_cell(value: str, key: SubjectKey, address: CellAddress) -> bytes:
    """Seal a value for its place. Two seals of one value differ."""
    nonce = os.urandom(_NONCE_BYTES)
    sealed = AESGCM(key.key).encrypt(nonce, value.encode("utf-8", "surrogatepass"), address.associated_data)
    return _HEAD.pack(_FORMAT, key.version) + nonce + sealed


def open_cell(cell: bytes, key: SubjectKey, address: CellAddress) -> str:
    """The value.

    Raises:
        ContractError: VAULT_CELL_UNREADABLE, it was changed, is of another row or key, or of another release.
    """
    if len(cell) < _HEAD.size + _NONCE_BYTES or cell[0] != _FORMAT:
        raise _unreadable_error(address, "it has no form that this release knows")
    if (version := key_version_of(cell)) != key.version:
        raise _unreadable_error(address, f"it is of key {version}, and the subject has key {key.version}")
    body = cell[_HEAD.size :]
    try:
        return (
            AESGCM(key.key)
            .decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], address.associated_data)
            .decode("utf-8", "surrogatepass")
        )
    except InvalidTag as error:
        raise _unreadable_error(address, "it was changed, or belongs to another row") from error


def key_version_of(cell: bytes) -> int:
    """The version of the key that sealed a cell."""
    return int(_HEAD.unpack_from(cell)[1])


def _unreadable_error(address: CellAddress, why: str) -> ContractError:
    return ContractError(
        "VAULT_CELL_UNREADABLE",
        f"The {address.kind} of {address.subject} in {address.namespace!r} does not open: {why}.",
        hint="Nothing of it was shown. See who writes to the vault's tables besides its job.",
    )
