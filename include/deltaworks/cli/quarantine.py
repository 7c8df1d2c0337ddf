"""`deltaworks quarantine`: what did not fit, why, and landing it once the reason is mended."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter

import typer
from rich.table import Table

from deltaworks.cli.context import catalog, console
from deltaworks.errors import ConfigError
from deltaworks.events.reasons import ReasonCode
from deltaworks.rework.quarantine.open_rows import Quarantine, QuarantineFilter
from deltaworks.rework.quarantine.replay import replay_quarantine
from deltaworks.rework.quarantine.replayer import ReplayResult
from deltaworks.tables.lake import Lake

app = typer.Typer(help="Rows that did not fit: counted, shown, landed once they do.", no_args_is_help=True)

_REASON = typer.Option([], "--reason", help="Only rows with this reason; may be given several times.")
_EVENT = typer.Option([], "--event", help="Only events of this name; may be given several times.")
_FROM_DATE = typer.Option("", "--from-date", help="Only rows quarantined on this date or later, YYYY-MM-DD.")
_TO_DATE = typer.Option("", "--to-date", help="Only rows quarantined on this date or earlier.")
_FROM_BATCH = typer.Option(None, "--from-batch", min=0, help="Only rows of this batch or later ones.")
_TO_BATCH = typer.Option(None, "--to-batch", min=0, help="Only rows of this batch or earlier ones.")
_FINGERPRINT = typer.Option("", "--fingerprint", help="Only rows that did not fit the spec of this fingerprint.")
_ALL = typer.Option(False, "--all", help="Rows that a replay has landed too.")


@app.command("list")
def list_rows(
    pipeline: str,
    reason: list[str] = _REASON,
    event: list[str] = _EVENT,
    from_date: str = _FROM_DATE,
    to_date: str = _TO_DATE,
    from_batch: int | None = _FROM_BATCH,
    to_batch: int | None = _TO_BATCH,
    fingerprint: str = _FINGERPRINT,
    all_rows: bool = _ALL,
) -> None:
    """Count open rows by date, reason, event and the spec they did not fit."""
    wanted = _wanted(reason, event, (from_date, to_date), (from_batch, to_batch), fingerprint)
    listing = Table("date", "reason", "event", "spec", "rows")
    counts = _quarantine(pipeline).counts(wanted, all_rows=all_rows)
    for row in counts:
        listing.add_row(
            str(row["quarantine_date"]),
            row["code"],
            row["event_name"] or "-",
            row["spec_fingerprint"],
            str(row["rows"]),
        )
    console.print(listing)
    if not counts:
        console.print("No open rows.")


@app.command()
def show(
    pipeline: str,
    reason: list[str] = _REASON,
    event: list[str] = _EVENT,
    from_date: str = _FROM_DATE,
    to_date: str = _TO_DATE,
    from_batch: int | None = _FROM_BATCH,
    to_batch: int | None = _TO_BATCH,
    fingerprint: str = _FINGERPRINT,
    all_rows: bool = _ALL,
    limit: int = typer.Option(10, min=1, max=1000, help="At most so many rows, the newest first."),
) -> None:
    """Print open rows with their reasons and their raw values."""
    wanted = _wanted(reason, event, (from_date, to_date), (from_batch, to_batch), fingerprint)
    for row in _quarantine(pipeline).rows(wanted, limit=limit, all_rows=all_rows):
        place = f"batch {row['_batch_id']}, {row['object_key']} (seq {row['_seq']}, event {row['_position']})"
        console.print(f"[bold]{row['event_name'] or '-'}[/] {place}, {row['_ingested_at']:%Y-%m-%d %H:%M:%S}")
        for each in row["reasons"]:
            console.print(f"  {each['code']} {each['path']}: {each['detail']}", markup=False, highlight=False)
        cut = "" if row["raw_complete"] else f" (of {row['raw_bytes']} bytes)"
        console.print(f"  {json.dumps(row['raw'], ensure_ascii=False)}{cut}", markup=False, highlight=False)


@app.command()
def replay(
    pipeline: str,
    reason: list[str] = _REASON,
    event: list[str] = _EVENT,
    from_date: str = _FROM_DATE,
    to_date: str = _TO_DATE,
    from_batch: int | None = _FROM_BATCH,
    to_batch: int | None = _TO_BATCH,
    fingerprint: str = _FINGERPRINT,
    limit: int | None = typer.Option(None, min=1, help="At most so many rows, the oldest first."),
    dry_run: bool = typer.Option(True, help="Only count; --no-dry-run lands the rows that fit now."),
) -> None:
    """Read open rows again with the spec as it is now, and land those that fit; each once, whoever repeats it."""
    wanted = _wanted(reason, event, (from_date, to_date), (from_batch, to_batch), fingerprint)
    _print(replay_quarantine(catalog(), pipeline, wanted, dry_run=dry_run, limit=limit))


def _quarantine(pipeline: str) -> Quarantine:
    project = catalog()
    return Quarantine(Lake(project.environment.lake), project.pipeline(pipeline).pipeline)


def _wanted(
    reasons: list[str],
    events: list[str],
    dates: tuple[str, str],
    batches: tuple[int | None, int | None],
    fingerprint: str,
) -> QuarantineFilter:
    unknown = sorted(set(reasons) - {str(code) for code in ReasonCode})
    if unknown:
        known = ", ".join(ReasonCode)
        raise ConfigError(
            "QUARANTINE_REASON_UNKNOWN", f"No reason is called {', '.join(unknown)}.", hint=f"Known: {known}."
        )
    return QuarantineFilter(
        reasons=tuple(reasons),
        events=tuple(events),
        from_date=_date(dates[0]),
        to_date=_date(dates[1]),
        from_batch=batches[0],
        to_batch=batches[1],
        fingerprint=fingerprint or None,
    )


def _date(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text) if text else None
    except ValueError:
        raise ConfigError("DATE_INVALID", f"{text!r} is no date.", hint="Write it as YYYY-MM-DD.") from None


def _print(result: ReplayResult) -> None:
    will = "would land" if result.dry_run else "landed"
    if result.completed_earlier:
        console.print("A replay that had been interrupted was completed first.")
    console.print(
        f"{result.selected:,} open rows selected: {result.landed:,} {will}, "
        f"{result.still_rejected:,} still do not fit, {result.not_replayable:,} cannot be read again; "
        f"{result.seconds:.1f} s."
    )
    for title, counts in (
        ("rows to tables", result.rows_by_table),
        ("still do not fit", result.reasons),
        ("cannot be read again", result.causes),
    ):
        _print_counts(title, counts)
    if result.dry_run and result.landed:
        console.print("Nothing was written: --no-dry-run lands them.")


def _print_counts(title: str, counts: Counter[str]) -> None:
    if counts:
        console.print(f"  {title}: " + ", ".join(f"{name} {count:,}" for name, count in counts.most_common()))
