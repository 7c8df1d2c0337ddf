"""Reads emitted objects back, slowly and plainly, and works out the answers from bytes alone."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec
from generator.delivery import Delivery
from generator.reference_scan import Piece, scan

PIPELINES = Path(__file__).resolve().parents[3] / "include" / "pipelines"
GAMES = load_spec(PipelineSpec, PIPELINES / "games" / "pipeline.yaml")
NAMES = {table.when["eventName"][0] for table in GAMES.tables if table.when}
REQUIRED = {
    table.name: {column.path.split(".")[1]: column.type for column in table.columns if column.required}
    for table in GAMES.tables
}


@dataclass(frozen=True)
class Row:
    """An accepted event and where it was found."""

    file: int
    name: str
    event_id: str
    at: datetime
    params: dict[str, Any]

    @property
    def hour(self) -> datetime:
        return self.at.replace(minute=0, second=0, microsecond=0)


@dataclass(frozen=True)
class Reading:
    """All accepted rows in order of arrival, and the quarantined ones counted by reason."""

    rows: list[Row]
    reasons: dict[str, int]
    pieces: int

    @property
    def first_arrivals(self) -> list[Row]:
        seen: dict[str, Row] = {}
        for row in self.rows:
            seen.setdefault(row.event_id, row)
        return list(seen.values())


class Refused(Exception):
    """A piece that is no event of the pipeline."""


def read(deliveries: Sequence[Delivery]) -> Reading:
    rows: list[Row] = []
    reasons: Counter[str] = Counter()
    pieces = 0
    for number, delivery in enumerate(deliveries):
        for piece in scan(gzip.decompress(delivery.body)):
            pieces += 1
            try:
                rows.append(_row(number, piece))
            except Refused as refused:
                reasons[str(refused)] += 1
    return Reading(rows, dict(sorted(reasons.items())), pieces)


def _row(file: int, piece: Piece) -> Row:
    if not piece.is_readable:
        raise Refused("malformed")
    if not isinstance(piece.value, dict):
        raise Refused("not_an_object")
    event = _body(piece.value)
    name, params = event["eventName"], event["eventParams"]
    if name not in NAMES:
        raise Refused("unknown_event")
    if event.get("eventTime") is None or "event_id" not in params:
        raise Refused("missing_required")
    for column, kind in {**REQUIRED["events"], **REQUIRED[name]}.items():
        if params.get(column) is None:
            raise Refused("missing_required")
        if kind != "string" and not isinstance(params[column], int | float):
            raise Refused("type_mismatch")
    return Row(file, name, params["event_id"], datetime.fromtimestamp(event["eventTime"], UTC), params)


def _body(wrapper: dict[str, Any]) -> dict[str, Any]:
    body = wrapper.get("body")
    if body is None:
        raise Refused("missing_required")
    try:
        event = json.loads(body)
    except ValueError:
        raise Refused("malformed") from None
    if not isinstance(event, dict):
        raise Refused("not_an_object")
    return event


def bookings(rows: Sequence[Row]) -> dict[datetime, tuple[Decimal, int]]:
    found: dict[datetime, list[Decimal]] = {}
    for row in rows:
        if row.name == "purchase":
            found.setdefault(row.hour, []).append(Decimal(str(row.params["amount"])))
    return {hour: (sum(amounts, Decimal(0)), len(amounts)) for hour, amounts in sorted(found.items())}


def active_devices(rows: Sequence[Row]) -> dict[date, set[str]]:
    found: dict[date, set[str]] = {}
    for row in rows:
        found.setdefault(row.at.date(), set()).add(row.params["device_id"])
    return found


def retention(rows: Sequence[Row]) -> dict[date, tuple[int, int | None, int | None]]:
    active = active_devices(rows)
    installed = active_devices([row for row in rows if row.name == "install"])

    def back(devices: set[Any], day: date) -> int | None:
        over = day + timedelta(days=1) in active
        return len(devices & active.get(day, set())) if over else None

    return {
        day: (len(devices), back(devices, day + timedelta(days=1)), back(devices, day + timedelta(days=7)))
        for day, devices in installed.items()
    }


def droppable(rows: Sequence[Row], slack_files: int) -> Counter[tuple[datetime, str]]:
    found: Counter[tuple[datetime, str]] = Counter()
    newest_by_file: dict[int, datetime] = {}
    for row in rows:
        newest_by_file[row.file] = max(row.at, newest_by_file.get(row.file, row.at))
    for row in rows:
        earlier = [newest for file, newest in newest_by_file.items() if file < row.file + slack_files]
        if earlier and row.hour + timedelta(hours=1) <= max(earlier) - timedelta(minutes=180):
            found[row.hour, row.name] += 1
    return found
