"""Scans a complete lake for tokens: all tables, control folders, readers and the vault's tables.

Hits are classified by location. Tokens in rows, unused pages and bounds of prepared batches are leaks. Bounds in Delta
logs expire with the log, so they are counted separately, with the date after which the log contains none. Hits in
exempt tables are also counted separately.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any, Final, Literal

import pyarrow as pa
from pyarrow import fs

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.exclusive import maintenance_lock
from deltaworks.control.records.reprocess import reprocess_ids
from deltaworks.errors import ConcurrencyError
from deltaworks.events.decompression import detect_compression
from deltaworks.privacy.erasure.requests import Namespace
from deltaworks.privacy.erasure.token_search import TokenSearch
from deltaworks.privacy.paths import REQUESTS_IN_VAULT
from deltaworks.privacy.tokens.envelope_encryption import TOKEN_LENGTH
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.files import parquet_batches
from deltaworks.tables.lake import Lake, arrow_path, remove_folder
from deltaworks.tables.steps import read_last_completed, read_last_replay


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalTable:
    """A table that may have rows of a person.

    Args:
        needs_write_turn: whether a stream writes the table, so that a purge needs its write turn.
        exemption_reason: why its rows are exempt; empty if they are purged.
    """

    name: str
    needs_write_turn: bool
    exemption_reason: str = ""


def personal_tables(spec: PipelineSpec, home: PipelineHome) -> list[PersonalTable]:
    """Returns the tables of a pipeline that may have rows of people, including tables that do not exist yet.

    A keyed table is derived from its history. If the history is exempt, the keyed table is exempt too, because its
    purged rows would reappear.

    Raises:
        ContractError: REPROCESS_RECORD_UNREADABLE.
    """
    exempt = {table.name: table.erase_reason for table in spec.tables if table.erase == "keep"}
    derived = {keyed.name: keyed.history for keyed in (*spec.keyed_tables, *spec.latest_tables)}
    exempt |= {
        name: f"it follows {history}: {exempt[history]}" for name, history in derived.items() if history in exempt
    }
    written = dict.fromkeys([*(table.name for table in spec.tables), *spec.engine_tables, *derived], True)
    mutation_tables = [] if spec.mutations is None else [spec.mutations.names, spec.mutations.intervals]
    written |= dict.fromkeys((name for name in mutation_tables if name not in written), False)
    tables = [
        PersonalTable(name=name, needs_write_turn=turn, exemption_reason=exempt.get(name, ""))
        for name, turn in written.items()
    ]
    return [*tables, *_shadow_tables(spec, home, exempt)]


def _shadow_tables(spec: PipelineSpec, home: PipelineHome, exempt: Mapping[str, str]) -> Iterator[PersonalTable]:
    """Yields the shadow tables created by reprocesses."""
    for name in reprocess_ids(home.objects, spec.pipeline):
        plan = home.reprocess(name).plan()
        if plan is not None and plan.mode == "shadow":
            for table in dict.fromkeys([*plan.tables, *(spec.engine_tables if plan.all_tables else ())]):
                yield PersonalTable(
                    name=f"{table}__{plan.id}", needs_write_turn=False, exemption_reason=exempt.get(table, "")
                )


_CHUNK_BYTES: Final = 4 << 20
_PARQUET: Final = b"PAR1"
_GZIP: Final = b"\x1f\x8b"
#: Enough for the frames that zstd ignores.
_HEAD_BYTES: Final = 64 << 10
_FOOTER_END: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedObject:
    """Result of scanning one object. If a part could be scanned as raw bytes only, `damaged` is the reason."""

    key: str
    bytes: int
    tokens: frozenset[str]
    damaged: str = ""


def scan_object(lake: Lake, key: str, search: TokenSearch) -> ScannedObject:
    """Scans the object at `key`; the format is detected by content. A missing object has no tokens."""
    return scan_path(lake.filesystem, arrow_path(lake.storage, key), search, key=key)


def scan_path(filesystem: fs.FileSystem, path: str, search: TokenSearch, *, key: str = "") -> ScannedObject:
    """Like `scan_object`, with a filesystem path."""
    tokens: set[str] = set()
    damaged, size = "", 0
    try:
        with filesystem.open_input_file(path) as source:
            size = source.size()
            try:
                for part in _scan_content(source, size, search):
                    tokens |= part
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, zlib.error, EOFError) as error:
                damaged = f"{type(error).__name__}: {error}"[:200]
                source.seek(0)
                for part in _scan_chunks(iter(lambda: source.read(_CHUNK_BYTES), b""), search):
                    tokens |= part
    except FileNotFoundError:
        return ScannedObject(key=key or path, bytes=0, tokens=frozenset())
    return ScannedObject(key=key or path, bytes=size, tokens=frozenset(tokens), damaged=damaged)


def _scan_content(source: Any, size: int, search: TokenSearch) -> Iterator[set[str]]:
    head = source.read(_HEAD_BYTES)
    source.seek(0)
    if head.startswith(_PARQUET):
        yield from _scan_parquet(source, size, search)
    elif head.startswith(_GZIP):
        yield from _scan_chunks(_inflate(source), search)
    elif detect_compression(head) == "zstd":
        with pa.CompressedInputStream(source, "zstd") as plain:
            yield from _scan_chunks(iter(lambda: plain.read(_CHUNK_BYTES), b""), search)
    else:
        yield from _scan_chunks(iter(lambda: source.read(_CHUNK_BYTES), b""), search)


def _scan_parquet(source: Any, size: int, search: TokenSearch) -> Iterator[set[str]]:
    source.seek(max(0, size - _FOOTER_END))
    length = int.from_bytes(source.read(4), "little")
    source.seek(max(0, size - _FOOTER_END - length))
    yield search.tokens_in_bytes(source.read(length))
    source.seek(0)
    for batch in parquet_batches(source, dictionary_encoded=True):
        for column in batch.columns:
            yield search.tokens_in_column(column)


def _inflate(source: Any) -> Iterator[bytes]:
    """Yields the content of a gzip file, including multiple members.

    Raises:
        EOFError, zlib.error: it is truncated, or other data follows.
    """
    inflater, at_member_end = zlib.decompressobj(wbits=31), True
    while data := source.read(_CHUNK_BYTES):
        while data:
            at_member_end = False
            yield inflater.decompress(data, _CHUNK_BYTES)
            data = inflater.unconsumed_tail
            if inflater.eof:
                data, inflater, at_member_end = inflater.unused_data, zlib.decompressobj(wbits=31), True
    if not at_member_end:
        raise EOFError("its end is missing")


def _scan_chunks(chunks: Iterator[bytes], search: TokenSearch) -> Iterator[set[str]]:
    """Yields the tokens in chunks. The end of each chunk is scanned again with the next one, for tokens across the
    boundary.
    """
    rest = b""
    for chunk in chunks:
        data = rest + chunk
        yield search.tokens_in_bytes(data)
        rest = data[-(TOKEN_LENGTH - 1) :]


_THREADS = 4
_LOG_FOLDER = "/_delta_log/"
_VAULT = "vault/"
_REQUESTS = _VAULT + REQUESTS_IN_VAULT
_INTERVAL = re.compile(r"(\d+)\s+(hour|day|week)s?")
_HOURS = {"hour": 1, "day": 24, "week": 168}
_LOG_DAYS = 30
#: Margin, since a log is cleaned at a day boundary with the next checkpoint after its retention.
_LOG_MARGIN = timedelta(days=1)
MAX_NAMED = 20
HitCategory = Literal["leak", "log", "kept"]
HIT_CATEGORIES: tuple[HitCategory, ...] = ("leak", "log", "kept")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanReport:
    """Result of a scan.

    Args:
        hits: keys of objects with a token, by category (leaks, Delta logs, exempt tables) and token.
    """

    objects: int = 0
    bytes: int = 0
    damaged: tuple[str, ...] = ()
    hits: Mapping[HitCategory, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    def keys_with(self, category: HitCategory, tokens: Iterable[str]) -> set[str]:
        """Returns the objects of a category that contain any of these tokens."""
        by_token = self.hits.get(category, {})
        return {key for token in tokens for key in by_token.get(token, ())}

    def count_objects(self, tokens: Iterable[str]) -> int:
        """Returns the number of objects that contain any of these tokens, in all categories."""
        distinct = frozenset(tokens)
        return sum(len(self.keys_with(category, distinct)) for category in HIT_CATEGORIES)


def scan_namespace(namespace: Namespace, search: TokenSearch) -> ScanReport:
    """Scans the lake and the vault's tables. Read-only; memory is bounded."""
    exempt_folders = [
        paths.table(spec.pipeline, table.name) + "/"
        for spec in namespace.pipelines
        for table in personal_tables(spec, namespace.home(spec.pipeline))
        if table.exemption_reason
    ]
    lakes = [(namespace.lake, ""), (namespace.vault_lake, _VAULT)]
    return build_report(_scan_files(lakes, search), exempt_folders=exempt_folders)


