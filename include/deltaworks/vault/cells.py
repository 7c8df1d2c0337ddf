"""Encrypts the values in the table `identities`, one cell per subject, kind and token.

`u8 1 | u16 key_version | 12 B nonce | AES-256-GCM`, with namespace, subject, kind and token as associated data: a cell
moved to another row cannot be decrypted.
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
    """The row that an encrypted value belongs to."""

    namespace: str
    subject: str
    kind: str
    token: str

    @property
    def associated_data(self) -> bytes:
        """The row as associated data of the encryption. Each part has its length, so different rows never have the same
        bytes.
        """
        parts = [part.encode() for part in (self.namespace, self.subject, self.kind, self.token)]
        return b"".join(struct.pack(">I", len(part)) + part for part in parts)


def seal_cell(value: str, key: SubjectKey, address: CellAddress) -> bytes:
    """Encrypts a value for its row. Each call returns different bytes."""
    nonce = os.urandom(_NONCE_BYTES)
    sealed = AESGCM(key.key).encrypt(nonce, value.encode("utf-8", "surrogatepass"), address.associated_data)
    return _HEAD.pack(_FORMAT, key.version) + nonce + sealed


def open_cell(cell: bytes, key: SubjectKey, address: CellAddress) -> str:
    """Decrypts the value of a row.

    Raises:
        ContractError: VAULT_CELL_UNREADABLE, it was changed, or belongs to another row, key or release.
    """
    if len(cell) < _HEAD.size + _NONCE_BYTES or cell[0] != _FORMAT:
        raise _unreadable_error(address, "its format is not supported by this release")
    if (version := key_version_of(cell)) != key.version:
        raise _unreadable_error(
            address, (f"it was encrypted with key version {version}, but the subject has {key.version}")
        )
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
    """Returns the version of the key that encrypted a cell."""
    return int(_HEAD.unpack_from(cell)[1])


def _unreadable_error(address: CellAddress, why: str) -> ContractError:
    return ContractError(
        "VAULT_CELL_UNREADABLE",
        f"The {address.kind} of {address.subject} in {address.namespace!r} cannot be decrypted: {why}.",
    )
