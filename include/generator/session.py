"""Simulates one game session: its events and their times."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any, NamedTuple

from generator import market_events as market
from generator import play_events as play
from generator import social_events as social
from generator.population import SessionStart, latest_version

EVENT_NAMES: tuple[str, ...] = (
    "achievement",
    "ad_impression",
    "ad_reward",
    "app_update",
    "chat_message",
    "crash",
    "currency_earn",
    "currency_spend",
    "experiment_exposure",
    "fps_sample",
    "friend_invite",
    "guild_join",
    "install",
    "item_consume",
    "item_grant",
    "level_complete",
    "level_fail",
    "level_start",
    "match_end",
    "match_start",
    "network_sample",
    "purchase",
    "push_opened",
    "push_received",
    "session_end",
    "session_start",
    "settings_change",
    "store_open",
    "store_view",
    "tutorial_step",
)


class GameEvent(NamedTuple):
    """One event before it is sent. `at` is in epoch seconds."""

    at: float
    name: str
    params: dict[str, Any]


def iso_text(at: float) -> str:
    """Formats epoch seconds as ISO 8601 with milliseconds and Z."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(at * 1_000) % 1_000:03d}Z"


class Session:
    """Plays one session of one device and updates the device's state."""

    def __init__(self, rng: Random, start: SessionStart) -> None:
        self._rng = rng
        self._player = start.player
        self._device = start.device
        self._start = start
        self._now = start.at
        self._levels_played = 0
        self._events: list[GameEvent] = []

    def play(self) -> list[GameEvent]:
        """Returns all events of the session in order of time."""
        self._begin()
        for _ in range(1 + int(self._rng.expovariate(1 / (1.6 * self._player.engagement)))):
            self._activity()
            self._advance(2, 30)
        self._end()
        return self._events

    def _emit(self, name: str, params: dict[str, Any]) -> None:
        self._events.append(GameEvent(self._now, name, params))

    def _advance(self, min_seconds: float, max_seconds: float) -> None:
        self._now += min_seconds + self._rng.random() * (max_seconds - min_seconds)

    @property
    def _elapsed_ms(self) -> int:
        return int((self._now - self._start.at) * 1_000)

    @property
    def _today(self) -> str:
        return iso_text(self._now)[:10]

    def _begin(self) -> None:
        rng, device = self._rng, self._device
        if device.sessions == 0:
            self._emit("install", market.install(rng, self._player, device))
            self._advance(1, 5)
        elif rng.random() < 0.1:
            self._push()
        device.sessions += 1
        self._update()
        self._emit("session_start", social.session_start(rng, self._player, device))
        self._advance(1, 4)
        if rng.random() < 0.12:
            self._emit("experiment_exposure", market.experiment_exposure(rng, device, iso_text(self._now)))
        if device.sessions == 1:
            self._tutorial()

    def _push(self) -> None:
        received = market.push_received(self._rng, self._now)
        self._emit("push_received", received)
        if self._rng.random() < 0.5:
            self._advance(0.2, 1)
            self._emit("push_opened", market.push_opened(self._rng, received))

    def _update(self) -> None:
        device = self._device
        day = self._start.day + (self._start.at % 86_400) / 86_400
        latest = latest_version(day, device.update_delay_days)
        if latest > device.version:
            self._emit("app_update", social.app_update(self._rng, device.version, latest, self._today))
            device.version = latest
            self._advance(1, 3)

    def _tutorial(self) -> None:
        for step in range(1, 6):
            self._emit("tutorial_step", play.tutorial_step(self._rng, step))
            self._advance(3, 20)
            if self._rng.random() < 0.08:
                return

    def _activity(self) -> None:
        roll = self._rng.random()
        if roll < 0.62:
            self._level()
        elif roll < 0.72:
            self._match()
        elif roll < (0.92 if self._player.is_payer else 0.80):
            self._store()
        elif roll < 0.94:
            self._social()
        else:
            self._advertisement(rewarded=False)
        if self._rng.random() < 0.08:
            self._emit("fps_sample", social.fps_sample(self._rng))
        elif self._rng.random() < 0.08:
            self._emit("network_sample", social.network_sample(self._rng))

    def _level(self) -> None:
        rng, device = self._rng, self._device
        device.attempt += 1
        self._levels_played += 1
        self._emit("level_start", play.level_start(rng, device))
        started_at = self._now
        self._advance(25, 150)
        duration_ms = int((self._now - started_at) * 1_000)
        if rng.random() < 0.25:
            self._emit("item_consume", play.item_consume(rng, device))
        if rng.random() < 0.3:
            self._emit("level_fail", play.level_fail(rng, device, duration_ms))
            if rng.random() < 0.3:
                self._advertisement(rewarded=True)
            return
        self._emit("level_complete", play.level_complete(rng, device, duration_ms))
        self._emit("currency_earn", play.currency_earn(rng, device, "level"))
        device.level += 1
        device.attempt = 0
        if rng.random() < 0.2:
            self._emit("item_grant", play.item_grant(rng, "level"))
        if rng.random() < 0.06:
            self._emit("achievement", play.achievement(rng, device, self._now))

    def _match(self) -> None:
        match_id = f"m-{self._rng.getrandbits(64):016x}"
        self._emit("match_start", play.match_start(self._rng, match_id))
        started_at = self._now
        self._advance(40, 240)
        self._emit("match_end", play.match_end(self._rng, match_id, int((self._now - started_at) * 1_000)))
        self._emit("currency_earn", play.currency_earn(self._rng, self._device, "match"))

    def _store(self) -> None:
        rng = self._rng
        self._emit("store_open", market.store_open(rng))
        for position in range(1 + int(rng.random() * 3)):
            self._advance(1, 12)
            self._emit("store_view", market.store_view(rng, position))
        if rng.random() < (0.5 if self._player.is_payer else 0.02):
            self._advance(4, 20)
            self._emit("purchase", market.purchase(rng, self._player, self._device))
            self._emit("item_grant", play.item_grant(rng, "purchase"))
        elif rng.random() < 0.5:
            self._emit("currency_spend", play.currency_spend(rng, self._device))

    def _advertisement(self, *, rewarded: bool) -> None:
        self._advance(1, 4)
        self._emit("ad_impression", market.ad_impression(self._rng, rewarded=rewarded))
        if rewarded:
            self._advance(10, 30)
            self._emit("ad_reward", market.ad_reward(self._rng))

    def _social(self) -> None:
        roll = self._rng.random()
        if roll < 0.7:
            self._emit("chat_message", social.chat_message(self._rng))
        elif roll < 0.82:
            self._emit("friend_invite", social.friend_invite(self._rng))
        elif roll < 0.9:
            self._emit("guild_join", social.guild_join(self._rng, self._today))
        else:
            self._emit("settings_change", social.settings_change(self._rng))

    def _end(self) -> None:
        if self._rng.random() < 0.02:
            self._emit("crash", social.crash(self._rng, self._elapsed_ms))
        else:
            self._emit(
                "session_end", social.session_end(self._rng, self._device, self._elapsed_ms, self._levels_played)
            )