def build_report(scanned: Iterable[ScannedObject], *, exempt_folders: Iterable[str]) -> ScanReport:
    """Builds a report from scanned objects."""
    exempt_prefixes = tuple(exempt_folders)
    objects = size = 0
    damaged: list[str] = []
    hits: dict[HitCategory, dict[str, list[str]]] = {place: {} for place in HIT_CATEGORIES}
    for item in scanned:
        objects, size = objects + 1, size + item.bytes
        damaged += [f"{item.key}: {item.damaged}"] if item.damaged else []
        is_exempt = bool(exempt_prefixes) and item.key.startswith(exempt_prefixes)
        category: HitCategory = "kept" if is_exempt else "log" if _LOG_FOLDER in item.key else "leak"
        if item.key.startswith(_REQUESTS):
            continue  # records of persons of open requests, which certification deletes
        for token in item.tokens:
            hits[category].setdefault(token, []).append(item.key)
    return ScanReport(
        objects=objects,
        bytes=size,
        damaged=tuple(damaged[:MAX_NAMED]),
        hits={place: {token: tuple(keys) for token, keys in by.items()} for place, by in hits.items()},
    )


def _scan_files(lakes: Iterable[tuple[Lake, str]], search: TokenSearch) -> Iterator[ScannedObject]:
    for lake, prefix in lakes:
        root = arrow_path(lake.storage, "").rstrip("/")
        read = partial(_scan_file, lake.filesystem, search, root, prefix)
        with ThreadPoolExecutor(_THREADS) as pool:
            yield from pool.map(read, _list_files(lake, root))


