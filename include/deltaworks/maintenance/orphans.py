"""Orphans: files a batch wrote and no commit ever named, since its driver died before the batch was fixed.

They cost space and nothing else. They are listed by table, and removed when told: never a file that a prepared batch, a
replay or a reprocess still names, never one that is or was in the table's log (that is VACUUM's), never a young one,
which a task may just have written. Files staged for the Spark writer are looked after too, and prepared batches that
are complete and old. Needs no JVM.

"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from deltalake.exceptions import DeltaError
from pyarrow import fs

from deltaworks.control import paths
from deltaworks.control.locks.table_files import unless_held
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ConfigError
from deltaworks.maintenance.exclusive import keeping_alone
from deltaworks.maintenance.prepared_upkeep import remove_old_prepared
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.needed_files import HeldFiles, file_infos, files_named_elsewhere, uncommitted_files

#: No driver that is alive takes this long from writing a file to fixing its batch, and tables keep for so long what was
#: removed from them.
MINIMUM_AGE_HOURS = 168
#: The most files one run removes of one table, so that a mistake is a small one.
MOST_FILES = 100_000


@dataclass(frozen=True, slots=True)
class OrphanResult:
    """Orphans of one table, or staged files of it, or prepared batches, that were removed or would be."""

    what: str
    dry_run: bool
    files: int
    bytes: int
    oldest: str
    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    size: int
    changed_at: datetime


def remove_orphans(
    catalog: Catalog,
    pipeline: str,
    *,
    dry_run: bool = True,
    age_hours: int = MINIMUM_AGE_HOURS,
    tables: Sequence[str] | None = None,
) -> list[OrphanResult]:
    """List, or remove, the orphans of a pipeline's bronze tables and quarantine. Idempotent; safe beside the stream.

    Args:
        age_hours: files younger than this are left alone. A dry run may look at younger ones.
        tables: names of tables; by default all.

    Raises:
        ConfigError: ORPHAN_AGE_TOO_SHORT or TABLE_UNKNOWN.
        ConcurrencyError: MAINTENANCE_RUNNING, MAINTENANCE_LOCK_LOST; not in a dry run.
    """
    spec = catalog.pipeline(pipeline)
    if age_hours < MINIMUM_AGE_HOURS and not dry_run:
        raise ConfigError(
            "ORPHAN_AGE_TOO_SHORT",
            f"Files younger than {MINIMUM_AGE_HOURS} h may belong to a batch or a version that is still needed.",
            hint=f"Use {MINIMUM_AGE_HOURS} h or more.",
        )
    known = [*(table.name for table in spec.tables), "quarantine"]
    unknown = sorted(set(tables or ()) - set(known))
    if unknown:
        raise ConfigError(
            "TABLE_UNKNOWN",
            f"Pipeline {pipeline!r} has no table {', '.join(unknown)}.",
            hint=f"Its bronze tables are {', '.join(known)}.",
        )
    wanted = [name for name in known if not tables or name in tables]
    run = partial(_run, catalog, pipeline, wanted, age_hours=age_hours, dry_run=dry_run)
    if dry_run:
        return run(lambda: None)
    with keeping_alone(open_objects(catalog.environment.lake), pipeline, work="the removal of orphans") as lock:
        return run(lock.check)


def _run(
    catalog: Catalog,
    pipeline: str,
    wanted: Sequence[str],
    check: Callable[[], None],
    *,
    age_hours: int,
    dry_run: bool,
) -> list[OrphanResult]:
    before = datetime.now(tz=UTC) - timedelta(hours=age_hours)
    lake, objects = Lake(catalog.environment.lake), open_objects(catalog.environment.lake)
    # First what is protected, then what lies there: what is committed in between was protected when it was asked about.
    held = uncommitted_files(lake, objects, pipeline)
    elsewhere = files_named_elsewhere(objects, pipeline)
    results = []
    for name in wanted:
        check()
        protected = held.get(name, HeldFiles()).paths | elsewhere
        of_table = partial(_of_table, lake, pipeline, name, before, protected, age_hours=age_hours, dry_run=dry_run)
        left_out = partial(OrphanResult, name, dry_run, 0, 0, "", 0.0)
        results.append(
            unless_held(
                objects, pipeline, name, work="Removing orphans", do=of_table, left_out=left_out, dry_run=dry_run
            )
        )
        staged = _staged(lake, pipeline, name, before, protected)
        if staged:
            results.append(_remove(lake, f"{name} (staged)", staged, dry_run=dry_run))
    check()
    results.append(_prepared(lake, objects, pipeline, held, dry_run=dry_run))
    return results


def _of_table(
    lake: Lake, pipeline: str, name: str, before: datetime, protected: set[str], *, age_hours: int, dry_run: bool
) -> OrphanResult:
    key = paths.table(pipeline, name)
    table = lake.open(key)
    if table is None:
        return OrphanResult(name, dry_run, 0, 0, "", 0.0, "it does not exist yet")
    try:
        # All that no snapshot in the retention needs, less what the log has known: the rest was never in it.
        unneeded, known = (
            set(table.vacuum(age_hours, dry_run=True, enforce_retention_duration=not dry_run, full=full))
            for full in (True, False)
        )
    except DeltaError as error:
        return OrphanResult(name, dry_run, 0, 0, "", 0.0, f"left to VACUUM: {error}"[:300])
    candidates = sorted(path for path in unneeded - known - protected if not path.startswith("_"))
    root = arrow_path(lake.storage, key)
    found = [each for each in _looked_up(lake, root, candidates) if each.changed_at < before]
    return _remove(lake, name, found[:MOST_FILES], dry_run=dry_run)


def _looked_up(lake: Lake, root: str, candidates: Sequence[str]) -> Iterator[_Found]:
    for info in file_infos(lake, [f"{root}/{path}" for path in candidates]):
        if info.mtime is not None:
            yield _Found(info.path, info.size or 0, info.mtime)


def _staged(lake: Lake, pipeline: str, name: str, before: datetime, protected: set[str]) -> list[_Found]:
    """Files staged for the Spark writer that no uncommitted batch names."""
    root = arrow_path(lake.storage, paths.pipeline_control(pipeline, f"staging/{name}"))
    selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
    return [
        _Found(info.path, info.size or 0, info.mtime)
        for info in lake.filesystem.get_file_info(selector)
        if info.type is fs.FileType.File
        and info.mtime is not None
        and info.mtime < before
        and info.path.removeprefix(f"{root}/") not in protected
    ]


def _remove(lake: Lake, what: str, found: Sequence[_Found], *, dry_run: bool) -> OrphanResult:
    started = time.monotonic()
    if not dry_run:
        for each in found:
            lake.filesystem.delete_file(each.path)
    oldest = min((each.changed_at for each in found), default=None)
    return OrphanResult(
        what=what,
        dry_run=dry_run,
        files=len(found),
        bytes=sum(each.size for each in found),
        oldest=oldest.isoformat(timespec="seconds") if oldest else "",
        seconds=time.monotonic() - started,
    )


def _prepared(
    lake: Lake, objects: ObjectStore, pipeline: str, held: dict[str, HeldFiles], *, dry_run: bool
) -> OrphanResult:
    started = time.monotonic()
    held_back = any(each.held_back for each in held.values())
    done = remove_old_prepared(lake, objects, pipeline, keep_all=held_back, dry_run=dry_run)
    return OrphanResult("prepared batches", dry_run, done.removed, 0, "", time.monotonic() - started, done.reason)
