"""Scans a complete lake for tokens: all tables, control folders, readers and the vault's tables.

Hits are classified by location. Tokens in rows, unused pages and bounds of prepared batches are leaks. Bounds in Delta
logs expire with the log, so they are counted separately, with the date after which the log contains none. Hits in
exempt tables are also counted separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Literal

from pyarrow import fs

from deltaworks.control import paths
from deltaworks.erasure.namespace import Namespace
from deltaworks.erasure.personal_tables import personal_tables
from deltaworks.erasure.scan_formats import ScannedObject, scan_path
from deltaworks.erasure.token_search import TokenSearch
from deltaworks.privacy.paths import REQUESTS_IN_VAULT
from deltaworks.tables.lake import Lake, arrow_path

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