def _scan_file(filesystem: fs.FileSystem, search: TokenSearch, root: str, prefix: str, path: str) -> ScannedObject:
    return scan_path(filesystem, path, search, key=prefix + path.removeprefix(f"{root}/"))


def _list_files(lake: Lake, root: str) -> list[str]:
    listed = lake.filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    return sorted(info.path for info in listed if info.type is fs.FileType.File)


def log_clean_after(retentions: Iterable[str], purged_at: datetime) -> datetime:
    """Returns the time after which no log contains bounds of the purged rows.

    Args:
        retentions: `delta.logRetentionDuration` of the tables; empty for Delta's default.
    """
    return purged_at + timedelta(hours=max(map(_hours, retentions), default=_LOG_DAYS * 24)) + _LOG_MARGIN


def _hours(interval: str) -> int:
    match = _INTERVAL.search(interval)
    return int(match[1]) * _HOURS[match[2]] if match else _LOG_DAYS * 24


_PREPARED = re.compile(r"/prepared/g(\d+)/(\d+)\.json$")
_REPLAY = re.compile(r"/replays/(\d+)\.json$")
_SHADOW = re.compile(r".*/gold_shadows/[^/]+/\d+(?=/)")


def remove_references(
    namespace: Namespace, pipeline: str, search: TokenSearch, *, purged: Mapping[str, frozenset[str]]
) -> None:
    """Removes control objects of a pipeline that refer to purged rows. Idempotent; safe while the stream runs.

    Args:
        purged: files that erasure windows removed, by `<pipeline>.<table>`.
    """
    home = namespace.home(pipeline)
    names = frozenset(path.rpartition("/")[2].encode() for paths in purged.values() for path in paths)
    for key in chain(_complete_batches(namespace, home), _complete_replays(namespace, home)):
        stored = home.objects.get(key)
        if stored is not None and (search.tokens_in_bytes(stored.data) or any(name in stored.data for name in names)):
            home.objects.delete(key)
    for folder in ("staging", "reprocess", "crashes"):
        for key in home.objects.list(f"{home.control(folder)}/"):
            if scan_object(namespace.lake, key, search).tokens:
                home.objects.delete(key)
    remove_gold_shadows(namespace, pipeline, search)


def remove_gold_shadows(namespace: Namespace, pipeline: str, search: TokenSearch) -> None:
    """Deletes gold shadow tables with rows of these people; the next refresh builds a new one. Idempotent.

    A shadow in use by a refresh is skipped, because it is updated from the purged tables before it is swapped in, and
    deleted afterwards. A shadow is deleted completely, its log first: with only some files missing the next refresh
    would continue with it, but could not read it.
    """
    home = namespace.home(pipeline)
    shadows: dict[str, list[str]] = {}
    for key in home.objects.list(f"{home.control('gold_shadows')}/"):
        if match := _SHADOW.search(key):
            shadows.setdefault(match[0], []).append(key)
    for shadow, keys in shadows.items():
        if not any(scan_object(namespace.lake, key, search).tokens for key in keys):
            continue
        folder = shadow.rpartition("/")[0]
        with (
            suppress(ConcurrencyError),
            maintenance_lock(home.objects, pipeline, work="an erasure", folder=folder) as lock,
        ):
            remove_folder(namespace.lake.storage, f"{shadow}/_delta_log")
            lock.check()
            remove_folder(namespace.lake.storage, shadow)


def _complete_batches(namespace: Namespace, home: PipelineHome) -> Iterator[str]:
    """Yields complete batches of the current generation, and all batches of earlier generations."""
    generation = home.generations.current()
    last = read_last_completed(namespace.lake, home.pipeline, generation)
    for key in home.objects.list(f"{home.control('prepared')}/"):
        match = _PREPARED.search(key)
        if match is not None and (int(match[1]), int(match[2])) < (generation, -1 if last is None else last):
            yield key


def _complete_replays(namespace: Namespace, home: PipelineHome) -> Iterator[str]:
    last = read_last_replay(namespace.lake, home.pipeline)
    for key in home.objects.list(f"{home.control('replays')}/"):
        match = _REPLAY.search(key)
        if match is not None and int(match[1]) <= last:
            yield key
