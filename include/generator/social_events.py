"""Parameters of social, settings, session and app quality events."""

from __future__ import annotations

from random import Random
from typing import Any

from generator.population import VERSIONS, Device, Player

Params = dict[str, Any]

# Quotes, backslashes, braces, line breaks and non-Latin scripts break readers that count brackets or split lines. The
# texts must not contain an empty object: see generator.wire.
_PHRASES = (
    "gg",
    "well played!",
    'they said "never again" \\o/',
    "one more }{ try",
    "línea uno\nlínea dos",
    "よろしくお願いします",
    "🎉🎉 level up",
    "tab\there, \u2028 and there",
)
_GUILDS = ("Night Owls", "Die Möwen", "Los Faros", "海の家", "Sea Foxes")
_SETTINGS = (("music", "on", "off"), ("language", "en", "de"), ("notifications", "all", "none"))


def chat_message(rng: Random) -> Params:
    text = rng.choice(_PHRASES)
    return {
        "channel": rng.choice(("guild", "global", "match")),
        "text": text,
        "length": len(text),
        "mentions": [f"p-{rng.getrandbits(48):012x}" for _ in range(int(rng.random() * 1.8))],
        "toxicity": round(rng.random() ** 4, 3),
    }


def friend_invite(rng: Random) -> Params:
    return {
        "channel": rng.choice(("link", "contacts", "qr")),
        "invitees": [f"p-{rng.getrandbits(48):012x}" for _ in range(1 + int(rng.random() * 3))],
        "accepted": rng.random() < 0.2,
    }


def guild_join(rng: Random, today: str) -> Params:
    return {
        # greater than 2**53, so a float cannot represent it exactly
        "guild_id": 9_007_199_254_740_993 + 2 * rng.randrange(10_000),
        "guild_name": rng.choice(_GUILDS),
        "members": rng.randrange(1, 50),
        "role": "member" if rng.random() < 0.9 else "leader",
        "joined_on": today,
    }


def settings_change(rng: Random) -> Params:
    name, before, after = rng.choice(_SETTINGS)
    return {
        "changes": {name: {"before": before, "after": after}},
        "screen": rng.choice(("main", "pause")),
        "by_player": rng.random() < 0.95,
    }


def session_start(rng: Random, player: Player, device: Device) -> Params:
    return {
        "player_id": player.player_id,
        "session_number": device.sessions,
        "cold_start": rng.random() < 0.8,
        "battery": round(rng.random(), 2),
        "device_model": device.model,
    }


def session_end(rng: Random, device: Device, duration_ms: int, levels: int) -> Params:
    return {
        "session_number": device.sessions,
        "duration_ms": duration_ms,
        "levels_played": levels,
        "foreground_ratio": round(0.7 + rng.random() * 0.3, 3),
    }


def crash(rng: Random, uptime_ms: int) -> Params:
    signature = rng.randrange(40)
    return {
        "signature": f"sig_{signature:03d}",
        "message": f"NullReferenceException: board[{signature}]",
        "stack": [
            {"function": f"Game.{part}", "line": rng.randrange(1, 900)} for part in ("Board.Draw", "Loop.Tick", "Main")
        ],
        "memory_free_mb": rng.randrange(10, 900),
        "fatal": rng.random() < 0.7,
        "uptime_ms": uptime_ms,
    }


def fps_sample(rng: Random) -> Params:
    samples = [round(20 + rng.random() * 40, 1) for _ in range(6)]
    return {
        "scene": rng.choice(("map", "board", "store")),
        "samples": samples,
        "lowest": min(samples),
        "thermal": {"state": rng.choice(("nominal", "fair", "serious")), "celsius": round(25 + rng.random() * 20, 1)},
    }


def network_sample(rng: Random) -> Params:
    return {
        "connection": rng.choice(("wifi", "lte", "5g", "3g")),
        "rtt_ms": [rng.randrange(15, 400) for _ in range(4)],
        "loss": round(rng.random() * 0.05, 4),
        "bytes_in": rng.randrange(10_000, 9_000_000_000),
        "bytes_out": rng.randrange(1_000, 90_000_000),
    }


def app_update(rng: Random, before: int, after: int, today: str) -> Params:
    return {
        "from_version": VERSIONS[before][0],
        "to_version": VERSIONS[after][0],
        "size_bytes": rng.randrange(20_000_000, 4_000_000_000),
        "delta_patch": rng.random() < 0.6,
        "released_day": int(VERSIONS[after][1]),
        "updated_on": today,
    }
