"""`deltaworks demo`: everything end to end, with every answer compared with the truth."""

from __future__ import annotations

import shutil
from pathlib import Path

import typer

from deltaworks.cli.output import line, listing
from deltaworks.control.listing import Listing
from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import project_root
from generator.settings import GamesSettings
from sandbox.cli.stack import print_addresses, say
from sandbox.demo.report import DemoReport
from sandbox.demo.run import Demo, DemoSettings, find_edits
from sandbox.stack import stack
from sandbox.stack.home import StackHome


def demo(
    events: Path | None = typer.Option(None, help="A JSON-lines file to replay through the edits pipeline."),
    game_events: int = typer.Option(60_000, help="About how many games events to generate."),
    days: int = typer.Option(9, help="Days of play they span."),
    seed: int = typer.Option(1, help="The same seed gives the same events."),
    landing_seconds: float = typer.Option(75.0, help="Over how long the objects land."),
    keep: bool = typer.Option(False, help="Leave everything running."),
    fresh: bool = typer.Option(True, help="Start with an empty lake."),
) -> None:
    """Send real and generated events, wait for the KPIs and compare each with the truth.

    Exits with 1 where one is wrong.
    """
    edits = find_edits(project_root(), events)
    if events is not None and (edits is None or not edits.is_file()):
        raise ConfigError("EVENTS_MISSING", f"There is no file {events}.", hint="Give a file of JSON lines.")
    if fresh:
        empty_lake()
    settings = DemoSettings(
        # An object an hour of play: few enough to land in minutes, enough for copies to lie in different ones.
        games=GamesSettings(target_events=game_events, days=days, seed=seed, buffer_seconds=3_600),
        edits=edits,
        landing_seconds=landing_seconds,
        keep_running=keep,
    )
    report = Demo(settings, progress=say).run()
    print_report(report)
    raise typer.Exit(0 if report.right else 1)


def empty_lake() -> None:
    """Remove the lake and the Airflow history of an earlier demo; refuses while the stack runs."""
    home = StackHome.default()
    if stack.status(home=home).running:
        raise ConfigError(
            "STACK_RUNNING",
            "The stack is running, and the demo would empty its lake.",
            hint="`deltaworks down` first, or `deltaworks demo --no-fresh` on an empty lake.",
        )
    # Airflow's own database goes too: runs of an earlier demo would be finished first.
    for folder in (home.lake, home.airflow):
        if folder.exists():
            say(f"emptying {folder}")
            shutil.rmtree(folder)
    # So does the list of DAGs to unpause that `down` kept: the new Airflow has no such DAGs yet.
    home.state_file.unlink(missing_ok=True)


def print_report(report: DemoReport) -> None:
    """The answers beside the truth, and how it went."""
    answers = Listing(("pipeline", "question", "answer", "truth", "verdict"), title="Answers and truth")
    for answer in report.answers:
        verdict = "right" if answer.right else "WRONG"
        answers.add(answer.pipeline, answer.question, shown(answer.computed), shown(answer.truth), verdict)
    listing(answers)
    facts = Listing(("what", "how"), title="How it went")
    for freshness in report.freshness:
        facts.add(
            f"{freshness.pipeline}: landing to gold",
            f"p50 {freshness.gold_p50_seconds:.0f} s, p95 {freshness.gold_p95_seconds:.0f} s "
            f"over {freshness.objects} objects "
            f"(to bronze p50 {freshness.bronze_p50_seconds:.0f} s, p95 {freshness.bronze_p95_seconds:.0f} s)",
        )
    if report.provenance is not None:
        provenance = report.provenance
        facts.add(
            "commits naming pipeline, batch, run",
            f"{provenance.commits - len(provenance.unnamed)} of {provenance.commits}",
        )
        for commit in provenance.unnamed[:5]:
            facts.add("  not named", commit)
    facts.add("list requests to the landing bucket", str(report.landing_lists))
    facts.add("streams", report.health)
    for outcome in report.maintenance:
        facts.add("maintenance", outcome)
    if report.memory is not None:
        facts.add("peak memory", f"{report.memory.total_bytes / 2**30:.1f} GiB ({report.memory.measure})")
    facts.add("seconds", ", ".join(f"{name} {seconds:.0f}" for name, seconds in report.seconds.items()))
    facts.add("report", str(report.html))
    listing(facts)
    if report.addresses is not None:
        line("Look around: `make up` starts it again with these tables; `make down` ends it.")
        print_addresses(report.addresses)
    if report.right:
        line("Every answer was right.", style="bold green")
    else:
        line("Something was wrong.", style="bold red")


def shown(value: object) -> str:
    """A value for people."""
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
