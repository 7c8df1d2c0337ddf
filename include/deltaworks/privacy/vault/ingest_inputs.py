"""Reads the inputs of an ingest (sealed files, the suppression list) and stores the bodies that cannot be read.

A collector with sources of several namespaces writes one sealed file for all. Such a file is first split into one per
namespace, deterministically, so that each namespace's job can delete the files it ingested.

Unreadable bodies of requests are encrypted under the key of their day, which is destroyed after some days. Their
subjects are unknown, so single subjects cannot be erased from them: destroying the day key erases all. They are stored
separately from the sealed files, which the ingest deletes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

from deltaworks.control.objects import ObjectStore
from deltaworks.errors import ContractError
from deltaworks.privacy import paths
from deltaworks.privacy.key_service import KeyService
from deltaworks.privacy.stored_keys import namespace_token_key
from deltaworks.privacy.tokens.envelope_encryption import (
    Identity,
    SealedFrame,
    SealedKind,
    SealedPayload,
    Unsealer,
    decode_sealed_file,
    encode_sealed_file,
)
from deltaworks.privacy.tokens.suppression import Suppression, read_suppression
from deltaworks.privacy.vault.key_pages import delete_key


@dataclass(frozen=True, slots=True, kw_only=True)
class DestroyedDays:
    """Days whose key was destroyed (or would be, in a dry run), and the number of deleted objects."""

    namespace: str
    dry_run: bool
    before: str
    days: int
    objects: int


def store_unreadable(
    objects: ObjectStore, namespace: str, day: str, source: str, frames: Sequence[SealedFrame]
) -> None:
    """Stores the unreadable bodies of one sealed file under their day. Idempotent."""
    name = source.removeprefix(paths.sealed_files_path()).replace("/", "-")
    objects.put_if_absent(paths.vault_unreadable_files(namespace, day, name), encode_sealed_file(frames))


def destroy_day_keys(
    objects: ObjectStore, namespace: str, *, retention_days: int, today: date, dry_run: bool = True
) -> DestroyedDays:
    """Destroys the keys of days that are more than `retention_days` old, then deletes their bodies. Idempotent and
    irreversible.

    Raises:
        ContractError: VAULT_KEY_REMAINS.
    """
    before = (today - timedelta(days=retention_days)).isoformat()
    keys = [
        key
        for key in objects.list(paths.day_keys_folder(namespace))
        if _day_of(key, paths.day_keys_folder(namespace)) < before
    ]
    folder = paths.vault_unreadable_files(namespace)
    bodies = [key for key in objects.list(folder) if _day_of(key, folder) < before]
    if not dry_run:
        # Keys first: an interrupted run leaves only bodies that cannot be decrypted.
        for key in keys:
            delete_key(objects, key)
        for key in bodies:
            objects.delete(key)
    return DestroyedDays(namespace=namespace, dry_run=dry_run, before=before, days=len(keys), objects=len(bodies))


def _day_of(key: str, folder: str) -> str:
    return key.removeprefix(folder).partition("/")[0].removesuffix(".json")


class SuppressionList:
    """The suppression list of a namespace, and the token key that is needed to match tokens."""

    def __init__(self, suppression: Suppression, key: bytes) -> None:
        self._suppression = suppression
        self._key = key

    @classmethod
    def read(cls, lake: ObjectStore, namespace: str, service: KeyService) -> SuppressionList:
        """Reads the current list. The token key is read only if the list has entries.

        Raises:
            ContractError: SUPPRESSION_UNREADABLE, KEY_CONTEXT_DIFFERS, KEY_DESTROYED, STORED_KEY_UNREADABLE.
            TransientError: KEY_SERVICE_UNREACHABLE, or the storage does not answer.
        """
        suppression = read_suppression(lake, namespace)
        if not len(suppression):
            return cls(suppression, b"")
        return cls(suppression, namespace_token_key(service, lake, namespace))

    @property
    def number(self) -> int:
        """The number of the list's last record; 0 for an empty list."""
        return self._suppression.number

    def matches(self, identity: Identity) -> bool:
        """Returns whether an identity's subject or token is suppressed."""
        tokens = {identity.subject, identity.token}
        return self._suppression.matches(self._key, tokens, at_us=identity.at_ms * 1000)


