"""`deltaworks generate`: generates deterministic events with their truth, for games, `engagement`, `viewers` and
`market`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import typer

from deltaworks.cli.context import catalog
from deltaworks.cli.output import print_line
from deltaworks.control.clock import parse_iso, utc_now
from deltaworks.errors import ConfigError
from generator.delivery import Delivery, Published, Sink, directory_sink, publish
from generator.engagement import generate_engagement, write_engagement
from generator.engagement_settings import EngagementSettings
from generator.engagement_truth import EngagementTruth
from generator.games import generate_games, write_files
from generator.market import MarketSettings, MarketTruth, market_deliveries
from generator.qos_truth import ViewersTruth
from generator.settings import GamesSettings, first_day
from generator.viewers import ViewersSettings, viewer_deliveries

app = typer.Typer(invoke_without_command=True)
_UNTIL = typer.Option(None, formats=["%Y-%m-%d"], help="The events end before this date (UTC); by default today.")


@app.callback()
def generate(
    context: typer.Context,
    events: int = typer.Option(100_000, help="Approximate number of events."),
    days: int = typer.Option(10, help="Days of play."),
    until: datetime | None = _UNTIL,
    seed: int = typer.Option(1, help="The same seed and date give the same bytes."),
    events_per_file: int = typer.Option(1_000, help="Events in one object."),
    directory: Path | None = typer.Option(None, help="Write files below this folder, with truth.json next to them."),
    land: bool = typer.Option(False, help="Put them into the landing bucket of the running stack."),
    post: str = typer.Option("", help="Post them to a collector, such as http://127.0.0.1:8090/v1/events."),
    key: str = typer.Option("games-replay-key", help="With --post: the key of a source of the collector."),
    pause_seconds: float = typer.Option(
        0.0, help="Pause between two objects in seconds; with --post, between two groups of as many events."
    ),
    truth: Path | None = typer.Option(None, help="With --land: where to write the right answers."),
) -> None:
    """Generate events of the games pipeline, packed like Firehose, and the truth about them.

    Events posted with a key whose source adds event times get the collector's time; answers by hour or day then differ
    from --truth.
    """
    if context.invoked_subcommand is not None:
        return
    settings = GamesSettings(
        target_events=events,
        days=days,
        start_date=first_day(_date(until), days=days),
        seed=seed,
        events_per_file=events_per_file,
    )
    if [directory is not None, land, bool(post)].count(True) != 1:
        raise ConfigError(
            "GENERATE_DESTINATION_MISSING",
            "Say where the events go.",
            hint="Give one of --directory PATH, --land and --post URL.",
        )
    if directory is not None:
        answers = write_files(settings, directory)
    else:
        answers = generate_games(settings, _post_sink(post, key), pause_seconds=pause_seconds)
        if truth is not None:
            answers.write(truth)
    print_line(
        f"{answers.pieces:,} pieces in {answers.files:,} objects: {answers.accepted_rows:,} events "
        f"({answers.distinct_events:,} distinct), {answers.quarantined_rows:,} that will be quarantined."
    )


def _post_sink(post: str, key: str) -> Sink:
    if post:
        from sandbox.demo.collector_sink import collector_sink

        return collector_sink(post, key=key)
    from sandbox.demo.landing_sink import pipelines_sink

    return pipelines_sink(catalog(required_service="landing"))


@app.command()
def engagement(
    activities: int = typer.Option(100_000, help="How many activities."),
    organisations: int = typer.Option(300, help="Organisations, with power-law sizes."),
    requests_per_hundred: float = typer.Option(20.0, help="Requests for each hundred activities."),
    days: int = typer.Option(30, help="Days they span."),
    until: datetime | None = _UNTIL,
    seed: int = typer.Option(1, help="The same seed and date give the same bytes."),
    directory: Path | None = typer.Option(
        None, help="Write a file for each topic, and the right answers next to them."
    ),
    send: bool = typer.Option(False, help="Send them to the broker of the running stack."),
    truth: Path | None = typer.Option(None, help="With --send: a folder for the right answers."),
) -> None:
    """Generate activities and change requests of the engagement pipeline, and the expected final rows."""
    settings = EngagementSettings(
        activities=activities,
        organisations=organisations,
        requests_per_hundred=requests_per_hundred,
        days=days,
        start_date=_date(until) - timedelta(days=days),
        seed=seed,
    )
    if (directory is not None) == send:
        raise ConfigError(
            "GENERATE_DESTINATION_MISSING", "Say where the events go.", hint="Give one of --directory PATH and --send."
        )
    if directory is not None:
        answers = write_engagement(settings, directory)
    else:
        answers = _kafka_sender(settings)
        if truth is not None:
            answers.write(truth)
    print_line(
        f"{answers.activities:,} activities of {answers.rows.num_rows:,} events, {answers.requests:,} requests, "
        f"{answers.malformed:,} records that will be quarantined."
    )


def _kafka_sender(settings: EngagementSettings) -> EngagementTruth:
    from sandbox.demo.topic_sink import topic_sink
    from sandbox.servers.kafka_broker import BrokerAddress
    from sandbox.stack.environment import KAFKA_BOOTSTRAP

    catalog(required_service=None)
    bootstrap = os.environ.get(KAFKA_BOOTSTRAP)
    if not bootstrap:
        raise ConfigError(
            "GENERATE_DESTINATION_MISSING",
            "There is no broker to send to: the stack does not run, or runs no pipeline that reads Kafka.",
            hint="Start it with `deltaworks up`, or write files with --directory PATH.",
        )
    with topic_sink(BrokerAddress(bootstrap)) as send:
        return generate_engagement(settings, send)


@app.command()
def viewers(
    views: int = typer.Option(300, min=1, help="How many views."),
    minutes: int = typer.Option(45, min=1, help="Minutes within which all views begin."),
    start: str = typer.Option(
        "now", help="Start time in UTC, such as 2024-03-01T23:30; by default the views end at the current time."
    ),
    seed: int = typer.Option(1, help="The same seed and start give the same bytes."),
    directory: Path | None = typer.Option(None, help="Write files below this folder, with truth.json next to them."),
    land: bool = typer.Option(False, help="Put them into the landing bucket of the running stack."),
    pause_seconds: float = typer.Option(0.0, help="Seconds from one object that lands to the next."),
    truth: Path | None = typer.Option(None, help="With --land: where to write the right answers."),
) -> None:
    """Generate viewers of videos: player events (video_qos) and CDN logs (cdn_logs)."""
    begin = utc_now() - timedelta(minutes=minutes) if start == "now" else _instant(start)
    settings = ViewersSettings(views=views, minutes=minutes, start=begin, seed=seed)
    answers = ViewersTruth()
    published = _deliver(viewer_deliveries(settings, answers), directory, land=land, pause_seconds=pause_seconds)
    _write_truth(answers.to_json(), directory, truth)
    print_line(
        f"{len(answers.views):,} views: {_published_amount(published)}, "
        f"{_rejection_summary(answers)} that will be quarantined."
    )


@app.command()
def market(
    first: str = typer.Option("2024-01-02", help="The first day. Splits are in 2024."),
    last: str = typer.Option("", help="The last day; by default yesterday."),
    seed: int = typer.Option(1, help="The same seed and days give the same bytes."),
    directory: Path | None = typer.Option(None, help="Write files below this folder, with truth.json next to them."),
    land: bool = typer.Option(False, help="Put them into the landing bucket of the running stack."),
    pause_seconds: float = typer.Option(0.0, help="Seconds from one object that lands to the next."),
    truth: Path | None = typer.Option(None, help="With --land: where to write the right answers."),
) -> None:
    """Generate a market: daily share prices (stocks) and company filings (filings)."""
    end = _day(last) if last else utc_now().date() - timedelta(days=1)
    settings = MarketSettings(first=_day(first), last=end, seed=seed)
    answers = MarketTruth()
    published = _deliver(market_deliveries(settings, answers), directory, land=land, pause_seconds=pause_seconds)
    _write_truth(answers.to_json(), directory, truth)
    print_line(
        f"{len(answers.days):,} prices: {_published_amount(published)}, "
        f"{_rejection_summary(answers)} that will be quarantined."
    )


def _deliver(deliveries: Iterable[Delivery], directory: Path | None, *, land: bool, pause_seconds: float) -> Published:
    if (directory is not None) == land:
        raise ConfigError(
            "GENERATE_DESTINATION_MISSING", "Say where the events go.", hint="Give one of --directory PATH and --land."
        )
    sink = _post_sink("", "") if directory is None else directory_sink(directory)
    return publish(deliveries, sink, pause_seconds=pause_seconds)


def _write_truth(answers: bytes, directory: Path | None, truth: Path | None) -> None:
    path = truth if directory is None else directory / "truth.json"
    if path is not None:
        path.write_bytes(answers)


def _published_amount(published: Published) -> str:
    return f"{published.events:,} events in {published.objects:,} objects"


def _rejection_summary(answers: ViewersTruth | MarketTruth) -> str:
    return f"{sum(rows for reasons in answers.quarantined_rows.values() for rows in reasons.values()):,}"


def _date(until: datetime | None) -> date:
    return utc_now().date() if until is None else until.date()


def _instant(text: str) -> datetime:
    try:
        instant = parse_iso(text)
    except ValueError:
        instant = None
    if instant is None:
        raise _time_error(text)
    return instant.astimezone(UTC)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise _time_error(text) from None


def _time_error(text: str) -> ConfigError:
    return ConfigError(
        "GENERATOR_SETTING_INVALID",
        f"The generator's settings are wrong: {text!r} is no date and no time.",
        hint="Write dates as YYYY-MM-DD and times as YYYY-MM-DDTHH:MM, in UTC.",
    )
