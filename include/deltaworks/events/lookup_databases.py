"""Look-up databases: objects in the lake, each pinned to one version for all tasks of a batch.

The driver pins the ETag of every database before it parses a batch. Tasks open exactly that version, from the worker's
disk cache or from the lake. So all rows of a batch use the same version, even if the database is replaced meanwhile;
the ledger records the version.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import maxminddb
from maxminddb.types import Record

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ConfigError, TransientError
from deltaworks.specs.storage import StorageSpec, resolved_variables, set_missing_variables

log = logging.getLogger(__name__)

STALE_DAYS = 30
#: Cached copies that were not used for this long are deleted at the next download.
_UNUSED_COPY_SECONDS = 24 * 3600
_PIN_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class PinnedDatabase:
    """One version of a database: its name in `databases/`, its ETag, and its build time in seconds since 1970."""

    name: str
    etag: str
    build_epoch: int


@dataclass(frozen=True, slots=True)
class PinnedDatabases:
    """The pinned database versions of a parse. Tasks receive them with the storage's credentials, which are never
    printed.
    """

    storage: str
    variables: Mapping[str, str] = field(repr=False)
    by_name: Mapping[str, PinnedDatabase]

    @classmethod
    def pin(cls, names: Iterable[str], storage: StorageSpec) -> PinnedDatabases:
        """Pins the current version of each database, and opens it once to detect truncated files.

        Raises:
            ConfigError: ENRICHMENT_UNREADABLE, a database is missing or cannot be opened.
            TransientError: the storage failed; ENRICHMENT_REPLACED, a database was replaced during each attempt.
        """
        declared = storage.model_dump_json()
        objects = _objects(declared, os.getpid())
        return cls(declared, resolved_variables(storage), {name: _pin(name, objects) for name in sorted(set(names))})

    def ledger_entries(self) -> list[dict[str, Any]]:
        """Returns the versions in the form stored in the prepared batch and the ledger."""
        return [
            {"database": fixed.name, "etag": fixed.etag, "build_epoch": fixed.build_epoch}
            for fixed in self.by_name.values()
        ]

    def open_lookup(self, name: str) -> AddressLookup:
        """Opens a database for look-ups, in any process.

        Raises:
            ConfigError: ENRICHMENT_UNREADABLE, it cannot be opened.
            TransientError: ENRICHMENT_REPLACED, it was replaced before this worker downloaded it.
        """
        set_missing_variables(self.variables)
        fixed = self.by_name[name]
        copy = _local_copy(name, fixed.etag, lambda: _objects(self.storage, os.getpid()))
        return AddressLookup(_open(name, copy), name)


class AddressLookup:
    """Looks up IP addresses in one database. Raises if the database is corrupt, and never returns null then."""

    def __init__(self, reader: maxminddb.Reader, name: str) -> None:
        self._reader = reader
        self._name = name
        self._only_ipv4 = reader.metadata().ip_version == 4

    def lookup(self, address: str) -> Record | None:
        """Returns the database record of an address, or None.

        Raises:
            ConfigError: ENRICHMENT_UNREADABLE, the database is corrupt at this record.
        """
        if self._only_ipv4 and ":" in address:
            return None
        try:
            return self._reader.get(address)
        except Exception as error:  # both readers may raise anything for corrupt data
            raise _unreadable(self._name, f"a look-up failed ({type(error).__name__})") from None


def _pin(name: str, objects: ObjectStore) -> PinnedDatabase:
    for _ in range(_PIN_ATTEMPTS):
        etag = objects.etag(paths.database(name))
        if etag is None:
            raise _unreadable(name, "the object is missing")
        try:
            copy = _local_copy(name, etag, lambda: objects)
        except TransientError as error:
            if error.condition != "ENRICHMENT_REPLACED":
                raise
            replaced = error
            continue
        reader = _open(name, copy)
        build_epoch = reader.metadata().build_epoch
        _warn_once(name, etag, build_epoch, slow=isinstance(reader, maxminddb.Reader))
        return PinnedDatabase(name, etag, build_epoch)
    raise replaced


@functools.lru_cache(maxsize=64)
def _warn_once(name: str, etag: str, build_epoch: int, *, slow: bool) -> None:
    """Warns about an outdated database, or one without the fast reader, once per version and process."""
    days = (time.time() - build_epoch) / 86_400
    if days > STALE_DAYS:
        log.warning("database=%s etag=%s was built %d days ago: addresses may be outdated", name, etag, days)
    if slow:  # maxminddb uses the slow reader without notice
        log.warning("database=%s is read by maxminddb's Python code, ten times slower than its C extension", name)


@functools.lru_cache(maxsize=4)
def _objects(storage: str, _process: int) -> ObjectStore:
    """Returns one client per process: a client inherited through a fork would share its connections."""
    return open_objects(StorageSpec.model_validate_json(storage))


def _local_copy(name: str, etag: str, objects: Any) -> Path:
    """Returns the local file of a database version, downloading it if needed."""
    folder = _cache_folder()
    name_digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    copy = folder / f"{name_digest}-{hashlib.sha256(etag.encode()).hexdigest()[:32]}.mmdb"
    with suppress(FileNotFoundError):
        os.utime(copy)
        return copy
    stored = objects().get(paths.database(name))
    if stored is None:
        raise _unreadable(name, "the object is missing")
    if stored.etag != etag:
        raise TransientError(
            "ENRICHMENT_REPLACED", f"Database {name!r} was replaced while a batch was parsed with its previous version."
        )
    partial = folder / f".{uuid.uuid4().hex}"
    partial.write_bytes(stored.data)
    partial.replace(copy)
    _delete_unused_copies(folder, keep=copy)
    return copy


def _cache_folder() -> Path:
    """Returns the local cache folder. Only this user may write to it, so no other user can inject databases."""
    folder = Path(tempfile.gettempdir()) / f"deltaworks-databases-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise ConfigError(
            "ENRICHMENT_UNREADABLE",
            f"Other users can access {folder}, so the databases in it are not trustworthy.",
            hint=f"Delete {folder}, or set TMPDIR to a private folder of this user.",
        )
    return folder


def _delete_unused_copies(folder: Path, *, keep: Path) -> None:
    """Deletes cached versions that are no longer used, because many licences limit how long they may be stored."""
    oldest_mtime = time.time() - _UNUSED_COPY_SECONDS
    for path in folder.iterdir():
        with suppress(OSError):
            if path != keep and path.stat().st_mtime < oldest_mtime:
                path.unlink()


def _open(name: str, copy: Path) -> maxminddb.Reader:
    try:
        return _reader(copy, os.getpid())
    except Exception as error:  # both readers may raise anything for corrupt data
        raise _unreadable(name, f"it cannot be opened ({type(error).__name__})") from None


@functools.lru_cache(maxsize=8)
def _reader(copy: Path, _process: int) -> maxminddb.Reader:
    return maxminddb.open_database(copy)


def _unreadable(name: str, reason: str) -> ConfigError:
    return ConfigError(
        "ENRICHMENT_UNREADABLE",
        f"Database {name!r} cannot be used: {reason}.",
        hint=f"Upload a valid file to {paths.database(name)} in the lake; the failed batch is then parsed again.",
    )
