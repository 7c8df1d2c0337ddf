"""What a demo starts with: how much it sends by default, and an empty lake."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from deltaworks.errors import ConfigError
from generator.engagement_settings import EngagementSettings
from generator.settings import GamesSettings
from sandbox.demo.run import DemoSettings
from sandbox.stack import stack
from sandbox.stack.home import StackHome


def demo_settings(
    edits: Path | None,
    *,
    game_events: int = 60_000,
    days: int = 9,
    activities: int = 4_000,
    seed: int = 1,
    landing_seconds: float = 20.0,
    keep: bool = False,
) -> DemoSettings:
    """What a demo sends, by default as much as the command does."""
    # An object an hour of play: few enough to land in minutes, enough for copies to lie in different ones.
    games = GamesSettings(target_events=game_events, days=days, seed=seed, buffer_seconds=3_600)
    # A few organisations, since each is a partition of its own: this is about what happens to their contacts.
    engagement = EngagementSettings(activities=activities, organisations=8, days=10, seed=seed) if activities else None
    return DemoSettings(
        games=games, engagement=engagement, edits=edits, landing_seconds=landing_seconds, keep_running=keep
    )


def empty_lake(say: Callable[[str], None]) -> None:
    """Remove what an earlier demo landed, its lake and its Airflow history.

    Raises:
        ConfigError: STACK_RUNNING.
    """
    home = StackHome.default()
    if stack.status(home=home).running:
        raise ConfigError(
            "STACK_RUNNING",
            "The stack is running, and the demo would empty its lake.",
            hint="`deltaworks down` first, or `deltaworks demo --no-fresh` on an empty lake.",
        )
    # Airflow's own database goes too: runs of an earlier demo would be finished first.
    for folder in (home.lake, home.landing_journal.parent, home.kafka, home.airflow):
        if folder.exists():
            say(f"emptying {folder}")
            shutil.rmtree(folder)
    # So does the list of DAGs to unpause that `down` kept: the new Airflow has no such DAGs yet.
    home.state_file.unlink(missing_ok=True)
