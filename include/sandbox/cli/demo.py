"""`deltaworks demo`: runs pipelines end to end and compares every answer with the truth."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import typer

from deltaworks.cli.output import print_line, print_listing
from deltaworks.control.listing import Listing
from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import project_root
from sandbox.cli.stack import print_addresses, say
from sandbox.demo.demo_options import ALL_PIPELINES, delete_lake, demo_settings, parse_pipelines
from sandbox.demo.report import DemoReport
from sandbox.demo.run import Demo, find_edits


def demo(
    pipelines: str = typer.Option(
        "", help="Pipelines to run, such as cdn_logs,video_qos; by default games, mobile, engagement, edits."
    ),
    with_all: bool = typer.Option(
        False, "--all", help="Run all pipelines, kill the collector meanwhile, and erase a player."
    ),
    events: Path | None = typer.Option(None, help="A JSON-lines file to replay through the edits pipeline."),
    game_events: int = typer.Option(60_000, help="Approximate number of games events to generate."),
    days: int = typer.Option(9, help="Days of play they span."),
    until: datetime | None = typer.Option(
        None, formats=["%Y-%m-%d"], help="Generated events end before this date (UTC); by default today."
    ),
    seed: int = typer.Option(1, help="The same seed and date give the same events."),
    activities: int = typer.Option(4_000, help="How many activities of the engagement pipeline; 0 leaves it out."),
    landing_seconds: float = typer.Option(20.0, help="Seconds over which the objects land."),
    keep: bool = typer.Option(False, help="Leave everything running."),
    fresh: bool = typer.Option(True, help="Start with an empty lake."),
) -> None:
    """Run pipelines end to end and compare every answer with the truth. Exits with 1 if an answer is wrong."""
    edits = find_edits(project_root(), events)
    if events is not None and (edits is None or not edits.is_file()):
        raise ConfigError("EVENTS_MISSING", f"There is no file {events}.")
    chosen = ALL_PIPELINES if with_all else parse_pipelines(pipelines)
    if fresh:
        delete_lake(say)
    settings = demo_settings(
        edits,
        pipelines=chosen,
        game_events=game_events,
        days=days,
        until=until.date() if until else None,
        activities=activities,
        seed=seed,
        landing_seconds=landing_seconds,
        keep=keep,
        with_all=with_all,
    )
    report = Demo(settings, progress=say).run()
    print_report(report)
    raise typer.Exit(0 if report.is_right else 1)


def print_report(report: DemoReport) -> None:
    """Prints the answers next to their expected values, then facts about the run."""
    answers = Listing(("pipeline", "question", "answer", "truth", "verdict"), title="Answers and truth")
    for answer in report.answers:
        verdict = "right" if answer.is_right else "WRONG"
        answers.add(
            answer.pipeline, answer.question, format_value(answer.computed), format_value(answer.truth), verdict
        )
    print_listing(answers)
    facts = Listing(("what", "how"), title="How it went")
    for what, how in report.describe():
        facts.add(what, how)
    facts.add("report", str(report.html))
    print_listing(facts)
    seconds = Listing(("phase", "seconds", "CPU seconds"), title="Seconds by phase")
    for phase in report.phases:
        seconds.add(phase.name, f"{phase.seconds:.0f}", f"{phase.cpu_seconds:.0f}")
    seconds.add("in all", *(f"{total:.0f}" for total in report.totals()))
    print_listing(seconds)
    if report.addresses is not None:
        print_line("Look around: `make up` starts it again with these tables; `make down` ends it.")
        print_addresses(report.addresses)
    if report.is_right:
        print_line("Every answer was right.", style="bold green")
    else:
        print_line(f"Something was wrong: {'; '.join(report.failures())}.", style="bold red")


def format_value(value: object) -> str:
    """Formats a value for the terminal."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
