"""What a demo sends, and the right answers about it."""

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
    """How much of what is sent; None for what is not.

    Attributes:
        viewers: who watches: the log of their CDN, and with `with_player_events` what their players report.
        market: the filings of companies, and with `with_share_prices` the prices of their shares.
    """

    games: GamesSettings | None
    engagement: EngagementSettings | None
    edits: Path | None
    viewers: ViewersSettings | None = None
    with_player_events: bool = False
    market: MarketSettings | None = None
    with_share_prices: bool = False
    landing_seconds: float

    @property
    def viewers_settings(self) -> tuple[str, ...]:
        """The pipelines that get events of viewers; each is built behind those before it."""
        return ("cdn_logs", "video_qos")[
            : (self.viewers is not None) + (self.viewers is not None and self.with_player_events)
        ]

    @property
    def market_settings(self) -> tuple[str, ...]:
        """The pipelines that get events of the market; each is built behind those before it."""
        return ("filings", "stocks")[: (self.market is not None) + (self.market is not None and self.with_share_prices)]

    @property
    def pipelines(self) -> tuple[str, ...]:
        """The pipelines that get events."""
        sent = {"games": self.games, "engagement": self.engagement, "edits": self.edits}
        alone = [name for name, what in sent.items() if what is not None]
        return tuple(sorted([*alone, *self.viewers_settings, *self.market_settings]))


@dataclass(frozen=True, slots=True)
class GeneratedTruths:
    """The right answers about what was sent."""

    games: GamesTruth | None
    engagement: EngagementTruth | None
    edits: EditsTruth | None
    viewers: ViewersTruth | None = None
    market: MarketTruth | None = None
