"""`python -m deltaworks.mutations.backlog_check`: fails if requests of a pipeline have been pending for too long.

Reads the Delta log of the requests table, so it also detects batches that do not run at all. Needs no JVM.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from datetime import datetime

from deltaworks.control.clock import utc_now
from deltaworks.control.job import print_results, run_job
from deltaworks.control.objects import open_objects
from deltaworks.control.summaries.base import log_failures
from deltaworks.control.summaries.jobs import record_waiting_requests
from deltaworks.errors import TransientError
from deltaworks.mutations.bounds import Backlog, BatchPlanner
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake


def read_backlogs(catalog: Catalog) -> list[Backlog]:
    """Returns the backlog of every pipeline that declares mutations."""
    lake, objects = Lake(catalog.environment.lake), open_objects(catalog.environment.lake)
    return [
        BatchPlanner(lake, objects, spec).backlog() for spec in catalog.pipelines.values() if spec.mutations is not None
    ]


def reject_overdue(catalog: Catalog, backlogs: Iterable[Backlog], *, now: datetime) -> None:
    """Raises if the oldest pending request of a pipeline is older than `alert_after_minutes`.

    Raises:
        TransientError: MUTATIONS_BEHIND, with the names of all such pipelines.
    """
    overdue = []
    for backlog in backlogs:
        declared = catalog.pipeline(backlog.pipeline).mutations
        age = backlog.age_seconds(now)
        if declared is not None and age > 60 * declared.alert_after_minutes:
            overdue.append(f"{backlog.pipeline}: {backlog.requests} requests wait, the oldest for {age / 60:.0f} min")
    if overdue:
        names = ", ".join(text.partition(":")[0] for text in overdue)
        raise TransientError(
            "MUTATIONS_BEHIND",
            "; ".join(overdue) + ".",
            hint=f"See whether the mutations DAG of {names} runs, and its last log; `deltaworks mutations status`.",
        )


def record_backlogs(catalog: Catalog, backlogs: Iterable[Backlog], *, now: datetime) -> None:
    """Records the backlogs for the console; errors are logged."""
    objects, checked_at = open_objects(catalog.environment.lake), now.isoformat(timespec="seconds")
    for backlog in backlogs:
        with log_failures(f"The summary of the mutations of {backlog.pipeline}"):
            oldest_at = "" if backlog.oldest_at is None else backlog.oldest_at.isoformat(timespec="seconds")
            record_waiting_requests(
                objects, backlog.pipeline, requests=backlog.requests, oldest_at=oldest_at, checked_at=checked_at
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    catalog = load_catalog(skip_invalid=True)
    backlogs = read_backlogs(catalog)
    print_results(backlogs)
    record_backlogs(catalog, backlogs, now=utc_now())
    reject_overdue(catalog, backlogs, now=utc_now())
    return 0


if __name__ == "__main__":
    sys.exit(run_job(main))
