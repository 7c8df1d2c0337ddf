"""What happens in one session: which events, in which order, how many seconds after its start."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any, NamedTuple

from generator import market_events as market
from generator import play_events as play
from generator import social_events as social
from generator.population import SessionStart, newest_version

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


class Happening(NamedTuple):
    """One event before it is sent."""

    at: float
    name: str
    params: dict[str, Any]


def iso_text(at: float) -> str:
    """Seconds since the epoch as ISO 8601 with milliseconds and a Z."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{int(at * 1_000) % 1_000:03d}Z"


class Session:
    """Plays one session of one device, changing the device's state as it goes."""

    def __init__(self, rng: Random, start: SessionStart) -> None:
        self._rng = rng
        self._player = start.player
        self._device = start.device
        self._start = start
        self._now = start.at
        self._levels = 0
        self._happened: list[Happening] = []

    def play(self) -> list[Happening]:
        """All events of the session in order of time, from its start on."""
        self._open()
        for _ in range(1 + int(self._rng.expovariate(1 / (1.6 * self._player.engagement)))):
            self._activity()
            self._wait(2, 30)
        self._close()
        return self._happened

    def _note(self, name: str, params: dict[str, Any]) -> None:
        self._happened.append(Happening(self._now, name, params))

    def _wait(self, least: float, most: float) -> None:
        self._now += least + self._rng.random() * (most - least)

    @property
    def _elapsed_ms(self) -> int:
        return int((self._now - self._start.at) * 1_000)

    @property
    def _today(self) -> str:
        return iso_text(self._now)[:10]

    def _open(self) -> None:
        rng, device = self._rng, self._device
        if device.sessions == 0:
            self._note("install", market.install(rng, self._player, device))
            self._wait(1, 5)
        elif rng.random() < 0.1:
            self._push()
        device.sessions += 1
        self._update()
        self._note("session_start", social.session_start(rng, self._player, device))
        self._wait(1, 4)
        if rng.random() < 0.12:
            self._note("experiment_exposure", market.experiment_exposure(rng, device, iso_text(self._now)))
        if device.sessions == 1:
            self._tutorial()

    def _push(self) -> None:
        received = market.push_received(self._rng, self._now)
        self._note("push_received", received)
        if self._rng.random() < 0.5:
            self._wait(0.2, 1)
            self._note("push_opened", market.push_opened(self._rng, received))

    def _update(self) -> None:
        device = self._device
        day = self._start.day + (self._start.at % 86_400) / 86_400
        newest = newest_version(day, device.update_delay_days)
        if newest > device.version:
            self._note("app_update", social.app_update(self._rng, device.version, newest, self._today))
            device.version = newest
            self._wait(1, 3)

    def _tutorial(self) -> None:
        for step in range(1, 6):
            self._note("tutorial_step", play.tutorial_step(self._rng, step))
            self._wait(3, 20)
            if self._rng.random() < 0.08:
                return

    def _activity(self) -> None:
        roll = self._rng.random()
        if roll < 0.62:
            self._level()
        elif roll < 0.72:
            self._match()
        elif roll < (0.92 if self._player.pays else 0.80):
            self._store()
        elif roll < 0.94:
            self._social()
        else:
            self._advertisement(rewarded=False)
        if self._rng.random() < 0.08:
            self._note("fps_sample", social.fps_sample(self._rng))
        elif self._rng.random() < 0.08:
            self._note("network_sample", social.network_sample(self._rng))

    def _level(self) -> None:
        rng, device = self._rng, self._device
        device.attempt += 1
        self._levels += 1
        self._note("level_start", play.level_start(rng, device))
        began = self._now
        self._wait(25, 150)
        duration_ms = int((self._now - began) * 1_000)
        if rng.random() < 0.25:
            self._note("item_consume", play.item_consume(rng, device))
        if rng.random() < 0.3:
            self._note("level_fail", play.level_fail(rng, device, duration_ms))
            if rng.random() < 0.3:
                self._advertisement(rewarded=True)
            return
        self._note("level_complete", play.level_complete(rng, device, duration_ms))
        self._note("currency_earn", play.currency_earn(rng, device, "level"))
        device.level += 1
        device.attempt = 0
        if rng.random() < 0.2:
            self._note("item_grant", play.item_grant(rng, "level"))
        if rng.random() < 0.06:
            self._note("achievement", play.achievement(rng, device, self._now))

    def _match(self) -> None:
        match_id = f"m-{self._rng.getrandbits(64):016x}"
        self._note("match_start", play.match_start(self._rng, match_id))
        began = self._now
        self._wait(40, 240)
        self._note("match_end", play.match_end(self._rng, match_id, int((self._now - began) * 1_000)))
        self._note("currency_earn", play.currency_earn(self._rng, self._device, "match"))

    def _store(self) -> None:
        rng = self._rng
        self._note("store_open", market.store_open(rng))
        for position in range(1 + int(rng.random() * 3)):
            self._wait(1, 12)
            self._note("store_view", market.store_view(rng, position))
        if rng.random() < (0.5 if self._player.pays else 0.02):
            self._wait(4, 20)
            self._note("purchase", market.purchase(rng, self._player, self._device))
            self._note("item_grant", play.item_grant(rng, "purchase"))
        elif rng.random() < 0.5:
            self._note("currency_spend", play.currency_spend(rng, self._device))

    def _advertisement(self, *, rewarded: bool) -> None:
        self._wait(1, 4)
        self._note("ad_impression", market.ad_impression(self._rng, rewarded=rewarded))
        if rewarded:
            self._wait(10, 30)
            self._note("ad_reward", market.ad_reward(self._rng))

    def _social(self) -> None:
        roll = self._rng.random()
        if roll < 0.7:
            self._note("chat_message", social.chat_message(self._rng))
        elif roll < 0.82:
            self._note("friend_invite", social.friend_invite(self._rng))
        elif roll < 0.9:
            self._note("guild_join", social.guild_join(self._rng, self._today))
        else:
            self._note("settings_change", social.settings_change(self._rng))

    def _close(self) -> None:
        if self._rng.random() < 0.02:
            self._note("crash", social.crash(self._rng, self._elapsed_ms))
        else:
            self._note("session_end", social.session_end(self._rng, self._device, self._elapsed_ms, self._levels))
