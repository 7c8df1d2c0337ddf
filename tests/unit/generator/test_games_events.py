"""Generated game events are deterministic for a seed, cover every event type, and match the pipeline's declaration."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal as Number
from itertools import pairwise
from typing import Any

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.table import ColumnSpec
from deltaworks.specs.types import Array, ColumnType, Decimal, Map, Primitive, Struct, parse_type
from generator.games import deliveries
from generator.records import REQUIRED_NUMBERS
from generator.reference_scan import scan
from generator.session import EVENT_NAMES
from generator.settings import FaultRates, GamesSettings
from generator.truth import TruthCounter
from tests.unit.generator.reference_reader import GAMES

SMALL = GamesSettings(seed=11, players=120, days=4, events_per_file=100)
ENVELOPE = ("event_id",)
TABLES = {table.name: table for table in GAMES.tables}


def events(options: GamesSettings) -> Iterator[dict[str, Any]]:
    for delivery in deliveries(options):
        for piece in scan(gzip.decompress(delivery.body)):
            yield json.loads(piece.value["body"], parse_float=Number)


def test_the_same_seed_gives_the_same_bytes_and_another_gives_others() -> None:
    first = list(deliveries(SMALL))

    assert first == list(deliveries(SMALL))
    assert first != list(deliveries(replace(SMALL, seed=12)))
    assert len(first) > 20


def test_the_size_of_files_leaves_the_events_as_they_are() -> None:
    clean = replace(SMALL, rates=FaultRates.none())
    large = replace(clean, events_per_file=1_000, buffer_seconds=80_000)

    assert list(events(clean)) == list(events(large))
    assert len(list(deliveries(large))) < len(list(deliveries(clean)))


def test_objects_come_in_order_under_the_hour_they_were_begun_in() -> None:
    emitted = list(deliveries(SMALL))

    assert all(one.delivered_at <= other.delivered_at for one, other in pairwise(emitted))
    assert len({delivery.key for delivery in emitted}) == len(emitted)
    for delivery in emitted:
        prefix, year, month, day, hour, name = delivery.key.split("/")
        assert prefix == "games"
        assert name.startswith(f"deltaworks-games-1-{year}-{month}-{day}-{hour}-")
        assert name.endswith(".gz")
        begun = datetime.strptime(name[19:38], "%Y-%m-%d-%H-%M-%S").replace(tzinfo=UTC)
        waited = (delivery.delivered_at - begun).total_seconds()
        assert 0 <= waited <= SMALL.buffer_seconds + 1
        assert 1 <= delivery.events <= SMALL.events_per_file + 30


def test_every_event_type_appears_with_just_the_declared_parameters() -> None:
    seen: Counter[str] = Counter()
    filled: dict[str, set[str]] = {}
    for event in events(replace(SMALL, players=600, rates=FaultRates.none())):
        name, params = event["eventName"], event["eventParams"]
        seen[name] += 1
        declared = {column.path.removeprefix("eventParams."): column for column in TABLES[name].columns}
        common = {
            column.path.removeprefix("eventParams."): column
            for column in TABLES["events"].columns
            if not column.path.startswith("_collector.")  # a stamp of whoever takes the event
        }
        assert set(params) == {*ENVELOPE, *declared, *common}
        for key, column in {**common, **declared}.items():
            assert_fits(params[key], column)
            if params[key] is not None:
                filled.setdefault(name, set()).add(key)

    assert len(EVENT_NAMES) == 30
    assert set(seen) == set(EVENT_NAMES) == set(TABLES) - {"events"}
    for name, keys in filled.items():
        wanted = {column.path.removeprefix("eventParams.") for column in TABLES[name].columns}
        assert wanted - keys <= {"session_id"}, f"{name} never fills {wanted - keys}"


def test_the_declared_tables_have_thirty_different_schemas_of_every_kind() -> None:
    schemas = [tuple((column.name, column.type) for column in TABLES[name].columns) for name in EVENT_NAMES]
    texts = " ".join(kind for schema in schemas for _, kind in schema)

    assert len(set(schemas)) == 30
    for kind in ("struct<", "array<", "map<", "array<struct<", "decimal(", "boolean", "long", "timestamp", "date"):
        assert kind in texts


def test_the_numbers_a_fault_spoils_are_declared_required() -> None:
    for name, field in REQUIRED_NUMBERS.items():
        column = {column.name: column for column in TABLES[name].columns}[field]
        assert column.required
        assert column.type.startswith(("int", "long", "decimal"))


def test_activity_follows_the_hour_and_spending_a_few() -> None:
    hours: Counter[int] = Counter()
    spent: Counter[str] = Counter()
    for event in events(GamesSettings(players=1_200, days=4, rates=FaultRates.none())):
        params = event["eventParams"]
        if params["country"] == "JP":
            hours[(datetime.fromtimestamp(event["eventTime"], UTC).hour + 9) % 24] += 1
        if event["eventName"] == "purchase":
            spent[params["device_id"]] += params["amount"]

    assert sum(hours[hour] for hour in (19, 20, 21)) > 3 * sum(hours[hour] for hour in (2, 3, 4))
    amounts = sorted(spent.values(), reverse=True)
    tenth = amounts[: len(amounts) // 10]
    assert sum(tenth) > 0.3 * float(sum(amounts))


def test_versions_roll_out_over_days_not_at_once() -> None:
    shares = {}
    for event in events(GamesSettings(players=600, days=6, rates=FaultRates.none())):
        day = datetime.fromtimestamp(event["eventTime"], UTC).day
        shares.setdefault(day, Counter())[event["eventParams"]["app_version"]] += 1
    new = {day: versions["3.5.0"] / versions.total() for day, versions in shares.items()}

    assert new[2] == 0
    assert 0 < new[3] < new[4] < 0.9


@pytest.mark.parametrize(("target", "days"), [(20_000, 3), (40_000, 10)])
def test_a_target_number_of_events_is_about_met(target: int, days: int) -> None:
    options = GamesSettings(target_events=target, days=days)
    counter = TruthCounter(options)

    for _ in deliveries(options, counter):
        pass

    assert abs(counter.truth().pieces - target) < 0.15 * target


def test_objects_are_yielded_before_later_days_are_simulated() -> None:
    emitted = deliveries(GamesSettings(players=50, days=3_000))

    assert next(emitted).delivered_at.date() == date(2024, 3, 1)


@pytest.mark.parametrize(
    "options", [{"players": 0}, {"days": 0}, {"target_events": 0}, {"late_max_hours": 0.1}, {"live_slack_files": -1}]
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="GENERATOR_SETTING_INVALID"):
        GamesSettings(**options)


def test_a_rate_above_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="the rate late is 1\\.5"):
        FaultRates(late=1.5)


def assert_fits(value: Any, column: ColumnSpec) -> None:
    if value is None:
        assert not column.required, column.name
    else:
        assert fits(value, parse_type(column.type), column.unit), f"{column.name}: {value!r} is no {column.type}"


def fits(value: Any, kind: ColumnType, unit: str) -> bool:
    if value is None:
        return True
    match kind:
        case Array(element):
            return isinstance(value, list) and all(fits(item, element, unit) for item in value)
        case Map(held):
            return isinstance(value, dict) and all(fits(item, held, unit) for item in value.values())
        case Struct(fields):
            named = dict(fields)
            return set(value) == set(named) and all(fits(value[name], named[name], unit) for name in named)
        case Decimal(precision, scale):
            number = Number(value)
            return -int(number.as_tuple().exponent) <= scale and abs(number) < Number(10) ** (precision - scale)
        case Primitive(name):
            return primitive_fits(value, name, unit)


def primitive_fits(value: Any, name: str, unit: str) -> bool:
    if name == "timestamp" and unit == "iso8601":
        return datetime.fromisoformat(value).tzinfo is not None
    if name == "timestamp":
        return type(value) is int and 1_600_000_000_000 < value < 1_900_000_000_000
    if name == "date":
        return isinstance(value, str) and bool(date.fromisoformat(value))
    if name in ("int", "long"):
        return type(value) is int and abs(value) < 2 ** (31 if name == "int" else 63)
    if name in ("float", "double"):
        return isinstance(value, int | Number) and not isinstance(value, bool)
    return isinstance(value, {"string": str, "boolean": bool}[name])
