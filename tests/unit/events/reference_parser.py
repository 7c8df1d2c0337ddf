"""A slow reference implementation of parsing, value by value in plain Python."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from deltaworks.testing import declare_pipeline, declare_table

ARRIVED = 1_700_000_000
MAX_AGE_DAYS, MAX_FUTURE_MINUTES, MAX_BYTES = 30, 60, 220
LOW, HIGH = -2_208_988_800, 253_402_300_799

DECLARED: dict[str, Any] = declare_pipeline(
    declare_table("events", "device string required"),
    declare_table(
        "orders",
        "amount long from params.amount required",
        "level int from params.level",
        when={"name": ["order", "refund"]},
        evolve="rescue",
        rules=[
            {"name": "positive", "check": "amount > 0"},
            {"name": "low", "check": "level < 100", "on_fail": "warn"},
        ],
    ),
    declare_table(
        "web_logins",
        "level int from params.level",
        when={"name": "login", "params.web": True},
        rules=[{"name": "even", "check": "level % 2 = 0"}],
    ),
    source={"kind": "s3_sqs", "relay": "landing", "bucket": "landing", "max_event_bytes": MAX_BYTES},
    unwrap={"path": "body"},
    event={
        "name": {"path": "name"},
        "time": {
            "path": "time",
            "unit": "epoch_seconds",
            "max_age_days": MAX_AGE_DAYS,
            "max_future_minutes": MAX_FUTURE_MINUTES,
        },
        "id": "id",
    },
)


@dataclass
class Told:
    """By position: the rows of each table, or the reasons in quarantine; and the warnings."""

    rows: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    reasons: dict[int, set[tuple[str, str]]] = field(default_factory=dict)
    warnings: Counter[str] = field(default_factory=Counter)
    position: int = 0


#: Fields of a wrapper, as `unwrap.keep` names them.
KEPT = ("stage", "meta.region")


def tell(lines: list[str], *, keep: bool = False) -> Told:
    """What becomes of these lines, each of which is one value or none."""
    told = Told()
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            _one(told, None, len(line.encode()), broken=True)
            continue
        for wrapped, size in _wrapped(value, len(line.encode()), keep):
            _one(told, wrapped, size, keep=keep)
    return told


def _wrapped(value: Any, size: int, keep: bool) -> list[tuple[Any, int]]:
    """Arrays taken apart: of wrappers, and inside a wrapper."""
    if isinstance(value, list):
        return [pair for each in value for pair in _inside(each, _size(each), keep)]
    return _inside(value, size, keep)


def _inside(value: Any, size: int, keep: bool) -> list[tuple[Any, int]]:
    body = value.get("body") if isinstance(value, dict) else None
    if isinstance(body, str) and body.startswith("["):
        body = json.loads(body)
    if isinstance(body, list):
        around = _kept(value) if keep else {}
        return [(around | {"body": each}, _size(around | {"body": each})) for each in body]
    return [(value, size)]


def _kept(value: Any) -> dict[str, Any]:
    kept = {"stage": value["stage"]} if "stage" in value else {}
    if isinstance(value.get("meta"), dict) and "region" in value["meta"]:
        kept["meta"] = {"region": value["meta"]["region"]}
    return kept


def _size(value: Any) -> int:
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())


def _one(told: Told, value: Any, size: int, *, broken: bool = False, keep: bool = False) -> None:
    position, told.position = told.position, told.position + 1
    if size > MAX_BYTES:
        told.reasons[position] = {("too_large", "")}
        return
    event, kept = None if broken else value, {}
    if isinstance(event, dict):
        kept = _kept(event) if keep else {}
        event = event.get("body")
        if event is None:
            told.reasons[position] = {("missing_required", "")}
            return
        if isinstance(event, str):
            try:
                event = json.loads(event)
            except ValueError:
                broken = True
    if broken or not isinstance(event, dict):
        told.reasons[position] = {("malformed" if broken else "not_an_object", "")}
        return
    taken = [name for name in kept if name in event]
    if taken:
        told.reasons[position] = {("name_taken", taken[0])}
        return
    event = kept | event
    _event(told, position, event)


def _event(told: Told, position: int, event: dict[str, Any]) -> None:
    name, params = event.get("name"), event.get("params")
    params = params if isinstance(params, dict) else {}
    tables = []
    if name in ("order", "refund"):
        tables = ["events", "orders"]
    elif name == "login" and params.get("web") is True:
        tables = ["events", "web_logins"]
    if not tables:
        told.reasons[position] = {("unknown_event", "")}
        return
    reasons = _time(event.get("time"))
    reasons |= _typed(event.get("device"), str, "device", required=True)
    if event.get("id") in (None, ""):
        reasons.add(("missing_required", "id"))
    level, amount = params.get("level"), params.get("amount")
    reasons |= _typed(level, int, "params.level", bits=31)
    if "orders" in tables:
        reasons |= _typed(amount, int, "params.amount", bits=63, required=True)
    if not reasons and "orders" in tables and amount <= 0:
        reasons.add(("rule", "positive"))
    if not reasons and "web_logins" in tables and level is not None and level % 2:
        reasons.add(("rule", "even"))
    if reasons:
        told.reasons[position] = reasons
        return
    if "orders" in tables and level is not None and level >= 100:
        told.warnings["orders.low"] += 1
    for table in tables:
        row: dict[str, Any] = {"event_id": str(event["id"]), "event_name": name}
        if table == "events":
            row["device"] = event["device"]
        else:
            row["level"] = level
        if table == "orders":
            row |= {"amount": amount, "_rescued": _rescued(event)}
        told.rows[table, position] = row


def _time(value: Any) -> set[tuple[str, str]]:
    if value is None:
        return {("missing_required", "time")}
    if isinstance(value, bool) or not isinstance(value, int):
        return {("type_mismatch", "time")}
    if not LOW <= value <= HIGH:
        return {("out_of_range", "time")}
    if value < ARRIVED - MAX_AGE_DAYS * 86_400:
        return {("too_old", "time")}
    return {("too_far_in_future", "time")} if value > ARRIVED + MAX_FUTURE_MINUTES * 60 else set()


def _typed(value: Any, kind: type, path: str, *, bits: int = 0, required: bool = False) -> set[tuple[str, str]]:
    if value is None:
        return {("missing_required", path)} if required else set()
    if not isinstance(value, kind) or isinstance(value, bool):
        return {("type_mismatch", path)}
    return {("out_of_range", path)} if bits and not -(2**bits) <= value < 2**bits else set()


def _rescued(event: dict[str, Any]) -> Any:
    kept = {key: value for key, value in event.items() if key not in ("name", "time", "id") and value is not None}
    if isinstance(kept.get("params"), dict):
        below = kept.pop("params")
        below = {key: value for key, value in below.items() if key not in ("amount", "level") and value is not None}
        kept |= {"params": below} if below else {}
    return kept or None
