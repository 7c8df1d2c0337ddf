"""Converts game events to sent records: adds common parameters, duplicates, lateness and faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from generator import wire
from generator.population import SessionStart
from generator.session import GameEvent, iso_text
from generator.settings import GamesSettings

#: Event names without a declared table.
UNKNOWN_NAMES = ("levelStart", "purchase_v2", "debug_overlay", "heartbeat")
#: One required number per event type, which faults corrupt or omit. The pipeline declares these as required.
REQUIRED_NUMBERS = {
    "ad_impression": "revenue",
    "currency_earn": "quantity",
    "currency_spend": "quantity",
    "item_grant": "count",
    "level_complete": "level",
    "level_fail": "level",
    "level_start": "level",
    "purchase": "amount",
    "session_end": "duration_ms",
    "session_start": "session_number",
    "tutorial_step": "step",
}
#: Event types that carry the player's id as well as the device's.
_PLAYER_EVENTS = frozenset({"level_complete", "level_fail", "purchase"})
_PURCHASE_FAULT_SHARE = 0.05
_MIN_COPY_DELAY_SECONDS = 120.0
# less than a day, so the duplicate's date is the first copy's or the next one
_MAX_COPY_DELAY_SECONDS = 20 * 3_600.0
_MIN_LATENESS_SECONDS = 1_800.0


@dataclass(slots=True)
class DuplicatePair:
    """State shared by the two copies of one event: the index of the object with the copy that was delivered first."""

    first_file: int | None = None


@dataclass(slots=True)
class Record:
    """One record before packing.

    Attributes:
        deliver_at: delivery time of the collector, in epoch seconds.
        fault: kind of fault, for which the event is quarantined; None for a valid event.
        device: index of the device.
        cents: amount of a purchase.
    """

    deliver_at: float
    raw: bytes
    name: str
    event_time: int
    device: int
    cents: int = 0
    fault: str | None = None
    copy_pair: DuplicatePair | None = None

    @property
    def breaks_framing(self) -> bool:
        """Whether a reader cannot tell where the record ends, and must search for the next object."""
        return self.fault in wire.FRAMING_KINDS


class RecordMaker:
    """Creates records, with faults at configured rates. Use one instance per run, in order of time."""

    def __init__(self, settings: GamesSettings, rng: Random) -> None:
        self._rates = settings.rates
        self._late_max_seconds = settings.late_max_hours * 3_600
        self._rng = rng
        # faults waiting for a suitable event, by event name ("" accepts any event with a required number)
        self._pending_faults: dict[tuple[str, str], int] = {}
        bounds, total = [], 0.0
        for name in ("malformed", "without_time", "unknown_name", "type_mismatch", "missing_required"):
            total += getattr(self._rates, name)
            bounds.append((total, name))
        self._fault_bounds = bounds
        self._total_fault_rate = total

    def records(self, start: SessionStart, session_id: str, events: list[GameEvent]) -> Iterator[Record]:
        """Yields the records of one session's events, in order of creation, not delivery."""
        device, player = start.device, start.player
        rng = self._rng
        for event in events:
            event_time = int(event.at)
            params: dict[str, Any] = {
                "event_id": f"{rng.getrandbits(128):032x}",
                "device_id": device.device_id,
                "session_id": None if event.name == "push_received" else session_id,
                "client_event_time": iso_text(event.at - 0.05 - rng.random()),
                "app_version": device.version_name,
                "platform": device.platform,
                "country": player.country,
                **({"player_id": player.player_id} if event.name in _PLAYER_EVENTS else {}),
                **event.params,
            }
            record = self._send_event(event.name, event_time, params, start)
            if record.fault is None:
                if rng.random() < self._rates.late:
                    record.deliver_at += self._lateness_seconds()
                if rng.random() < self._rates.duplicates:
                    yield self._second_copy(record, params, start)
            yield record

    def _send_event(self, name: str, event_time: int, params: dict[str, Any], start: SessionStart) -> Record:
        fault = self._next_fault(name)
        time: int | None = event_time
        raw: bytes | None = None
        if fault == "malformed":
            fault = self._rng.choice(wire.MALFORMED_KINDS)
            event = wire.event_json(name, event_time, params)
            raw = wire.malformed_piece(fault, self._rng, event, self._rng.getrandbits(128), start.player.source_ip)
        elif fault == "without_time":
            time = None
        elif fault == "unknown_name":
            name = self._rng.choice(UNKNOWN_NAMES)
        elif fault == "type_mismatch":
            params[REQUIRED_NUMBERS[name]] = "abc"
        elif fault == "missing_required":
            del params[self._rng.choice((REQUIRED_NUMBERS[name], "event_id", "device_id"))]
        return self._create_record(name, time, params, start, fault=fault, raw=raw, sent_at=event_time)

    def _create_record(
        self,
        name: str,
        event_time: int | None,
        params: dict[str, Any],
        start: SessionStart,
        *,
        sent_at: int,
        fault: str | None = None,
        raw: bytes | None = None,
    ) -> Record:
        rng = self._rng
        if raw is None:
            event = wire.event_json(name, event_time, params)
            raw = wire.request_json(event, rng.getrandbits(128), start.player.source_ip)
        is_purchase = name == "purchase" and fault is None
        return Record(
            deliver_at=sent_at + 1 + rng.random() * 5,
            raw=raw,
            name=name,
            event_time=sent_at,
            device=start.device.index,
            cents=round(params["amount"] * 100) if is_purchase else 0,
            fault=fault,
        )

    def _second_copy(self, first: Record, params: dict[str, Any], start: SessionStart) -> Record:
        """Creates the duplicate of an event: equal except for the later time set by the server."""
        delay = self._log_uniform(_MIN_COPY_DELAY_SECONDS, _MAX_COPY_DELAY_SECONDS)
        sent_at = first.event_time + int(delay)
        copy = self._create_record(first.name, sent_at, params, start, sent_at=sent_at)
        copy.copy_pair = first.copy_pair = DuplicatePair()
        return copy

    def _lateness_seconds(self) -> float:
        return self._log_uniform(_MIN_LATENESS_SECONDS, self._late_max_seconds)

    def _log_uniform(self, minimum: float, maximum: float) -> float:
        return float(minimum * (maximum / minimum) ** self._rng.random())

    def _next_fault(self, name: str) -> str | None:
        """Draws the fault of the next event; a fault that needs a required number waits for an event with one."""
        roll = self._rng.random()
        if roll < self._total_fault_rate:
            fault = next(fault for bound, fault in self._fault_bounds if roll < bound)
            if fault not in ("type_mismatch", "missing_required"):
                return fault
            event_name = "purchase" if self._rng.random() < _PURCHASE_FAULT_SHARE else ""
            self._pending_faults[fault, event_name] = self._pending_faults.get((fault, event_name), 0) + 1
        if self._pending_faults and name in REQUIRED_NUMBERS:
            return self._pop_pending_fault(name)
        return None

    def _pop_pending_fault(self, name: str) -> str | None:
        for fault, event_name in self._pending_faults:
            if event_name in ("", name):
                self._pending_faults[fault, event_name] -= 1
                if not self._pending_faults[fault, event_name]:
                    del self._pending_faults[fault, event_name]
                return fault
        return None
