"""Simulates players and their devices: installation, retention and spending."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from generator.settings import GamesSettings

#: Country, hours ahead of UTC, share of the players.
_COUNTRIES = (
    ("US", -6.0, 26),
    ("BR", -3.0, 12),
    ("GB", 0.0, 7),
    ("DE", 1.0, 9),
    ("FR", 1.0, 6),
    ("TR", 3.0, 8),
    ("IN", 5.5, 14),
    ("ID", 7.0, 8),
    ("JP", 9.0, 10),
)
_COUNTRY_BOUNDS = list(accumulate(share for _, _, share in _COUNTRIES))
_MODELS = {
    "ios": ("iPhone12,1", "iPhone14,5", "iPhone15,2", "iPad13,4"),
    "android": ("SM-A536B", "SM-G991B", "Pixel 7", "Redmi Note 11", "CPH2387"),
}
_OS_VERSIONS = {"ios": ("15.8", "16.7", "17.3"), "android": ("11", "12", "13", "14")}
_LOCALES = {"US": "en-US", "BR": "pt-BR", "GB": "en-GB", "DE": "de-DE", "FR": "fr-FR", "TR": "tr-TR"}
#: Versions with the simulation day on which their roll-out begins.
VERSIONS: tuple[tuple[str, float], ...] = (
    ("3.4.0", -400.0),
    ("3.4.1", -3.0),
    ("3.5.0", 2.5),
    ("3.5.1", 5.0),
    ("3.6.0", 9.25),
    ("4.0.0", 20.0),
)
_SHARE_INSTALLED_BEFORE = 0.35
_SHARE_WITH_TWO_DEVICES = 0.12
_SHARE_OF_PAYERS = 0.09
#: Activity per local hour: a small peak at lunch, a large one in the evening.
_HOUR_BOUNDS = list(accumulate((2, 1, 1, 1, 1, 2, 4, 6, 7, 6, 6, 7, 9, 9, 7, 7, 8, 9, 11, 13, 14, 13, 9, 5)))
_FIRST_DAY_RETENTION = 0.45
_RETENTION_DECAY = 0.5


@dataclass(slots=True)
class Device:
    """One installation of the game and its state."""

    index: int
    device_id: str
    platform: str
    model: str
    os_version: str
    locale: str
    install_day: int
    version: int
    update_delay_days: float
    sessions: int = 0
    level: int = 1
    attempt: int = 0
    balances: dict[str, int] = field(default_factory=lambda: {"coins": 500, "gems": 20})

    @property
    def version_name(self) -> str:
        """The installed app version."""
        return VERSIONS[self.version][0]


@dataclass(slots=True)
class Player:
    """A person, with traits shared by all their devices."""

    player_id: str
    country: str
    utc_offset_hours: float
    source_ip: str
    engagement: float
    is_payer: bool
    spend_scale: float
    devices: list[Device]


def latest_version(day: float, delay_days: float) -> int:
    """Returns the index of the latest app version on a day, for a device that updates `delay_days` after each
    roll-out."""
    return max(index for index, (_, released) in enumerate(VERSIONS) if index == 0 or released + delay_days <= day)


def create_players(settings: GamesSettings, rng: Random) -> list[Player]:
    """Creates all players, some of whom installed before the first day; device indexes are consecutive."""
    players: list[Player] = []
    devices = 0
    for _ in range(settings.player_count):
        player = _create_player(settings, rng, devices)
        devices += len(player.devices)
        players.append(player)
    return players


def _create_player(settings: GamesSettings, rng: Random, first_index: int) -> Player:
    country, offset, _ = _COUNTRIES[bisect(_COUNTRY_BOUNDS, rng.random() * _COUNTRY_BOUNDS[-1])]
    if rng.random() < _SHARE_INSTALLED_BEFORE:
        install_day = -1 - int(rng.expovariate(1 / 20))
    else:
        install_day = rng.randrange(settings.days)
    player = Player(
        player_id=f"p-{rng.getrandbits(48):012x}",
        country=country,
        utc_offset_hours=offset,
        source_ip=f"198.51.100.{rng.randrange(1, 255)}",
        engagement=min(3.0, rng.lognormvariate(-0.1, 0.5)),
        is_payer=rng.random() < _SHARE_OF_PAYERS,
        # a Pareto tail below 2: a few players pay for most of it
        spend_scale=min(60.0, rng.paretovariate(1.2)),
        devices=[],
    )
    player.devices.append(_create_device(rng, first_index, country, install_day))
    if rng.random() < _SHARE_WITH_TWO_DEVICES:
        second_day = install_day + 1 + int(rng.expovariate(1 / 3))
        player.devices.append(_create_device(rng, first_index + 1, country, second_day))
    return player


def _create_device(rng: Random, index: int, country: str, install_day: int) -> Device:
    platform = "ios" if rng.random() < 0.42 else "android"
    delay = rng.expovariate(1 / 1.5)
    device = Device(
        index=index,
        device_id=f"{rng.getrandbits(64):016x}",
        platform=platform,
        model=rng.choice(_MODELS[platform]),
        os_version=rng.choice(_OS_VERSIONS[platform]),
        locale=_LOCALES.get(country, "en-US"),
        install_day=install_day,
        # a store installs the latest version; updates of existing installations are delayed
        version=latest_version(install_day, 0.0),
        update_delay_days=delay,
    )
    if install_day < 0:
        device.version = latest_version(0, delay)
        device.sessions = 1 + int(rng.expovariate(1 / 10))
        device.level = 1 + int(rng.expovariate(1 / 25))
    return device


@dataclass(frozen=True, slots=True)
class SessionStart:
    """A planned session."""

    at: float
    day: int
    player: Player
    device: Device


def sessions_of_day(settings: GamesSettings, rng: Random, players: list[Player], day: int) -> list[SessionStart]:
    """Returns all sessions of one UTC day by start time (epoch seconds)."""
    midnight = settings.start_seconds + day * 86_400
    starts: list[SessionStart] = []
    for player in players:
        device = _choose_device(rng, player, day)
        if device is None or not _is_active(rng, player, day - device.install_day):
            continue
        for _ in range(1 + min(6, int(rng.expovariate(1 / (1.1 * player.engagement))))):
            second = (_local_second(rng) - player.utc_offset_hours * 3_600) % 86_400
            starts.append(SessionStart(at=midnight + second, day=day, player=player, device=device))
    starts.sort(key=lambda start: (start.at, start.device.index))
    return starts


def _choose_device(rng: Random, player: Player, day: int) -> Device | None:
    """Returns the device used on a day: a new one on its installation day, else a random one."""
    installed = [device for device in player.devices if device.install_day <= day]
    if not installed:
        return None
    if len(installed) == 1 or installed[-1].install_day == day:
        return installed[-1]
    return rng.choice(installed)


def _is_active(rng: Random, player: Player, age_days: int) -> bool:
    if age_days == 0:
        return True
    return_probability: float = _FIRST_DAY_RETENTION * player.engagement * age_days**-_RETENTION_DECAY
    return rng.random() < return_probability


def _local_second(rng: Random) -> float:
    hour = bisect(_HOUR_BOUNDS, rng.random() * _HOUR_BOUNDS[-1])
    return (min(hour, 23) + rng.random()) * 3_600
