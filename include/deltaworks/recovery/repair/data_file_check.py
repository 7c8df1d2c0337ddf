"""`python -m deltaworks.recovery.repair.data_file_check`: compares the files of tables with their logs, in rotation.

A deleted or cut file is otherwise found by its next reader, which may come after the retention of the objects with its
rows. Each run takes a bounded number of requests and seconds: tables and partitions that were written lately are
compared in each run, the others when it is their turn. Only paths and sizes are compared; no file is opened.

A file is reported only if the log still names it after its absence was seen, since OPTIMIZE, VACUUM and erasures remove
files from the log before they delete them. What could not be read is unknown: its alert stays as it is.
"""

from __future__ import annotations

import argparse
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import fs
from pydantic import Field

from deltaworks.alerts import raise_alert, resolve_alert
from deltaworks.alerts.raising import open_subjects
from deltaworks.control import paths
from deltaworks.control.clock import utc_now
from deltaworks.control.foreign_errors import DATA_FILE_CONDITIONS
from deltaworks.control.job import print_results, run_job
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.store import Instant, StateRecord
from deltaworks.errors import ContractError, TransientError
from deltaworks.maintenance.table_health.catalog_tables import declared_tables, describe_error, map_tables
from deltaworks.recovery.repair.log_gap import file_repair
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import is_absolute_path
from deltaworks.tables.protected_files import MISSING, find_damaged_files

log = logging.getLogger(__name__)
#: Bounds of one run. The check is made every minute.
MAX_REQUESTS: Final = 1_000
MAX_SECONDS: Final = 10.0
#: What opening a table takes: its last checkpoint, a listing of its log, and the commits since.
_REQUESTS_TO_OPEN = 5
#: Partitions of a table that a run compares at least, however many tables there are.
_MIN_REQUESTS_PER_TABLE = 20
#: A table with at most so many files and commits is listed as a whole: one request for a thousand objects.
_SMALL_TABLE_FILES, _SMALL_TABLE_COMMITS = 500, 1_000
#: Up to so many files of a partition are looked up one by one, which costs less than a listing.
_MAX_LOOKUPS = 16
#: Files written later than the previous check, by the clock of their writer, are compared first.
_CLOCK_SKEW_MS = 600_000
#: A table that changed within this time is checked as often as if it had waited so many times as long.
_RECENT, _RECENT_WEIGHT = timedelta(hours=1), 4
#: Missing files of a table that are looked up again before they are reported.
_MAX_CONFIRMED = 20
_NAMES_SHOWN = 3
#: Objects that S3 lists at once, next to the files of old versions and the log.
_LISTED_PER_REQUEST = 500
#: A folder counts as at most so many requests, so that it fits into a run.
_MAX_COST = 200


class TableProgress(StateRecord):
    """How far the files of a table are compared. Times are those of the starts of runs.

    The current round has compared the partitions up to `cursor`, by name. Files that existed at `covered_at` have all
    been compared since. `damaged` has the problems of files by path.
    """

    checked_at: Instant
    changed_at_ms: int = 0
    cursor: str = ""
    round_at: Instant | None = None
    covered_at: Instant | None = None
    damaged: dict[str, str] = Field(default_factory=dict)


class FileCheckState(StateRecord):
    """How far the files of all tables are compared, by table key. Written by the health check only."""

    tables: dict[str, TableProgress] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheck:
    """The result of one run. `unknown` tables could not be compared; `waiting` ones are next. `condition` is the one of
    all damaged files, empty without any.

    All files that existed at `covered_at` have been compared since; None before the first rotation has ended.
    """

    tables: int
    compared: int
    waiting: int
    requests: int
    seconds: float
    damaged: tuple[str, ...]
    unknown: tuple[str, ...]
    covered_at: datetime | None
    condition: str


