"""Parameters of gameplay events: tutorial, levels, matches, achievements, items and currencies."""

from __future__ import annotations

from random import Random
from typing import Any

from generator.population import Device

Params = dict[str, Any]

_BOOSTERS = ("hammer", "rocket", "rainbow", "swap", "freeze")
_TUTORIAL = ("welcome", "first_move", "combo", "booster", "map")
_ITEMS = ("hammer", "rocket", "rainbow", "life", "chest_wood", "chest_gold")
_ARENAS = ("harbour", "dunes", "sky_garden", "mill", "lighthouse")
_FAIL_REASONS = ("out_of_moves", "out_of_time", "quit", "defeated")


def tutorial_step(rng: Random, step: int) -> Params:
    return {
        "step": step,
        "step_name": _TUTORIAL[(step - 1) % len(_TUTORIAL)],
        "skipped": rng.random() < 0.1,
        "duration_ms": rng.randrange(800, 40_000),
    }


def level_start(rng: Random, device: Device) -> Params:
    return {
        "level": device.level,
        "attempt": device.attempt,
        "difficulty": ("easy", "normal", "hard")[device.level % 3],
        "boosters": [rng.choice(_BOOSTERS) for _ in range(int(rng.random() * 2.6))],
    }


def level_complete(rng: Random, device: Device, duration_ms: int) -> Params:
    return {
        "level": device.level,
        "attempt": device.attempt,
        "score": 1_000 * device.level + rng.randrange(90_000),
        "stars": 1 + int(rng.random() * 3),
        "duration_ms": duration_ms,
        "moves": [rng.randrange(64) for _ in range(3 + int(rng.random() * 6))],
        "rewards": {"coins": rng.randrange(20, 200), "stars": 1 + int(rng.random() * 3)},
    }


def level_fail(rng: Random, device: Device, duration_ms: int) -> Params:
    return {
        "level": device.level,
        "attempt": device.attempt,
        "reason": rng.choice(_FAIL_REASONS),
        "progress": round(rng.random(), 3),
        "duration_ms": duration_ms,
        "continue_offered": rng.random() < 0.7,
    }


def match_start(rng: Random, match_id: str) -> Params:
    size = 2 + int(rng.random() * 3)
    return {
        "match_id": match_id,
        "mode": rng.choice(("duel", "team", "ranked")),
        "arena": rng.choice(_ARENAS),
        "wager": round(rng.randrange(0, 5_000) / 100, 2),
        "opponents": [
            {"player": f"p-{rng.getrandbits(48):012x}", "rating": rng.randrange(600, 2_400)} for _ in range(size)
        ],
    }


def match_end(rng: Random, match_id: str, duration_ms: int) -> Params:
    return {
        "match_id": match_id,
        "outcome": rng.choice(("won", "lost", "draw")),
        "duration_ms": duration_ms,
        "rating_change": rng.randrange(-30, 31),
        "scores": {"home": rng.randrange(4_000), "away": rng.randrange(4_000)},
        "mvp": rng.random() < 0.25,
    }


def achievement(rng: Random, device: Device, at: float) -> Params:
    return {
        "achievement_id": f"ach_{rng.randrange(60):02d}",
        "tier": 1 + int(rng.random() * 3),
        "unlocked_at": int(at * 1_000),
        "progress": {"levels": device.level, "sessions": device.sessions},
    }


def item_grant(rng: Random, source: str) -> Params:
    return {
        "item_id": rng.choice(_ITEMS),
        "count": 1 + int(rng.random() * 4),
        "source": source,
        "attributes": {"rarity": rng.choice(("common", "rare", "epic")), "season": "spring"},
    }


def item_consume(rng: Random, device: Device) -> Params:
    return {
        "item_id": rng.choice(_ITEMS),
        "count": 1,
        "remaining": rng.randrange(12),
        "level": device.level if rng.random() < 0.8 else None,
    }


def currency_earn(rng: Random, device: Device, source: str) -> Params:
    currency = "gems" if rng.random() < 0.15 else "coins"
    quantity = rng.randrange(1, 5) if currency == "gems" else rng.randrange(20, 400)
    device.balances[currency] += quantity
    return {
        "currency": currency,
        "quantity": quantity,
        "balance": device.balances[currency],
        "source": source,
    }


def currency_spend(rng: Random, device: Device) -> Params:
    currency = "gems" if device.balances["gems"] > 5 and rng.random() < 0.3 else "coins"
    quantity = 1 + int(rng.random() * device.balances[currency] * 0.6)
    device.balances[currency] = max(0, device.balances[currency] - quantity)
    return {
        "currency": currency,
        "quantity": quantity,
        "balance": device.balances[currency],
        "item_id": rng.choice(_ITEMS),
        "discount": round(rng.random() * 0.5, 2) if rng.random() < 0.2 else None,
    }
