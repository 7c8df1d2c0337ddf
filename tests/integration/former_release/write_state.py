"""Run by the code of the former release alone: lands three waves and leaves a piece of work of each kind half done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import declared

from deltaworks.mutations.apply import MutationRun
from deltaworks.sources.file_events.relay import Relay
from deltaworks.spark_session import build_session
from deltaworks.specs.catalog import load_catalog
from deltaworks.streaming.reprocess.plan import ReprocessRequest
from deltaworks.streaming.reprocess.run import Reprocess
from deltaworks.streaming.reprocess.selection import Selection
from deltaworks.streaming.restore.one_table import TableRestore
from deltaworks.streaming.restore.points import RestorePoint
from deltaworks.streaming.restore.table_plan import TableRestoreRequest
from deltaworks.streaming.runner import IngestRun


def break_off(point: str, work: Callable[[Callable[[str], None]], object]) -> None:
    """Do work that ends at the point."""
    reached: list[str] = []

    def fault(name: str) -> None:
        if name == point:
            reached.append(name)
            raise RuntimeError(f"broken off at {point}")

    try:
        work(fault)
    except Exception as error:
        print(f"broken off at {point}: {str(error)[:80]!r}", flush=True)
    if not reached:
        raise SystemExit(f"{point} was not reached")


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
    break_off(
        "committed:orders",
        lambda fault: IngestRun(spark, catalog, "torn", available_now=True, fault=fault).run(),
    )
    restore = TableRestoreRequest(point=RestorePoint(batch=0), repair="prepared", max_rows=1_000, reason="a test")
    break_off("planned", lambda fault: TableRestore(catalog, "rolled", "orders", fault=fault).run(restore))
    everything = ReprocessRequest(selection=Selection(from_start=True))
    break_off("staged", lambda fault: Reprocess(spark, catalog, "reread", fault=fault).run("again", everything))
    break_off("fixed", lambda fault: MutationRun(spark, catalog, "crm", fault=fault, lease_wait_seconds=60).run())
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
