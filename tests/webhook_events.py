"""Test events like a platform's webhooks: sixty event types of very different frequency, nested ids, and expected
counts.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SUBJECTS = ("pull_request", "issue", "order", "invoice", "customer", "build", "deploy", "release", "member", "comment")
ACTIONS = ("created", "updated", "deleted", "closed", "assigned", "labelled")
#: Most frequent first: the n-th type has 1/n of the first one's events.
TYPES = tuple(f"{subject}.{action}" for action in ACTIONS for subject in SUBJECTS)
START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


@dataclass
class Webhooks:
    """Events, and the expected table contents: number of events per type, and the total amount of orders."""

    events: list[dict[str, Any]] = field(default_factory=list)
    by_type: Counter[str] = field(default_factory=Counter)
    order_cents: int = 0

    def write(self, path: Path) -> Path:
        """Writes one event per line."""
        path.write_text("".join(json.dumps(event) + "\n" for event in self.events), encoding="utf-8")
        return path


def webhooks(count: int, *, seed: int = 1) -> Webhooks:
    """Returns events of three days, at least one per type; deterministic for a seed."""
    rng, sent = random.Random(seed), Webhooks()
    weights = [1 / rank for rank in range(1, len(TYPES) + 1)]
    types = [*TYPES, *rng.choices(TYPES, weights, k=max(0, count - len(TYPES)))]
    rng.shuffle(types)
    for number, name in enumerate(types):
        event = _event(name, number, rng)
        sent.events.append(event)
        sent.by_type[name] += 1
        if name.startswith("order."):
            sent.order_cents += round(float(event["payload"]["order"]["amount"]) * 100)
    return sent


def _event(name: str, number: int, rng: random.Random) -> dict[str, Any]:
    subject, action = name.split(".")
    at = START + dt.timedelta(seconds=number * 259_200 // 10_000 + rng.random())
    return {
        "id": str(uuid.UUID(int=rng.getrandbits(128), version=4)),
        "type": name,
        "created_at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "api_version": "2026-01-31",
        "account": {"id": rng.randint(1, 500), "plan": rng.choice(["free", "team", "enterprise"])},
        "actor": None if rng.random() < 0.1 else _actor(rng),
        "repository": {
            "id": rng.randint(10**8, 10**9),
            "name": f"service-{rng.randint(1, 40)}",
            "owner": _actor(rng),
            "private": rng.random() < 0.7,
            "topics": rng.sample(["api", "web", "infra", "data"], rng.randint(0, 3)),
            "pushed_at": int(at.timestamp()) - rng.randint(0, 10**6),
        },
        "payload": {"action": action, subject: _payload(subject, rng, at)},
    }


def _actor(rng: random.Random) -> dict[str, Any]:
    number = rng.randint(1, 2_000)
    return {"id": number, "login": f"user[{number}]", "site_admin": number < 10}


def _payload(subject: str, rng: random.Random, at: dt.datetime) -> dict[str, Any]:
    common = {"id": rng.randint(1, 10**12), "state": rng.choice(["open", "closed", "merged"])}
    if subject in ("order", "invoice"):
        items = [{"sku": f"s-{rng.randint(1, 99)}", "count": rng.randint(1, 5)} for _ in range(rng.randint(1, 3))]
        # An amount as a string, as payment providers send it.
        return {**common, "amount": f"{rng.randint(100, 99_999) / 100:.2f}", "currency": "EUR", "items": items}
    if subject in ("build", "deploy"):
        # Map keys that are data, and a number that is a string in some events.
        stages = {f"{rng.randint(1, 10**6)}": round(rng.random() * 100, 3) for _ in range(rng.randint(1, 4))}
        return {**common, "seconds": rng.random() * 600, "stages": stages, "attempt": rng.choice([1, 2, "retry"])}
    due = (at + dt.timedelta(days=rng.randint(1, 30))).date().isoformat()
    return {**common, "title": f"{subject} {rng.randint(1, 10**6)}", "due_on": due, "labels": [{"id": 1, "name": "x"}]}
