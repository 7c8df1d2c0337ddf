"""A keyring: a folder of this machine with a key a namespace and purpose, which wrap data keys by AES-256-GCM.

For one machine and for trials: whoever may read the folder has the keys. A key that is destroyed is gone at once; a
copy of the folder, in a backup say, keeps it, so the folder belongs into none.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from deltaworks.errors import ConfigError, ContractError
from deltaworks.privacy.keys.base import KEY_BYTES, Context, DataKey, DestroyedKey, encode_context

_NONCE_BYTES: Final = 12
_KEY_SUFFIX: Final = ".key"
_DESTROYED_SUFFIX: Final = ".destroyed"
_KEY_ID = re.compile(r"^[a-z0-9_]+\.[a-z0-9_]+$")


class LocalKeyring:
    """Keys in files of a folder. Safe in threads, and beside other processes that use the folder."""

    def __init__(self, folder: Path) -> None:
        """Use the folder, which is made where there is none.

        Raises:
            ConfigError: KEYRING_UNUSABLE, others may read it, or it cannot be made.
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
            raise _unusable_error(folder, f"others may read it (mode {mode:03o})")

    def new_key(self, context: Context) -> DataKey:
        """A data key, wrapped by the key of the context's namespace and purpose, which is made at first need."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key_id = _key_id(context)
        plain, nonce = os.urandom(KEY_BYTES), os.urandom(_NONCE_BYTES)
        sealed = AESGCM(self._wrapping_key(key_id, create=True)).encrypt(nonce, plain, encode_context(context))
        return DataKey(plain, nonce + sealed, key_id)

    def unwrap(self, wrapped: bytes, context: Context) -> bytes:
        """The data key that was wrapped for this context."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = self._wrapping_key(_key_id(context), create=False)
        try:
            return AESGCM(key).decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], encode_context(context))
        except (InvalidTag, ValueError) as error:
            raise context_differs_error(context) from error

    def destroy(self, key_id: str) -> DestroyedKey:
        """Destroy a key now; a mark says so, so that none of its name is made again."""
        if not _KEY_ID.match(key_id):
            raise _unusable_error(self._folder, f"{key_id!r} is no name of a key")
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

    def _wrapping_key(self, key_id: str, *, create: bool) -> bytes:
        with self._lock, _translate_os_errors(self._folder):
            if (self._folder / (key_id + _DESTROYED_SUFFIX)).exists():
                self._keys.pop(key_id, None)
                raise key_destroyed_error(key_id)
            if key_id not in self._keys:
                self._keys[key_id] = self._read_key(key_id) or self._create_key(key_id, create=create)
            return self._keys[key_id]

    def _read_key(self, key_id: str) -> bytes | None:
        path = self._folder / (key_id + _KEY_SUFFIX)
        try:
            mode, key = path.stat().st_mode & 0o777, path.read_bytes()
        except FileNotFoundError:
            return None
        if mode & 0o077:
            raise _unusable_error(self._folder, f"others may read {path.name} (mode {mode:03o})")
        if len(key) != KEY_BYTES:
            raise _unusable_error(self._folder, f"{path.name} has {len(key)} bytes, a key {KEY_BYTES}")
        return key

    def _create_key(self, key_id: str, *, create: bool) -> bytes:
        """A new key; that of another process where it was first. Durable before anything is wrapped by it."""
        if not create:
            raise _unusable_error(self._folder, f"it has no key {key_id}: it is not the keyring this was wrapped with")
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
    """The error of a key that was wrapped for another use."""
    return ContractError(
        "KEY_CONTEXT_DIFFERS",
        f"A wrapped key does not open for {dict(context)}: it was wrapped for another use, or it is damaged.",
        hint="Nothing opens it for another namespace or purpose. Was it copied from elsewhere?",
    )


def key_destroyed_error(key_id: str) -> ContractError:
    """The error of a key that is gone for good."""
    return ContractError(
        "KEY_DESTROYED",
        f"The key {key_id} was destroyed: what it has wrapped cannot be opened any more.",
        hint="That is what destroying it was for. A new namespace gets new keys.",
    )


def _unusable_error(folder: Path, reason: str) -> ConfigError:
    return ConfigError(
        "KEYRING_UNUSABLE",
        f"The keyring {folder} cannot be used: {reason}.",
        hint=f"It belongs to the user of the process alone: `chmod 700 {folder}`, `chmod 600` its files; or name "
        "another folder in `privacy.keys` of the environment.",
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
