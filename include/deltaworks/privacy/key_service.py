"""The interface of key services, and the local keyring for single machines and trials.

A service has master keys that never leave it, and wraps data keys with them: 32 random bytes that encrypt values. A
wrapped key is bound to a context (`namespace`, `purpose` and more): it can be unwrapped only with the same context.

All encryption is done here (`encrypt_bytes`): AES-256-GCM under a subkey of its own for each message, derived by HKDF
(RFC 5869) from the key and 16 random bytes of the message's head. The head has a random nonce too. So two messages have
the same subkey and nonce only if 28 random bytes are equal, however many processes encrypt under one key; there is no
counter that a fork, a restored snapshot or a second writer could repeat.

A keyring is a local folder with one master key per namespace and purpose, an X25519 key pair: its public part wraps
data keys, its private part unwraps them. So processes that only seal need no key that opens what they sealed:
`share_with_writers` gives them a folder with the public parts, and the private one of tokens.
Everyone who can read the folder has the keys. Destroying a key takes effect immediately, but copies of the folder still
contain it, so exclude the folder from backups.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from deltaworks.errors import ConfigError, ContractError

#: Purposes of keys. The key service's policy grants each purpose separately.
TOKEN_PURPOSE: Final = "token"  # noqa: S105  a purpose, not a secret
SEAL_PURPOSE: Final = "seal"
UNREADABLE_PURPOSE: Final = "unreadable"
EPOCH_PURPOSE: Final = "epoch"
KEY_BYTES: Final = 32
Context = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DataKey:
    """A data key, both plain and wrapped, and the id of the master key that wraps it."""

    plain: bytes = field(repr=False)
    wrapped: bytes
    key_id: str


@dataclass(frozen=True, slots=True)
class DestroyedKey:
    """A master key that is destroyed, or scheduled for it. From `destroyed_at` on it unwraps nothing."""

    key_id: str
    destroyed_at: datetime


class KeyService(Protocol):
    """Creates and unwraps data keys. Thread-safe."""

    def new_key(self, context: Context) -> DataKey:
        """Creates a data key that can be unwrapped only with this context.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
            ConfigError: KEY_SERVICE_REFUSED, KEYRING_UNUSABLE.
        """

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        """Unwraps a data key and returns it.

        Raises:
            ContractError: KEY_CONTEXT_DIFFERS, it was wrapped for another context or is corrupt; KEY_DESTROYED.
            TransientError: KEY_SERVICE_UNREACHABLE.
            ConfigError: KEY_SERVICE_REFUSED, KEYRING_UNUSABLE.
        """

    def destroy(self, key_id: str) -> DestroyedKey:
        """Destroys a master key. Data keys that it wraps can no longer be unwrapped. Idempotent.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
            ConfigError: KEY_SERVICE_REFUSED, KEYRING_UNUSABLE.
        """


def key_context(namespace: str, purpose: str, **more: str) -> dict[str, str]:
    """Returns the context that a data key is bound to: namespace, purpose and further attributes."""
    return {"namespace": namespace, "purpose": purpose, **more}


def encode_context(context: Context) -> bytes:
    """Encodes a context as associated data: names and values with their lengths, sorted by name."""
    pieces = [piece.encode() for name in sorted(context) for piece in (name, context[name])]
    return b"".join(len(piece).to_bytes(4, "big") + piece for piece in pieces)


_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_SUBKEY_INFO: Final = b"deltaworks.subkey\0"
_AGREEMENT_INFO: Final = b"deltaworks.agreement\0"


def encrypt_bytes(key: bytes, plain: bytes, additional: bytes) -> bytes:
    """Encrypts bytes and returns `16 B salt | 12 B nonce | AES-256-GCM`. Each call returns different bytes."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    head = new_head()
    return head + AESGCM(_derive_subkey(key, head)).encrypt(head[_SALT_BYTES:], plain, additional)


def new_head() -> bytes:
    """Returns the head of a message: a random salt and a random nonce."""
    return os.urandom(_SALT_BYTES + _NONCE_BYTES)


def decrypt_bytes(key: bytes, data: bytes, additional: bytes) -> bytes:
    """Decrypts the output of `encrypt_bytes`.

    Raises:
        InvalidTag: the key, the associated data or the bytes differ.
    """
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    end = _SALT_BYTES + _NONCE_BYTES
    if len(data) < end + _TAG_BYTES:
        raise InvalidTag
    return AESGCM(_derive_subkey(key, data[:end])).decrypt(data[_SALT_BYTES:end], data[end:], additional)


