"""`deltaworks mutations run` and `status`: applying requests by hand, and what has become of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.table import Table

from deltaworks.cli.context import catalog, console
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import open_objects
from deltaworks.control.records.mutation import MutationBatches, MutationEnd
from deltaworks.tables.lake import Lake

if TYPE_CHECKING:
    from deltaworks.mutations.report import Forecast

#: Batches that are listed.
_SHOWN = 10


def register(app: typer.Typer) -> None:
    """Add the commands to those of `deltaworks mutations`."""
    app.command()(run)
    app.command()(status)


def run(
    pipeline: str,
    org: str = typer.Option("", help="Requests of this organisation alone."),
    everything: bool = typer.Option(False, help="Compare all rows with all requests, whatever was applied before."),
    dry_run: bool = typer.Option(True, help="Say what would change; --no-dry-run changes it."),
) -> None:
    """Apply the requests that wait. Says first what would be touched, and changes nothing."""
    from deltaworks.tables.spark.session import build_session

    project = catalog()
    project.pipeline(pipeline)
    spark = build_session(project.environment, app_name=f"mutate_tables.{pipeline}")
    chosen: dict[str, Any] = {"organisation": org or None, "everything": everything}
    if dry_run:
        from deltaworks.mutations.report import forecast

        _show_forecast(forecast(spark, project, pipeline, **chosen))
        return
    from deltaworks.mutations.apply import MutationRun

    done = MutationRun(spark, project, pipeline).run(**chosen)
    ends = [*done.completed, *done.batches]
    if not ends:
        console.print("Nothing came since the last batch.")
        return
    console.print(_listing(ends))


def status(pipeline: str) -> None:
    """Show the last batches, the requests that wait, the age of the oldest, and the last pause of the stream."""
    from deltaworks.mutations.bounds import Bounds

    project = catalog()
    spec, storage = project.pipeline(pipeline), project.environment.lake
    objects = open_objects(storage)
    waiting = Bounds(Lake(storage), objects, spec).backlog()
    batches = MutationBatches(objects, pipeline)
    fixed, ended = batches.numbers()
    found = [batches.end(number) for number in range(max(1, ended - _SHOWN + 1), ended + 1)]
    ends = [end for end in found if end is not None]
    if ends:
        console.print(_listing(ends))
    if fixed > ended:
        console.print(f"Batch {fixed} was begun and has not ended; the next run completes it.")
    if not waiting.requests:
        console.print("No request waits.")
    else:
        minutes = waiting.age_seconds(utc_now()) / 60
        console.print(f"{waiting.requests:,} requests wait, the oldest for {minutes:.0f} minutes.")
    if ends:
        console.print(f"The last batch kept the stream from a table for {ends[-1].pause_seconds:.1f} s.")


def _listing(ends: list[MutationEnd]) -> Table:
    columns = ("batch", "outcome", "ended", "requests", "rows", "files", "pause s", "seconds")
    listing = Table(*columns)
    for end in ends:
        requests = ", ".join(f"{count:,} {op}" for op, count in sorted(end.requests.items()))
        refused = f", {end.not_understood:,} not understood" if end.not_understood else ""
        files = sum(table.files_removed for table in end.tables)
        counts = (f"{requests}{refused}", f"{end.rows:,}", f"{files:,}", f"{end.pause_seconds:.1f}")
        listing.add_row(str(end.number), end.outcome, end.at, *counts, f"{sum(end.seconds.values()):.1f}")
    return listing


def _show_forecast(found: Forecast | None) -> None:
    if found is None:
        console.print("Nothing came since the last batch.")
        return
    begun = ", which was begun and has not ended" if found.unfinished else ""
    console.print(f"Batch {found.number}{begun}: requests of {found.organisations:,} organisations.")
    listing = Table("operation", "requests")
    for op, count in sorted(found.requests.items()):
        listing.add_row(op, f"{count:,}")
    if found.not_understood:
        listing.add_row("not understood", f"{found.not_understood:,}")
    console.print(listing)
    console.print(
        f"{found.chains:,} chains, the longest of {found.longest_chain:,} moves; {found.components:,} components, "
        f"the largest of {found.largest_component:,} ids."
    )
    touched = Table("table", "rows", "files", "of files", "partitions")
    for table in found.tables:
        counts = (table.rows, table.files, table.of_files, table.partitions)
        touched.add_row(table.table, *(f"{count:,}" for count in counts))
    console.print(touched)
    console.print("Nothing was changed; --no-dry-run does it.")
