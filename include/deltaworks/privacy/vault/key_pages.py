"""Stores the subjects' keys: one per subject, wrapped by the newest epoch key, in 4,096 pages per namespace.

A page is a small JSON object replaced by conditional puts, so concurrent changes are never lost. Keys are stored only
here: removing one destroys everything encrypted with it, in all versions and copies of the tables.

Epoch keys are replaced every month and wrapped by the key service. There is one epoch, except for a few minutes during
a rotation. The newest wraps; an older one only unwraps, until it is destroyed. Then copies of key pages that it wrapped
are useless.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import ClassVar

from cryptography.exceptions import InvalidTag
from pydantic import Field

from deltaworks.control.background import attempts
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.store import Record, RecordKind, RecordPart, RecordStore
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.privacy.key_service import (
    EPOCH_PURPOSE,
    KEY_BYTES,
    KeyService,
    decrypt_bytes,
    encrypt_bytes,
    key_context,
)
from deltaworks.privacy.paths import (
    vault_key_epoch,
    vault_key_epochs,
    vault_key_page,
    vault_key_pages,
    vault_page_of,
    vault_page_of_object,
)
from deltaworks.privacy.stored_keys import decode_wrapped_key, get_or_create_key

# Epoch keys.


@dataclass(frozen=True, slots=True)
class Epoch:
    """The number, age and plain key of an epoch. The key has 32 bytes and never leaves the process."""

    number: int
    created_at: datetime
    key: bytes = field(repr=False)


class EpochKeys:
    """Reads, creates and destroys the epoch keys of one namespace. Caches unwrapped keys. Not thread-safe."""

    def __init__(self, objects: ObjectStore, namespace: str, service: KeyService) -> None:
        self._objects = objects
        self._namespace = namespace
        self._service = service
        self._opened: dict[int, Epoch] = {}

    def numbers(self) -> list[int]:
        """Returns the numbers of existing epochs, ascending. Needs one listing."""
        folder = vault_key_epochs(self._namespace)
        names = (key.removeprefix(folder).removesuffix(".json") for key in self._objects.list(folder))
        return sorted(int(name) for name in names if name.isdigit())

    def newest(self) -> Epoch:
        """Returns the newest epoch. Creates the first one if there is none.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
            ContractError: KEY_CONTEXT_DIFFERS, KEY_DESTROYED, STORED_KEY_UNREADABLE.
        """
        numbers = self.numbers()
        return self.open(numbers[-1]) if numbers else self.get_or_create(1)

    def open(self, number: int) -> Epoch:
        """Returns the epoch with this number, with its key unwrapped.

        Raises:
            ContractError: VAULT_EPOCH_DESTROYED; KEY_CONTEXT_DIFFERS, KEY_DESTROYED, STORED_KEY_UNREADABLE.
            TransientError: KEY_SERVICE_UNREACHABLE.
        """
        if number not in self._opened:
            key = vault_key_epoch(self._namespace, number)
            stored = self._objects.get(key)
            if stored is None:
                raise ContractError(
                    "VAULT_EPOCH_DESTROYED",
                    f"Epoch {number} of {self._namespace!r} is destroyed: {key} does not exist.",
                )
            plain = self._service.unwrap(decode_wrapped_key(key, stored.data), self._context(number))
            self._opened[number] = Epoch(number, _created_at(stored.data), plain)
        return self._opened[number]

    def get_or_create(self, number: int) -> Epoch:
        """Creates an epoch unless it exists; returns the stored one.

        Raises:
            TransientError: KEY_SERVICE_UNREACHABLE.
            ContractError: KEY_CONTEXT_DIFFERS, KEY_DESTROYED, STORED_KEY_UNREADABLE.
        """
        key = vault_key_epoch(self._namespace, number)
        get_or_create_key(self._service, self._objects, key=key, context=self._context(number))
        return self.open(number)

    def destroy(self, number: int) -> None:
        """Deletes an epoch's key and verifies that it no longer exists. Idempotent and irreversible.

        Raises:
            ContractError: VAULT_KEY_REMAINS, the object still exists.
        """
        self._opened.pop(number, None)
        delete_key(self._objects, vault_key_epoch(self._namespace, number))

    def _context(self, number: int) -> dict[str, str]:
        return key_context(self._namespace, EPOCH_PURPOSE, epoch=str(number))


def delete_key(objects: ObjectStore, key: str) -> None:
    """Deletes an object with a key and verifies that it no longer exists. Idempotent.

    Raises:
        ContractError: VAULT_KEY_REMAINS.
    """
    objects.delete(key)
    if objects.get(key) is not None:
        raise key_remains_error(key)


def key_remains_error(key: str) -> ContractError:
    """Returns the error for a key that still exists after it was deleted."""
    return ContractError(
        "VAULT_KEY_REMAINS",
        f"The key in {key} still exists after its deletion.",
        hint=(
            "Check whether a process restores objects of the vault, then run it again. Nothing is certified until then."
        ),
    )


def _created_at(data: bytes) -> datetime:
    return parse_iso(str(json.loads(data).get("created_at") or "")) or utc_now()


# Subjects' keys.

_MAX_ATTEMPTS = 12
_THREADS = 8
_KIND = RecordKind(
    noun="page of keys",
    unreadable_condition="VAULT_KEYS_UNREADABLE",
    hint="Run the release that wrote it, or a later one. Without it the values of its subjects cannot be decrypted.",
)


class WrappedKey(RecordPart):
    """A subject's key, wrapped by the key of `epoch`: encrypted bytes in base64. Cells store its `version`."""

    epoch: int
    version: int
    wrapped: str


