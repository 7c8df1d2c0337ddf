"""`deltaworks generate`: games events, deterministic by seed, into a folder, the landing bucket or a collector."""

from __future__ import annotations

from pathlib import Path

import typer

from deltaworks.cli.context import catalog, console
from deltaworks.errors import ConfigError
from generator.delivery import Sink
from generator.games import generate_games, write_files
from generator.settings import GamesSettings


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(generate)


def generate(
    events: int = typer.Option(100_000, help="About how many events."),
    days: int = typer.Option(10, help="Days of play."),
    seed: int = typer.Option(1, help="The same seed gives the same bytes."),
    events_per_file: int = typer.Option(1_000, help="Events in one object."),
    directory: Path | None = typer.Option(None, help="Write files below this folder, with truth.json beside them."),
    land: bool = typer.Option(False, help="Put them into the landing bucket of the running stack."),
    post: str = typer.Option("", help="Post them to a collector, such as http://127.0.0.1:8090/v1/events."),
    pause_seconds: float = typer.Option(0.0, help="Wait between objects that land, or as many events that are posted."),
    truth: Path | None = typer.Option(None, help="With --land: where to write the right answers."),
) -> None:
    """Generate events of the games pipeline, Firehose-style, and the right answers about them.

    Events that are posted get the collector's time, so that answers by hour or day are not those of --truth.
    """
    settings = GamesSettings(target_events=events, days=days, seed=seed, events_per_file=events_per_file)
    if [directory is not None, land, bool(post)].count(True) != 1:
        raise ConfigError(
            "GENERATE_WHERE", "Say where the events go.", hint="Give one of --directory PATH, --land and --post URL."
        )
    if directory is not None:
        answers = write_files(settings, directory)
    else:
        answers = generate_games(settings, _sink(post), pause_seconds=pause_seconds)
        if truth is not None:
            answers.write(truth)
    console.print(
        f"{answers.pieces:,} pieces in {answers.files:,} objects: {answers.accepted:,} events "
        f"({answers.distinct_events:,} distinct), {answers.quarantined:,} that will be quarantined."
    )


def _sink(post: str) -> Sink:
    if post:
        from deltaworks.local.collector_sink import collector_sink

        return collector_sink(post)
    from deltaworks.local.landing_sink import landing_sink

    return landing_sink(catalog().environment.landing)
