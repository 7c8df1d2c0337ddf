"""The job of a rollback's DAG, without Spark: counts unless told otherwise, and prints one result for all tables.

`python -m deltaworks.rework.restore.job --pipeline games --table events --to-batch 41`
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
from dataclasses import dataclass

from deltaworks.control.job import print_results, run_job
from deltaworks.errors import ConfigError
from deltaworks.rework.restore.one_table import TableRestore
from deltaworks.rework.restore.points import RestorePoint
from deltaworks.rework.restore.table_plan import TableRestoreRequest
from deltaworks.rework.start_over import start_over
from deltaworks.specs.catalog import Catalog, load_catalog


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackResult:
    """What went, or would go: `rows_out` is the bound that the deed is given, `told` says it for people."""

    pipeline: str
    table: str
    dry_run: bool
    rows_out: int
    told: str


def point_of(*, version: str, time: str, batch: str) -> RestorePoint:
    """What to go back to, from the texts of a form or a command line.

    Raises:
        ConfigError: RESTORE_POINT.
    """
    try:
        at = dt.datetime.fromisoformat(time) if time else None
    except ValueError as error:
        raise ConfigError(
            "RESTORE_POINT", f"{time!r} is no time in ISO 8601.", hint="Write it as 2026-01-31T12:00:00Z."
        ) from error
    return RestorePoint(
        version=int(version) if version else None,
        time=at.replace(tzinfo=dt.UTC) if at is not None and at.tzinfo is None else at,
        batch=int(batch) if batch else None,
    )


def main() -> int:
    """The job."""
    parser = argparse.ArgumentParser(prog="python -m deltaworks.rework.restore.job", description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--table", default="", help="one table; without it all tables of the pipeline")
    for name in ("version", "time", "batch"):
        parser.add_argument(f"--to-{name}", default="")
    parser.add_argument("--repair", default="prepared", choices=("prepared", "source", "none"))
    parser.add_argument("--reason", default="")
    parser.add_argument("--max-rows", type=int)
    parser.add_argument("--no-dry-run", dest="dry_run", action="store_false", help="do it, instead of counting")
    given = parser.parse_args()
    point = point_of(version=given.to_version, time=given.to_time, batch=given.to_batch)
    restore = _one if given.table else _all
    print_results([restore(load_catalog(tolerant=True), given, point)])
    return 0


def _one(catalog: Catalog, given: argparse.Namespace, point: RestorePoint) -> RollbackResult:
    request = TableRestoreRequest(point=point, repair=given.repair, max_rows=given.max_rows, reason=given.reason)
    restore = TableRestore(catalog, given.pipeline, given.table)
    done = restore.count(request) if given.dry_run else restore.run(request)
    batches = sum(share.kind == "batch" for share in done.lost)
    fate = {"prepared": "come back", "source": "are read again", "none": "stay out"}[done.repair]
    told = [f"version {done.from_version} goes to {done.to_version}", f"{batches} batches since {fate}"]
    told += [f"undone: {each}" for each in done.undone]
    told += [f"{each.pipeline} follows it and {each.effect}" for each in done.followers]
    told += [f"gone: {path}" for path in done.absent]
    rows = done.difference.rows_out if done.difference else 0
    return RollbackResult(
        pipeline=given.pipeline, table=given.table, dry_run=given.dry_run, rows_out=rows, told="; ".join(told)
    )


def _all(catalog: Catalog, given: argparse.Namespace, point: RestorePoint) -> RollbackResult:
    done = start_over(
        catalog,
        given.pipeline,
        back_to=point,
        dry_run=given.dry_run,
        max_rows=given.max_rows,
        reason=given.reason,
    )
    told = [f"{each.table}: {each.rows} rows, version {each.version} to {each.restore_to}" for each in done.tables]
    told.append(f"generation {done.generation} reads on after {done.start}")
    return RollbackResult(
        pipeline=given.pipeline, table="", dry_run=given.dry_run, rows_out=done.rows, told="; ".join(told)
    )


if __name__ == "__main__":
    sys.exit(run_job(main))
