"""Run by the code of the former release alone: lands three waves and leaves work of each kind interrupted."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import declared

from deltaworks.mutations.apply import MutationRun
from deltaworks.sources.file_events.relay import Relay
from deltaworks.spark_session import build_session
from deltaworks.specs.catalog import load_catalog
from deltaworks.streaming.commit_phase import ShareCommits
from deltaworks.streaming.reprocess.plan import ReprocessRequest
from deltaworks.streaming.reprocess.run import Reprocess
from deltaworks.streaming.reprocess.selection import Selection
from deltaworks.streaming.restore.one_table import TableRestore
from deltaworks.streaming.restore.points import RestorePoint
from deltaworks.streaming.restore.table_plan import TableRestoreRequest
from deltaworks.streaming.runner import IngestRun

COMMIT_SECONDS = 120


def interrupt(point: str, work: Callable[[Callable[[str], None]], object]) -> None:
    """Do work that ends with an error at a fault point."""
    reached: list[str] = []

    def fault(name: str) -> None:
        if name == point:
            reached.append(name)
            raise RuntimeError(f"interrupted at {point}")

    try:
        work(fault)
    except Exception as error:
        print(f"interrupted at {point}: {str(error)[:80]!r}", flush=True)
    if not reached:
        raise SystemExit(f"{point} was not reached")


@contextmanager
def committing_only(table: str) -> Iterator[None]:
    """Let one table of a batch commit, and then end the batch before the commit of any other.

    A fault point alone cannot do that: tables commit in parallel, and it is reached after a commit.
    """
    commit = ShareCommits.commit
    committed = threading.Event()

    def commit_or_end(self: ShareCommits, batch: Any, share: Any) -> Any:
        if share.table == table:
            outcome = commit(self, batch, share)
            committed.set()
            return outcome
        committed.wait(COMMIT_SECONDS)
        raise RuntimeError(f"interrupted before the commit to {share.table}")

    ShareCommits.commit = commit_or_end
    try:
        yield
    finally:
        ShareCommits.commit = commit
    if not committed.is_set():
        raise SystemExit(f"{table} was not committed")


def main(root: Path) -> None:
    catalog = load_catalog("local", root=root)
    environment = catalog.environment
    spark = build_session(environment, app_name="former", master="local[2]")
    spark.conf.set("spark.sql.shuffle.partitions", "2")

    def relay() -> None:
        spec = catalog.relay("landing")
        Relay(spec, lake=environment.lake, queue=None, landing=environment.landing, until_drained=True).run()

    for wave in (1, 2):
        declared.land(root, wave)
        relay()
        for name in (*declared.STREAMS, "crm"):
            IngestRun(spark, catalog, name, available_now=True).run()
        if wave == 1:
            MutationRun(spark, catalog, "crm", lease_wait_seconds=60).run()
    declared.land(root, 3)
    relay()
    with committing_only("orders"):
        interrupt(
            "committed:orders",
            lambda fault: IngestRun(spark, catalog, "torn", available_now=True, fault=fault).run(),
        )
    restore = TableRestoreRequest(point=RestorePoint(batch=0), repair="prepared", max_rows=1_000, reason="a test")
    interrupt("planned", lambda fault: TableRestore(catalog, "rolled", "orders", fault=fault).run(restore))
    everything = ReprocessRequest(selection=Selection(from_start=True))
    interrupt("staged", lambda fault: Reprocess(spark, catalog, "reread", fault=fault).run("again", everything))
    interrupt("fixed", lambda fault: MutationRun(spark, catalog, "crm", fault=fault, lease_wait_seconds=60).run())
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