class KeyPage(Record):
    """One page: the wrapped keys of some subjects."""

    kind: ClassVar[RecordKind] = _KIND

    namespace: str
    page: str
    keys: dict[str, WrappedKey] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubjectKey:
    """A subject's plain key. `version` distinguishes the successive keys of a subject."""

    version: int
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShredResult:
    """The result of destroying keys: subjects whose key was removed, and subjects that had no key."""

    removed: tuple[str, ...]
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrapResult:
    """The result of a rewrap: number of pages read, pages replaced, and keys moved to the newest epoch."""

    epoch: int
    pages: int
    replaced: int
    keys: int


PageChange = Callable[[KeyPage], KeyPage | None]


class SubjectKeys:
    """Reads and changes the keys of one namespace's subjects. A change is one conditional put per page, so concurrent
    use is safe.
    """

    def __init__(self, objects: ObjectStore, namespace: str, epochs: EpochKeys) -> None:
        self._objects = objects
        self._namespace = namespace
        self._epochs = epochs
        self._records = RecordStore(objects, KeyPage)

    def get(self, subjects: Iterable[str]) -> dict[str, SubjectKey]:
        """Returns the keys of these subjects. Subjects without a key are omitted.

        Raises:
            ContractError: VAULT_EPOCH_DESTROYED, VAULT_KEYS_UNREADABLE.
            TransientError: KEY_SERVICE_UNREACHABLE.
        """
        keys: dict[str, SubjectKey] = {}
        for page, members in _group_by_page(subjects):
            stored = self._records.read(vault_key_page(self._namespace, page))
            keys |= {} if stored is None else self._unwrap_all(stored, members)
        return keys

    def get_or_create(self, subjects: Iterable[str]) -> dict[str, SubjectKey]:
        """Returns the keys of these subjects. Missing ones are created and stored first. Idempotent.

        Raises:
            ConcurrencyError: VAULT_KEYS_CONTENDED.
            ContractError: VAULT_EPOCH_DESTROYED, VAULT_KEYS_UNREADABLE.
            TransientError: KEY_SERVICE_UNREACHABLE.
        """
        keys: dict[str, SubjectKey] = {}
        for page, members in _group_by_page(subjects):
            stored = self._update_page(page, functools.partial(self._add_missing_keys, subjects=members))
            keys |= self._unwrap_all(stored, members)
        return keys

    def shred(self, subjects: Iterable[str]) -> ShredResult:
        """Removes the keys of subjects and verifies each page, so that their cells can never be decrypted again.
        Idempotent and irreversible.

        Raises:
            ConcurrencyError: VAULT_KEYS_CONTENDED.
            ContractError: VAULT_KEY_REMAINS, VAULT_KEYS_UNREADABLE.
        """
        removed: list[str] = []
        absent: list[str] = []
        for page, members in _group_by_page(subjects):
            existing: set[str] = set()

            def remove_keys(
                page_record: KeyPage, targets: Collection[str] = members, removed_subjects: set[str] = existing
            ) -> KeyPage | None:
                present = page_record.keys.keys() & set(targets)
                # Includes keys removed by an attempt whose reply was lost.
                removed_subjects |= present
                remaining = {subject: key for subject, key in page_record.keys.items() if subject not in present}
                return page_record.replace(keys=remaining) if present else None

            self._update_page(page, remove_keys)
            self._verify_removed(page, members)
            removed += [subject for subject in members if subject in existing]
            absent += [subject for subject in members if subject not in existing]
        return ShredResult(removed=tuple(removed), absent=tuple(absent))

    def pages(self) -> list[str]:
        """Returns the existing pages. Needs one listing."""
        listed = self._objects.list(vault_key_pages(self._namespace))
        return [page for key in listed if (page := vault_page_of_object(self._namespace, key)) is not None]

    def rewrap(self) -> RewrapResult:
        """Wraps all keys of older epochs with the newest epoch key. Idempotent; continues an interrupted run.

        Raises:
            ConcurrencyError: VAULT_KEYS_CONTENDED.
            ContractError: VAULT_EPOCH_DESTROYED, VAULT_KEYS_UNREADABLE.
            TransientError: KEY_SERVICE_UNREACHABLE.
        """
        # Epochs are opened in advance, so that the threads use them without the key service.
        newest = self._epochs.newest().number
        for number in self._epochs.numbers():
            self._epochs.open(number)
        pages = self.pages()
        with ThreadPoolExecutor(_THREADS) as threads:
            counts = list(threads.map(lambda page: self._rewrap_page(page, newest), pages))
        return RewrapResult(epoch=newest, pages=len(pages), replaced=sum(n > 0 for n in counts), keys=sum(counts))

    def pages_older_than(self, epoch: int) -> list[str]:
        """Returns the pages that have a key wrapped by an older epoch than this."""
        with ThreadPoolExecutor(_THREADS) as threads:
            pages = self.pages()
            stored = threads.map(lambda page: self._records.read(vault_key_page(self._namespace, page)), pages)
            return [
                page_record.page
                for page_record in stored
                if page_record and any(key.epoch < epoch for key in page_record.keys.values())
            ]

    def _rewrap_page(self, page: str, newest: int) -> int:
        count = 0

        def rewrap_keys(page_record: KeyPage) -> KeyPage | None:
            nonlocal count
            older = [subject for subject, wrapped in page_record.keys.items() if wrapped.epoch < newest]
            count = len(older)
            keys = self._unwrap_all(page_record, older)
            rewrapped = {subject: self._wrap(subject, key, newest) for subject, key in keys.items()}
            return page_record.replace(keys={**page_record.keys, **rewrapped}) if older else None

        self._update_page(page, rewrap_keys)
        return count

    def _add_missing_keys(self, page: KeyPage, *, subjects: Collection[str]) -> KeyPage | None:
        missing = [subject for subject in subjects if subject not in page.keys]
        if not missing:
            return None
        newest = self._epochs.newest().number
        # Random: a subject who returns after an erasure must not get the key version of destroyed cells.
        new_keys = {
            subject: self._wrap(subject, SubjectKey(secrets.randbelow(1 << 16), os.urandom(KEY_BYTES)), newest)
            for subject in missing
        }
        return page.replace(keys={**page.keys, **new_keys})

    def _update_page(self, page: str, change: PageChange) -> KeyPage:
        """Replaces a page by the result of `change` and returns the stored page. Nothing is written if the result is
        None.
        """
        key = vault_key_page(self._namespace, page)
        for _ in attempts(_MAX_ATTEMPTS, first_wait_seconds=0.05, max_wait_seconds=2.0):
            stored = self._objects.get(key)
            current = (
                KeyPage(namespace=self._namespace, page=page) if stored is None else self._decode(stored.data, key)
            )
            changed = change(current)
            if changed is None:
                return current
            data = changed.encode()
            if stored is None:
                if self._objects.put_if_absent(key, data):
                    return changed
            elif self._objects.put_if_match(key, data, stored.etag) is not None:
                return changed
        raise ConcurrencyError(
            "VAULT_KEYS_CONTENDED", f"{_MAX_ATTEMPTS} attempts to replace {key} failed because of concurrent writers."
        )

    def _decode(self, data: bytes, key: str) -> KeyPage:
        page = KeyPage.decode(data, key=key)
        if vault_key_page(page.namespace, page.page) != key:
            raise KeyPage.unreadable_error(key, f"it contains page {page.page} of {page.namespace!r}")
        return page

    def _verify_removed(self, page: str, subjects: Collection[str]) -> None:
        key = vault_key_page(self._namespace, page)
        stored = self._records.read(key)
        if stored is not None and stored.keys.keys() & set(subjects):
            raise key_remains_error(key)

    def _unwrap_all(self, page: KeyPage, subjects: Iterable[str]) -> dict[str, SubjectKey]:
        wrapped = {subject: page.keys[subject] for subject in subjects if subject in page.keys}
        return {subject: self._unwrap(subject, wrapped_key) for subject, wrapped_key in wrapped.items()}

    def _unwrap(self, subject: str, wrapped_key: WrappedKey) -> SubjectKey:
        data = base64.b64decode(wrapped_key.wrapped)
        epoch_key = self._epochs.open(wrapped_key.epoch).key
        try:
            key = decrypt_bytes(epoch_key, data, self._associated_data(subject, wrapped_key))
        except InvalidTag as error:
            raise ContractError(
                "VAULT_KEYS_UNREADABLE",
                f"The key of a subject on page {vault_page_of(subject)} of {self._namespace!r} was changed, "
                "or belongs to another subject.",
            ) from error
        return SubjectKey(wrapped_key.version, key)

    def _wrap(self, subject: str, key: SubjectKey, epoch: int) -> WrappedKey:
        bare = WrappedKey(epoch=epoch, version=key.version, wrapped="")
        sealed = encrypt_bytes(self._epochs.open(epoch).key, key.key, self._associated_data(subject, bare))
        return bare.replace(wrapped=base64.b64encode(sealed).decode())

    def _associated_data(self, subject: str, wrapped_key: WrappedKey) -> bytes:
        """Returns the associated data that bind a key to its subject, version and epoch."""
        return "\x00".join((self._namespace, subject, str(wrapped_key.version), str(wrapped_key.epoch))).encode()


def _group_by_page(subjects: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields each page with the distinct subjects that it contains."""
    pages: Mapping[str, str] = {subject: vault_page_of(subject) for subject in subjects}
    ordered = sorted(pages, key=lambda subject: (pages[subject], subject))
    for page, members in groupby(ordered, key=lambda subject: pages[subject]):
        yield page, list(members)
