"""Settings of the data that a demo sends, and its expected results ("truth")."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from generator.engagement_settings import EngagementSettings
from generator.engagement_truth import EngagementTruth
from generator.market import MarketSettings, MarketTruth
from generator.qos_truth import ViewersTruth
from generator.settings import GamesSettings
from generator.truth import GamesTruth
from generator.viewers import ViewersSettings
from sandbox.demo.answers import EditsTruth


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Amounts of data to send; None sends none of that kind.

    Attributes:
        mobile: events of phones, which go through Kinesis.
        with_revenue: the purchases of `games` are read by another pipeline.
        viewers: CDN logs and, with `with_player_events`, player events.
        market: company filings and, with `with_share_prices`, share prices.
        kill_collector: kill the collector once, while it receives the events of `games`.
    """

    games: GamesSettings | None
    mobile: GamesSettings | None = None
    with_revenue: bool = False
    engagement: EngagementSettings | None
    edits: Path | None
    viewers: ViewersSettings | None = None
    with_player_events: bool = False
    market: MarketSettings | None = None
    with_share_prices: bool = False
    landing_seconds: float
    kill_collector: bool = False

    @property
    def viewers_settings(self) -> tuple[str, ...]:
        """Pipelines that receive viewer events, in build order."""
        return ("cdn_logs", "video_qos")[
            : (self.viewers is not None) + (self.viewers is not None and self.with_player_events)
        ]

    @property
    def market_settings(self) -> tuple[str, ...]:
        """Pipelines that receive market events, in build order."""
        return ("filings", "stocks")[: (self.market is not None) + (self.market is not None and self.with_share_prices)]

    @property
    def pipelines(self) -> tuple[str, ...]:
        """All pipelines that receive events."""
        sent = {"games": self.games, "mobile": self.mobile, "engagement": self.engagement, "edits": self.edits}
        sent["revenue"] = self.games if self.with_revenue else None
        alone = [name for name, what in sent.items() if what is not None]
        return tuple(sorted([*alone, *self.viewers_settings, *self.market_settings]))


@dataclass(frozen=True, slots=True)
class GeneratedTruths:
    """Expected results for the sent data; None for data that was not sent."""

    games: GamesTruth | None
    mobile: GamesTruth | None
    engagement: EngagementTruth | None
    edits: EditsTruth | None
    viewers: ViewersTruth | None = None
    market: MarketTruth | None = None