@dataclass(slots=True)
class Budget:
    """The requests and the time that remain for a run, for several threads."""

    tables: int
    requests: int = MAX_REQUESTS
    seconds: float = MAX_SECONDS
    clock: Callable[[], float] = time.monotonic
    used: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ends_at: float = 0.0

    def __post_init__(self) -> None:
        self._ends_at = self.clock() + self.seconds

    def take(self, requests: int) -> bool:
        """Takes requests, unless too few remain or the time is over."""
        with self._lock:
            if self.used + requests > self.requests or self.clock() >= self._ends_at:
                return False
            self.used += requests
            return True

    def share(self) -> int:
        """Returns the requests of the next table: an equal share of what those before it have not used."""
        with self._lock:
            share = (self.requests - self.used) // max(1, self.tables)
            self.tables -= 1
            return max(_MIN_REQUESTS_PER_TABLE, share)


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file that the newest version of a table names: its size, and when its writer says it was written."""

    size: int
    written_at_ms: int


def check_order(keys: Iterable[str], state: FileCheckState, *, now: datetime) -> list[str]:
    """Returns tables in the order of their check: damaged ones, new ones, then by waiting time, which counts several
    times for a table that changes.
    """

    def rank(key: str) -> tuple[int, float, str]:
        progress = state.tables.get(key)
        if progress is None:
            return 1, 0.0, key
        waited = max(0.0, (now - progress.checked_at).total_seconds())
        changed_ago = now.timestamp() - progress.changed_at_ms / 1000
        is_recent = changed_ago <= _RECENT.total_seconds() + waited
        return 2 - 2 * bool(progress.damaged), -waited * (_RECENT_WEIGHT if is_recent else 1), key

    return sorted(keys, key=rank)


def live_files(lake: Lake, key: str) -> tuple[dict[str, LiveFile], int] | None:
    """Returns the files of the newest version of a table, by path, and that version; None without a table.

    Files of other tables, with an absolute path, are left to these.
    """
    table = lake.open(key)
    if table is None:
        return None
    added = pa.table(table.get_add_actions()).select(["path", "size_bytes", "modification_time"])
    files = {
        unquote(path): LiveFile(size, written_at_ms)
        for path, size, written_at_ms in zip(*(column.to_pylist() for column in added.columns), strict=True)
        if not is_absolute_path(unquote(path))
    }
    return files, table.version()


def check_table(
    lake: Lake, key: str, progress: TableProgress | None, budget: Budget, *, now: datetime
) -> TableProgress | None:
    """Compares files of a table with the storage, as far as the budget goes. None if it is used up.

    Raises:
        The errors of the storage and of reading the log: nothing is known then.
    """
    if not budget.take(_REQUESTS_TO_OPEN):
        return None
    share, before = budget.share(), progress or TableProgress(checked_at=now)
    opened = live_files(lake, key)
    if opened is None:
        return TableProgress(checked_at=now, covered_at=now)
    files, version = opened
    is_small = len(files) <= _SMALL_TABLE_FILES and version <= _SMALL_TABLE_COMMITS
    folders = {"": files} if is_small else _by_folder(files)
    written = [] if is_small else list(_written_lately(folders, before, max_requests=share // 2))
    remaining = sorted(folder for folder in folders if is_small or folder > before.cursor or not before.cursor)
    progress = before.replace(
        checked_at=now,
        changed_at_ms=max((file.written_at_ms for file in files.values()), default=0),
        round_at=before.round_at or now,
    )
    suspects, compared = {path for path in before.damaged if path in files}, set[str]()
    for position, folder in enumerate([*written, *remaining]):
        if folder not in compared:
            cost = _cost(folders[folder], is_recursive=is_small)
            share -= cost
            # One folder is compared in any case, so that a large one is not put off for ever.
            if (compared and share < 0) or not budget.take(cost):
                break
            sizes = _stored_sizes(lake, key, folder, folders[folder], is_recursive=is_small)
            suspects |= {path for path, file in folders[folder].items() if sizes.get(path) != file.size}
            compared.add(folder)
        if position >= len(written):
            progress = progress.replace(cursor=folder)
    else:
        progress = progress.replace(cursor="", round_at=None, covered_at=progress.round_at)
    return progress.replace(damaged=_confirmed(lake, key, files, suspects))


def _by_folder(files: Mapping[str, LiveFile]) -> dict[str, dict[str, LiveFile]]:
    folders: dict[str, dict[str, LiveFile]] = {}
    for path, file in files.items():
        folders.setdefault(path.rpartition("/")[0], {})[path] = file
    return folders


def _written_lately(
    folders: Mapping[str, Mapping[str, LiveFile]], before: TableProgress, *, max_requests: int
) -> Iterator[str]:
    """Yields the folders that were written since the last check, newest first, up to a number of requests."""
    newest = {
        folder: max((file.written_at_ms for file in files.values()), default=0) for folder, files in folders.items()
    }
    since_ms = before.checked_at.timestamp() * 1000 - _CLOCK_SKEW_MS
    for folder in sorted(newest, key=lambda folder: (-newest[folder], folder)):
        max_requests -= _cost(folders[folder])
        if newest[folder] < since_ms or max_requests < 0:
            return
        yield folder


def _cost(files: Mapping[str, LiveFile], *, is_recursive: bool = False) -> int:
    """Returns the requests that comparing the files of a folder takes. A listing has files of old versions too."""
    if len(files) <= _MAX_LOOKUPS and not is_recursive:
        return max(1, len(files))
    return min(_MAX_COST, 2 + len(files) // _LISTED_PER_REQUEST)


def _stored_sizes(
    lake: Lake, key: str, folder: str, files: Mapping[str, LiveFile], *, is_recursive: bool
) -> dict[str, int]:
    """Returns the sizes of a folder's files that exist, by path: of few files one by one, of others by a listing."""
    root = arrow_path(lake.storage, key)
    if len(files) <= _MAX_LOOKUPS and not is_recursive:
        infos = lake.filesystem.get_file_info([f"{root}/{path}" for path in files])
    else:
        listed = f"{root}/{folder}".rstrip("/")
        infos = lake.filesystem.get_file_info(fs.FileSelector(listed, recursive=is_recursive, allow_not_found=True))
    return {info.path.removeprefix(f"{root}/"): info.size for info in infos if info.type is fs.FileType.File}