def public_key(private: bytes) -> bytes:
    """Returns the public part of a private X25519 key, which may be any 32 bytes."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def encapsulate_key(public: bytes) -> tuple[bytes, bytes]:
    """Creates a key for the owner of a public key; returns its encapsulation (32 bytes) and the key."""
    ephemeral = os.urandom(KEY_BYTES)
    encapsulated = public_key(ephemeral)
    return encapsulated, _agree(ephemeral, public, encapsulated + public)


def decapsulate_key(private: bytes, encapsulated: bytes) -> bytes:
    """Returns the key that `encapsulate_key` created for the owner of a private key.

    Raises:
        InvalidTag: the encapsulation is invalid.
    """
    from cryptography.exceptions import InvalidTag

    try:
        return _agree(private, encapsulated, encapsulated + public_key(private))
    except ValueError as error:
        raise InvalidTag from error


def _agree(private: bytes, public: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=_AGREEMENT_INFO + info).derive(shared)


def _derive_subkey(key: bytes, head: bytes) -> bytes:
    """Derives the key of one message. Keys are uniformly random, so HKDF needs its second step only."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    return HKDFExpand(SHA256(), KEY_BYTES, _SUBKEY_INFO + head[:_SALT_BYTES]).derive(key)


_KEY_SUFFIX: Final = ".key"
_PUBLIC_SUFFIX: Final = ".pub"
_DESTROYED_SUFFIX: Final = ".destroyed"
#: Marks the folder of writers, in which no key is created: no other process would have its private part.
_WRITERS_MARK: Final = ".writers"
#: Purposes whose data keys writers create but never unwrap.
_SEALING_PURPOSES: Final = (SEAL_PURPOSE, UNREADABLE_PURPOSE)
_KEY_ID = re.compile(r"^[a-z0-9_]+\.[a-z0-9_]+$")


