"""Parameters of store, purchase, advertisement, push and experiment events."""

from __future__ import annotations

from random import Random
from typing import Any

from generator.population import Device, Player

Params = dict[str, Any]

#: Prices in cents.
_PRICES = (99, 199, 499, 999, 1_999, 4_999, 9_999)
_NETWORKS = ("adnova", "brightreel", "clickwave", "dunemedia")
_PLACEMENTS = ("level_end", "extra_life", "daily_bonus", "main_menu")
_EXPERIMENTS = ("shop_layout", "hint_timing", "offer_price")


def purchase(rng: Random, player: Player, device: Device) -> Params:
    """Returns a purchase; its price follows the player's spend scale."""
    # Gaussian around the scale: most players buy small packs, a few in the tail the largest
    tier = int(rng.gauss(0.8, 1.0) + player.spend_scale**0.4)
    cents = _PRICES[max(0, min(len(_PRICES) - 1, tier))]
    quantity = 1 if rng.random() < 0.95 else 2
    order = f"{rng.getrandbits(64):016x}"
    return {
        "amount": cents * quantity / 100,
        "currency": "USD",
        "product_id": f"pack_{cents}",
        "quantity": quantity,
        "transaction_id": f"t-{order}",
        "receipt": {
            "store": _app_store(device),
            "order_id": order,
            "sandbox": False,
        },
        "items": [
            {"item": "gems", "count": cents * quantity // 10},
            {"item": "life", "count": 1 + int(rng.random() * 5)},
        ],
    }


def store_open(rng: Random) -> Params:
    return {
        "entry_point": rng.choice(("menu", "out_of_lives", "offer", "map")),
        "offers": [
            {"sku": f"pack_{cents}", "price": cents / 100} for cents in rng.sample(_PRICES, 1 + int(rng.random() * 3))
        ],
    }


def store_view(rng: Random, position: int) -> Params:
    cents = rng.choice(_PRICES)
    return {
        "sku": f"pack_{cents}",
        "price": cents / 100,
        "position": position,
        "dwell_ms": rng.randrange(200, 20_000),
        "highlighted": rng.random() < 0.2,
    }


def ad_impression(rng: Random, *, rewarded: bool) -> Params:
    return {
        "network": rng.choice(_NETWORKS),
        "placement": rng.choice(_PLACEMENTS),
        "format": "rewarded" if rewarded else rng.choice(("banner", "interstitial")),
        # at least 0.001: smaller floats would be written with an exponent
        "revenue": round(0.001 + rng.random() * 0.04, 6),
        "latency_ms": rng.randrange(30, 2_500),
        "skippable": not rewarded,
    }


def ad_reward(rng: Random) -> Params:
    return {
        "placement": rng.choice(_PLACEMENTS),
        "reward": {"currency": "coins", "amount": rng.randrange(10, 120)},
        "watched_ratio": round(0.6 + rng.random() * 0.4, 3),
    }


def push_received(rng: Random, at: float) -> Params:
    return {
        "campaign_id": 9_000_000_000 + rng.randrange(500),
        "title": rng.choice(("Lives are full", "Your friends miss you", "¡Nueva isla!", "新しい島")),
        "delivered_at": int((at - rng.random() * 7_200) * 1_000),
        "silent": rng.random() < 0.1,
    }


def push_opened(rng: Random, received: Params) -> Params:
    return {
        "campaign_id": received["campaign_id"],
        "delay_seconds": rng.randrange(1, 7_200),
        "deep_link": rng.choice(("game://map", "game://store", "game://daily")),
    }


def experiment_exposure(rng: Random, device: Device, exposed_at: str) -> Params:
    chosen = device.index % len(_EXPERIMENTS)
    return {
        "experiment": _EXPERIMENTS[chosen],
        "variant": ("control", "a", "b")[device.index // len(_EXPERIMENTS) % 3],
        "exposed_at": exposed_at,
        "parameters": {"weight": round(rng.random(), 4), "step": 0.25 * chosen},
    }


def install(rng: Random, player: Player, device: Device) -> Params:
    paid = rng.random() < 0.45
    return {
        "player_id": player.player_id,
        "source": "paid" if paid else "organic",
        "store": _app_store(device),
        "referrer": f"utm_campaign=c{rng.randrange(40)}" if paid else None,
        "campaign": {
            "network": rng.choice(_NETWORKS) if paid else None,
            "name": f"c{rng.randrange(40)}" if paid else None,
            "cost": round(0.2 + rng.random() * 4, 4) if paid else None,
        },
        "device": {
            "model": device.model,
            "os_version": device.os_version,
            "memory_mb": 1_024 * (2 + int(rng.random() * 7)),
            "locale": device.locale,
        },
    }


def _app_store(device: Device) -> str:
    return "app_store" if device.platform == "ios" else "google_play"