def _confirmed(lake: Lake, key: str, files: Mapping[str, LiveFile], suspects: Iterable[str]) -> dict[str, str]:
    """Returns the problems of files that are looked up again and that the log still names after that."""
    actions = [{"path": quote(path), "size": files[path].size} for path in sorted(suspects)[:_MAX_CONFIRMED]]
    problems = find_damaged_files(lake, key, actions)
    opened = live_files(lake, key) if problems else None
    return {} if opened is None else {path: problem for path, problem in problems.items() if path in opened[0]}


def check_files(catalog: Catalog, objects: ObjectStore, *, now: datetime, budget: Budget | None = None) -> FileCheck:
    """Compares the files of all tables as far as the budget goes, and raises and resolves the alerts of tables."""
    started = time.monotonic()
    state = FileCheckState.read_or_none(objects, paths.data_file_checks()) or FileCheckState()
    declared = {table.key: table for table in declared_tables(catalog, control=False)}
    order = check_order(declared, state, now=now)
    budget = budget or Budget(tables=len(order))
    unknown: dict[str, str] = {}

    def check(lake: Lake, key: str) -> TableProgress | None:
        try:
            return check_table(lake, key, state.tables.get(key), budget, now=now)
        except Exception as error:  # of the storage, or of a damaged log: the stored files are unknown
            unknown[key] = describe_error(error)
            return (state.tables.get(key) or TableProgress(checked_at=now)).replace(checked_at=now)

    checked = dict(zip(order, map_tables(catalog.environment.lake, order, check), strict=True))
    reached = {key: progress for key, progress in checked.items() if progress is not None}
    unchecked = {key: progress for key, progress in state.tables.items() if key in declared or _is_broken(catalog, key)}
    state = FileCheckState(tables=unchecked | reached)
    objects.put(paths.data_file_checks(), state.encode())
    _alert(catalog, objects, declared.keys(), state, now=now)
    damaged = _damaged(state)
    covered = [state.tables[key].covered_at if key in state.tables else None for key in declared]
    return FileCheck(
        tables=len(declared),
        compared=len(reached) - len(unknown),
        waiting=len(declared.keys() - reached.keys()),
        requests=budget.used,
        seconds=round(time.monotonic() - started, 2),
        damaged=tuple(_describe(key, problems) for key, problems in damaged.items()),
        unknown=tuple(f"{_subject(key)}: {cause}" for key, cause in unknown.items()),
        covered_at=min((at for at in covered if at is not None), default=None) if None not in covered else None,
        condition=_condition({path: text for problems in damaged.values() for path, text in problems.items()}),
    )