#: Separates the name of a split file from the namespace of a part.
_PART_SEPARATOR = "~"
_SUFFIX = ".dws"


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFile:
    """The decrypted content of a sealed file for one namespace: identities, and frames of unreadable bodies by day."""

    key: str
    frames: int
    identities: tuple[Identity, ...]
    unreadable: dict[str, tuple[SealedFrame, ...]] = field(default_factory=dict)


def waiting_files(objects: ObjectStore, namespace: str, *, other_pipelines: Collection[str] = ()) -> list[str]:
    """Returns the keys of waiting files that may belong to a namespace, in order for each writer. Needs one listing."""

    def may_belong(key: str) -> bool:
        writer, _, name = key.removeprefix(paths.sealed_files_path()).partition("/")
        part = name.removesuffix(_SUFFIX).rpartition(_PART_SEPARATOR)
        return writer not in other_pipelines and (not part[1] or part[2] == namespace)

    listed = objects.list(paths.sealed_files_path())
    return [key for key in listed if key.endswith(_SUFFIX) and may_belong(key)]


class SealedFiles:
    """The waiting sealed files of one namespace. Not thread-safe.

    Args:
        other_pipelines: pipelines of other namespaces, whose files are skipped.
    """

    def __init__(
        self, objects: ObjectStore, namespace: str, unsealer: Unsealer, *, other_pipelines: Collection[str] = ()
    ) -> None:
        self._objects = objects
        self._namespace = namespace
        self._unsealer = unsealer
        self._other_pipelines = frozenset(other_pipelines)

    def keys(self) -> list[str]:
        """Returns the keys of the waiting files; see `waiting_files`."""
        return waiting_files(self._objects, self._namespace, other_pipelines=self._other_pipelines)

    def open(self, key: str, *, split: bool = True) -> SealedFile | None:
        """Decrypts a file. Returns None if it is missing or belongs to another namespace.

        Args:
            split: split a file of several namespaces and open the part; False writes nothing.

        Raises:
            ContractError: SEALED_UNREADABLE, KEY_CONTEXT_DIFFERS, KEY_DESTROYED.
            TransientError: KEY_SERVICE_UNREACHABLE.
        """
        stored = self._objects.get(key)
        if stored is None:
            return None
        frames = [(frame, SealedPayload.decode(frame.payload)) for frame in decode_sealed_file(stored.data)]
        namespaces = {payload.namespace for _, payload in frames}
        if len(namespaces) > 1 and split:
            self._split_by_namespace(key, frames)
            return self.open(_part_key(key, self._namespace)) if self._namespace in namespaces else None
        frames = [(frame, payload) for frame, payload in frames if payload.namespace == self._namespace]
        if namespaces and not frames:
            return None
        identities: list[Identity] = []
        unreadable: dict[str, tuple[SealedFrame, ...]] = {}
        for frame, payload in frames:
            if frame.kind == SealedKind.IDENTITIES:
                identities += self._unsealer.open_identities(frame.payload)
            elif frame.kind == SealedKind.UNREADABLE:
                unreadable[payload.day] = (*unreadable.get(payload.day, ()), frame)
            else:
                raise ContractError(
                    "SEALED_UNREADABLE",
                    f"{key} has a frame of kind {frame.kind}, which this release does not support.",
                    hint="Run the release that sealed it, or a later one. The file is not deleted.",
                )
        return SealedFile(key=key, frames=len(frames), identities=tuple(identities), unreadable=unreadable)

    def delete(self, key: str) -> None:
        """Deletes a file that was ingested. Idempotent."""
        self._objects.delete(key)

    def _split_by_namespace(self, key: str, frames: list[tuple[SealedFrame, SealedPayload]]) -> None:
        for namespace, part in _encode_parts(frames):
            self._objects.put_if_absent(_part_key(key, namespace), part)
        self._objects.delete(key)


def _part_key(key: str, namespace: str) -> str:
    return f"{key.removesuffix(_SUFFIX)}{_PART_SEPARATOR}{namespace}{_SUFFIX}"


def _encode_parts(frames: list[tuple[SealedFrame, SealedPayload]]) -> Iterator[tuple[str, bytes]]:
    for namespace in sorted({payload.namespace for _, payload in frames}):
        yield namespace, encode_sealed_file(frame for frame, payload in frames if payload.namespace == namespace)