class LocalKeyring:
    """A key service with its master keys in files of a folder. Safe for threads and concurrent processes."""

    def __init__(self, folder: Path) -> None:
        """Opens the folder, creating it if needed.

        Raises:
            ConfigError: KEYRING_UNUSABLE, other users can read it, or it cannot be created.
        """
        self._folder = folder
        self._keys: dict[str, bytes] = {}
        self._lock = threading.Lock()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = folder.stat().st_mode & 0o777
        except OSError as error:
            raise _unusable_error(folder, str(error)) from error
        if mode & 0o077:
            raise _unusable_error(folder, f"other users can read it (mode {mode:03o})")

    def new_key(self, context: Context) -> DataKey:
        """Creates a data key, wrapped by the master key of the context's namespace and purpose. Creates that master key
        if needed.
        """
        key_id, plain = _key_id(context), os.urandom(KEY_BYTES)
        encapsulated, key = encapsulate_key(self._public_key(key_id))
        return DataKey(plain, encapsulated + encrypt_bytes(key, plain, encode_context(context)), key_id)

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        """Unwraps a data key; see `KeyService.unwrap`."""
        from cryptography.exceptions import InvalidTag

        private = self._private_key(_key_id(context), create=False)
        try:
            key = decapsulate_key(private, wrapped[:KEY_BYTES])
            return decrypt_bytes(key, wrapped[KEY_BYTES:], encode_context(context))
        except InvalidTag as error:
            raise context_differs_error(context) from error

    def destroy(self, key_id: str) -> DestroyedKey:
        """Deletes a master key immediately. A marker file prevents creating another one with this id."""
        if not _KEY_ID.match(key_id):
            raise _unusable_error(self._folder, f"{key_id!r} is not a valid key name")
        path = self._folder / (key_id + _KEY_SUFFIX)
        with self._lock, _translate_os_errors(self._folder):
            (self._folder / (key_id + _DESTROYED_SUFFIX)).touch(mode=0o600)
            self._keys.pop(key_id, None)
            with contextlib.suppress(FileNotFoundError):
                with path.open("r+b") as file:
                    file.write(bytes(KEY_BYTES))
                    os.fsync(file.fileno())
                path.unlink()
            _fsync_folder(self._folder)
        return DestroyedKey(key_id, datetime.now(UTC))

    def share_with_writers(self, folder: Path, namespaces: Iterable[str]) -> None:
        """Writes the keys that writers of these namespaces need into a folder of theirs: to compute tokens and to seal,
        and none that opens what was sealed. Creates missing master keys. Idempotent.

        Raises:
            ConfigError: KEYRING_UNUSABLE.
            ContractError: KEY_DESTROYED.
        """
        files = {_WRITERS_MARK: b""}
        for namespace in namespaces:
            token_id = _key_id(key_context(namespace, TOKEN_PURPOSE))
            files[token_id + _KEY_SUFFIX] = self._private_key(token_id, create=True)
            for purpose in _SEALING_PURPOSES:
                key_id = _key_id(key_context(namespace, purpose))
                files[key_id + _PUBLIC_SUFFIX] = self._public_key(key_id)
        LocalKeyring(folder)
        with _translate_os_errors(folder):
            for name, data in files.items():
                descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                os.replace(temporary, folder / name)
            _fsync_folder(folder)

    def _public_key(self, key_id: str) -> bytes:
        """Returns the public part of a master key, which is all that writers have of some."""
        if not (self._folder / _WRITERS_MARK).exists():
            return public_key(self._private_key(key_id, create=True))
        with self._lock, _translate_os_errors(self._folder):
            stored = self._read_key(key_id, suffix=_PUBLIC_SUFFIX)
        return stored if stored is not None else public_key(self._private_key(key_id, create=False))

    def _private_key(self, key_id: str, *, create: bool) -> bytes:
        with self._lock, _translate_os_errors(self._folder):
            if (self._folder / (key_id + _DESTROYED_SUFFIX)).exists():
                self._keys.pop(key_id, None)
                raise key_destroyed_error(key_id)
            if key_id not in self._keys:
                self._keys[key_id] = self._read_key(key_id) or self._create_key(key_id, create=create)
            return self._keys[key_id]

    def _read_key(self, key_id: str, *, suffix: str = _KEY_SUFFIX) -> bytes | None:
        path = self._folder / (key_id + suffix)
        try:
            mode, key = path.stat().st_mode & 0o777, path.read_bytes()
        except FileNotFoundError:
            return None
        if mode & 0o077:
            raise _unusable_error(self._folder, f"other users can read {path.name} (mode {mode:03o})")
        if len(key) != KEY_BYTES:
            raise _unusable_error(self._folder, f"{path.name} has {len(key)} bytes instead of {KEY_BYTES}")
        return key

    def _create_key(self, key_id: str, *, create: bool) -> bytes:
        """Creates a master key, or returns the one that another process created first. The key is on disk before it is
        used.
        """
        if not create and (self._folder / _WRITERS_MARK).exists():
            raise _unusable_error(
                self._folder, f"it has the keys of writers only, and of {key_id} not the one that is needed"
            )
        if not create:
            raise _unusable_error(
                self._folder, (f"it has no key {key_id}, so it is not the keyring that wrapped the data key")
            )
        descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=".new-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(os.urandom(KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, self._folder / (key_id + _KEY_SUFFIX))
        finally:
            os.unlink(temporary)
        _fsync_folder(self._folder)
        key = self._read_key(key_id)
        if key is None:
            raise key_destroyed_error(key_id)
        return key


def _key_id(context: Context) -> str:
    return f"{context['namespace']}.{context['purpose']}"


def context_differs_error(context: Mapping[str, str]) -> ContractError:
    """Returns the error for a key that was wrapped for another context."""
    return ContractError(
        "KEY_CONTEXT_DIFFERS",
        f"A wrapped key cannot be unwrapped for {dict(context)}: it was wrapped for another context, or is corrupt.",
    )


def key_destroyed_error(key_id: str) -> ContractError:
    """Returns the error for a destroyed key."""
    return ContractError(
        "KEY_DESTROYED", f"The key {key_id} was destroyed: data keys wrapped by it cannot be unwrapped."
    )


def _unusable_error(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        "KEYRING_UNUSABLE",
        f"The keyring {folder} cannot be used: {reason}.",
        hint=(
            f"Restrict it to the user of the process (`chmod 700 {folder}`, `chmod 600` for its files), or set "
            "another folder as `privacy.keys` of the environment. `deltaworks privacy keyring` gives keys to writers."
        ),
    )


@contextlib.contextmanager
def _translate_os_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unusable_error(folder, str(error)) from error


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