def _alert(catalog: Catalog, objects: ObjectStore, declared: Set[str], state: FileCheckState, *, now: datetime) -> None:
    """Raises an alert for each damaged table, and resolves those of tables whose files were all compared."""
    damaged = _damaged(state)
    covered = {key for key, progress in state.tables.items() if progress.covered_at is not None}
    uncompared = {_subject(key) for key in (declared | state.tables.keys()) - covered}
    for condition in DATA_FILE_CONDITIONS:
        keys = {_subject(key): key for key, problems in damaged.items() if _condition(problems) == condition}
        for subject in open_subjects(objects, condition) - keys.keys() - uncompared:
            resolve_alert(objects, cause=condition, subject=subject, summary="It has all its files.", now=now)
        for subject, key in keys.items():
            if _is_broken(catalog, key):
                continue
            pipeline, _, table = subject.partition(".")
            step = file_repair(catalog.pipeline(pipeline), table)
            raise_alert(
                objects,
                cause=condition,
                subject=subject,
                summary=f"{_describe(key, damaged[key])} Next: {step}",
                detail={"next_step": step, "files": sorted(damaged[key])[:_NAMES_SHOWN]},
                now=now,
            )


def _damaged(state: FileCheckState) -> dict[str, dict[str, str]]:
    return {key: progress.damaged for key, progress in state.tables.items() if progress.damaged}


def _condition(problems: Mapping[str, str]) -> str:
    """Returns the condition of damaged files; empty without any."""
    missing, unreadable = DATA_FILE_CONDITIONS
    return "" if not problems else missing if MISSING in problems.values() else unreadable


def _is_broken(catalog: Catalog, key: str) -> bool:
    """Returns whether the table's pipeline is declared but invalid, so that its tables are not checked."""
    return ("pipeline", _subject(key).partition(".")[0]) in catalog.broken


def _subject(key: str) -> str:
    """Returns the subject of a table's alerts: pipeline and table."""
    return ".".join(key.split("/")[-2:])


def _describe(key: str, problems: Mapping[str, str]) -> str:
    named = [f"{path} {problem}" for path, problem in sorted(problems.items())[:_NAMES_SHOWN]]
    rest = len(problems) - len(named)
    more = f"; {rest}{' or more' if len(problems) >= _MAX_CONFIRMED else ''} further files" if rest else ""
    return f"{_subject(key)}: data file {'; '.join(named)}{more}."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    catalog = load_catalog(skip_invalid=True)
    result = check_files(catalog, open_objects(catalog.environment.lake), now=utc_now())
    print_results([result])
    for problem in result.unknown:
        log.warning("Not compared: %s", problem)
    if result.damaged:
        raise ContractError(
            result.condition, " ".join(result.damaged), hint="The alert of each table has the command that repairs it."
        )
    if result.unknown and not result.compared:
        raise TransientError("STORAGE_UNREACHABLE", f"No table could be compared: {result.unknown[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
