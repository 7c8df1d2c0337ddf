"""`deltaworks restore`: put tables back as they were, and what landed since back with them. A dry run unless told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from deltaworks.cli.context import catalog, console
from deltaworks.cli.sizes import readable_bytes
from deltaworks.control.records.rollback import LostShare, Repair
from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import Catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltaworks.rework.restore.one_table import TableRestoreResult
    from deltaworks.rework.restore.points import RestorePoint
    from deltaworks.rework.restore.table_plan import TableRestoreRequest

_TOLD = 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(restore)


def restore(
    pipeline: str,
    table: str = typer.Argument("", help="One bronze table, or quarantine; without it all tables, to one batch."),
    to_version: int | None = typer.Option(None, min=0, help="A version of the table."),
    to_time: str = typer.Option(
        "", help="The newest version, or the last batch that was complete, up to this instant."
    ),
    to_batch: int | None = typer.Option(None, min=0, help="As it was when this batch was complete."),
    repair: str = typer.Option(
        "prepared", help="Rows landed since: prepared (their files come back), source (read again), none (stay out)."
    ),
    max_rows: int | None = typer.Option(None, min=0, help="Take no files of more rows out; needed to do it."),
    allow_missing: bool = typer.Option(False, help="With --repair source: leave out rows of objects that are gone."),
    reason: str = typer.Option("", help="Kept on record."),
    dry_run: bool = typer.Option(True, help="Only say what would go and come; --no-dry-run does it."),
) -> None:
    """Put a table, or all tables of a pipeline, back as they were; exactly what goes and comes is said first."""
    from deltaworks.rework.restore.job import point_of
    from deltaworks.rework.restore.one_table import TableRestore
    from deltaworks.rework.restore.table_plan import TableRestoreRequest

    project = catalog()
    given = to_version is not None or bool(to_time) or to_batch is not None
    texts = ("" if each is None else str(each) for each in (to_version, to_batch))
    point = point_of(version=next(texts), batch=next(texts), time=to_time) if given else None
    if not table:
        _restore_pipeline(project, pipeline, point, max_rows=max_rows, reason=reason, dry_run=dry_run)
        return
    one = TableRestore(project, pipeline, table)
    asked: TableRestoreRequest | None = None
    if point is not None:
        asked = TableRestoreRequest(point=point, repair=_repair(repair), max_rows=max_rows, reason=reason)
    if not dry_run:
        show_restored(one.run(asked, allow_missing=allow_missing))
        return
    if asked is None:
        raise ConfigError(
            "RESTORE_POINT",
            "It was not said what to go back to.",
            hint="Give --to-version, --to-time or --to-batch.",
        )
    show_restored(one.count(asked))


def _restore_pipeline(
    project: Catalog, pipeline: str, point: RestorePoint | None, *, max_rows: int | None, reason: str, dry_run: bool
) -> None:
    """All tables to one batch; the stream has to be stopped, and reads its source on from there."""
    from deltaworks.rework.restore.followers import followers_of
    from deltaworks.rework.start_over import start_over

    if point is None:
        raise ConfigError("RESTORE_POINT", "It was not said what to go back to.", hint="Give --to-batch or --to-time.")
    result = start_over(
        project,
        pipeline,
        back_to=point,
        dry_run=dry_run,
        max_rows=max_rows,
        reason=reason,
        spark=session_of(project, f"restore.{pipeline}"),
    )
    listing = Table("table", "from version", "to", "rows out", "files out", "size")
    for each in result.tables:
        to = "made anew" if each.restore_to is None else str(each.restore_to)
        listing.add_row(
            each.table, str(each.version), to, f"{each.rows:,}", f"{each.files:,}", readable_bytes(each.bytes)
        )
        for follower in followers_of(project, pipeline, each.table, None):
            console.print(f"{each.table} is followed by {follower.pipeline}: it {follower.effect}", highlight=False)
    console.print(listing)
    if result.resumed:
        console.print("It had been begun before, and is gone on with as it was begun.")
    console.print(f"Generation {result.generation} begins with batch {result.first_batch}, after {result.start}.")
    if dry_run:
        console.print(f"Nothing was changed. To do it add: --max-rows {result.rows} --no-dry-run", highlight=False)
    else:
        console.print(f"The next start reads the source on from there: deltaworks start {pipeline}", highlight=False)


def session_of(project: Catalog, name: str) -> Callable[[], SparkSession]:
    """Gives a Spark session to what turns out to need one."""

    def spark() -> SparkSession:
        from deltaworks.tables.spark.session import build_session

        return build_session(project.environment, app_name=name)

    return spark


def _repair(text: str) -> Repair:
    known: dict[str, Repair] = {"prepared": "prepared", "source": "source", "none": "none"}
    if text not in known:
        raise ConfigError("RESTORE_POINT", f"--repair {text} is unknown.", hint="Use prepared, source or none.")
    return known[text]


def show_restored(result: TableRestoreResult) -> None:
    """What was done to one table, or would be, for people."""
    name = f"{result.pipeline}.{result.table}"
    if result.resumed:
        console.print("It had been begun before, and was gone on with as it was begun.")
    became = "" if result.version is None else f", and is version {result.version} now"
    verb = "would go" if result.dry_run else "went"
    console.print(f"{name} {verb} from version {result.from_version} to {result.to_version}{became}.", highlight=False)
    _show_difference(result)
    fate = {"prepared": "come back", "source": "are read again", "none": "stay out"}[result.repair]
    if result.lost:
        console.print(f"Landed since, which {fate}: {lost_text(result.lost)}.", highlight=False)
    for line in result.undone[:_TOLD]:
        console.print(f"[yellow]undone:[/] {line}", highlight=False)
    for path in result.absent[:_TOLD]:
        console.print(f"[red]gone:[/] {path}", highlight=False)
    if result.unprepared:
        console.print(
            f"[red]without files:[/] batches {', '.join(map(str, result.unprepared))}; --repair source reads them anew."
        )
    for each in result.followers:
        console.print(f"followed by {each.pipeline} ({each.reads}): {each.effect}", highlight=False)
    if result.dry_run and result.difference is not None:
        console.print(
            f"Nothing was changed. To do it add: --max-rows {result.difference.rows_out} --no-dry-run", highlight=False
        )


def _show_difference(result: TableRestoreResult) -> None:
    if result.difference is None:
        console.print("Its files had been put back before.")
        return
    counts = result.difference
    listing = Table("", "files", "rows", "size")
    listing.add_row("out", f"{counts.files_out:,}", f"{counts.rows_out:,}", readable_bytes(counts.bytes_out))
    listing.add_row("in", f"{counts.files_in:,}", f"{counts.rows_in:,}", readable_bytes(counts.bytes_in))
    console.print(listing)


def lost_text(lost: tuple[LostShare, ...]) -> str:
    """Batches and replays with their rows, in a few words."""
    parts = []
    for kind in ("batch", "replay"):
        numbers = [share.number for share in lost if share.kind == kind]
        rows = sum(share.rows for share in lost if share.kind == kind)
        if numbers:
            many = (
                f"{kind} {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} of {kind} {numbers[0]}-{numbers[-1]}"
            )
            parts.append(f"{many} ({rows:,} rows)")
    return ", ".join(parts)
