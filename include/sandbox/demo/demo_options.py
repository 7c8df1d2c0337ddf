"""Default amounts of data for a demo, and deletion of an earlier demo's lake."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from deltaworks.control.clock import utc_now
from deltaworks.errors import ConfigError
from deltaworks.specs.base import suggest_name
from generator.engagement_settings import EngagementSettings
from generator.market import MarketSettings
from generator.settings import FaultRates, GamesSettings, first_day
from generator.viewers import ViewersSettings
from sandbox.demo.run import DemoSettings
from sandbox.stack import stack
from sandbox.stack.home import StackHome

#: Pipelines that run by default.
DEFAULT_PIPELINES = ("edits", "engagement", "games", "mobile")
#: All pipelines that the demo has events for.
ALL_PIPELINES = (*DEFAULT_PIPELINES, "cdn_logs", "filings", "revenue", "stocks", "video_qos")
#: Pipelines whose tables another pipeline reads.
_DEPENDENCIES = {"video_qos": "cdn_logs", "stocks": "filings", "revenue": "games"}
#: Rates of faults in events for `mobile`, which declares no event names and no types of their own.
_MOBILE_RATES = FaultRates(unknown_name=0, type_mismatch=0, missing_required=0)


def parse_pipelines(text: str) -> tuple[str, ...]:
    """Parses a comma-separated list of pipelines and adds those whose tables they read. Empty means the defaults.

    Raises:
        ConfigError: PIPELINE_UNKNOWN, the demo has no events for it.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in ALL_PIPELINES:
            raise ConfigError(
                "PIPELINE_UNKNOWN",
                f"The demo has no events for a pipeline {name!r}; {suggest_name(name, ALL_PIPELINES)}",
                hint=f"Name some of {', '.join(ALL_PIPELINES)}.",
            )
    return (
        tuple(sorted({*names, *(_DEPENDENCIES[name] for name in names if name in _DEPENDENCIES)})) or DEFAULT_PIPELINES
    )


def demo_settings(
    edits: Path | None,
    *,
    pipelines: tuple[str, ...] = DEFAULT_PIPELINES,
    game_events: int = 60_000,
    days: int = 9,
    activities: int = 4_000,
    mobile_events: int = 12_000,
    until: date | None = None,
    seed: int = 1,
    landing_seconds: float = 20.0,
    keep: bool = False,
    with_all: bool = False,
) -> DemoSettings:
    """Builds the settings of a demo with the command's defaults.

    Args:
        until: the generated events end before this date; by default today, in UTC. The same date and seed give the
            same events.
        with_all: also kill the collector, and erase a player.
    """
    until = until or utc_now().date()
    # One object per hour of play: few enough to land in minutes, and enough that duplicates are in different objects.
    games = GamesSettings(
        target_events=game_events,
        days=days,
        start_date=first_day(until, days=days),
        seed=seed,
        buffer_seconds=3_600,
    )
    # Other players than in `games`, whose ids follow from the seed.
    mobile = dataclasses.replace(games, target_events=mobile_events, seed=seed + 1, rates=_MOBILE_RATES)
    with_engagement = activities and "engagement" in pipelines
    # Few organisations, because each is a partition, and this pipeline is about changes to their contacts.
    engagement = (
        EngagementSettings(
            activities=activities, organisations=8, days=10, start_date=until - timedelta(days=10), seed=seed
        )
        if with_engagement
        else None
    )
    # Views begin before midnight and end after it.
    views_begin = datetime.combine(until - timedelta(days=2), time(23, 30), UTC)
    return DemoSettings(
        games=games if "games" in pipelines else None,
        mobile=mobile if "mobile" in pipelines else None,
        with_revenue="revenue" in pipelines,
        engagement=engagement,
        edits=edits if "edits" in pipelines else None,
        viewers=ViewersSettings(start=views_begin, seed=seed) if "cdn_logs" in pipelines else None,
        with_player_events="video_qos" in pipelines,
        market=MarketSettings(last=until - timedelta(days=1), seed=seed, final_jump=0.25)
        if "filings" in pipelines
        else None,
        with_share_prices="stocks" in pipelines,
        landing_seconds=landing_seconds,
        keep_running=keep,
        kill_collector=with_all,
        with_erasure=with_all,
    )


def delete_lake(say: Callable[[str], None]) -> None:
    """Deletes an earlier demo's landed objects, lake and Airflow history.

    Raises:
        ConfigError: STACK_RUNNING.
    """
    home = StackHome.default()
    if stack.status(home=home).running:
        raise ConfigError("STACK_RUNNING", "The stack is running, and the demo would empty its lake.")
    # Includes Airflow's database: otherwise runs of an earlier demo would be completed first.
    for folder in (home.lake, home.landing_journal.parent, home.spool, home.keyring, home.kafka, home.airflow):
        if folder.exists():
            say(f"emptying {folder}")
            shutil.rmtree(folder)
    # Includes the list of DAGs to unpause, which do not exist yet in a new Airflow database.
    home.state_file.unlink(missing_ok=True)
