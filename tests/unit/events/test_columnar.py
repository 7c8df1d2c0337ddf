"""Columnar parsing gives the same rows, reasons and findings as the row parser."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pyarrow as pa
import pytest

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.columnar_plan import EventPlan
from deltaworks.events.formats import json as framing
from deltaworks.events.parse import Parser
from deltaworks.specs.catalog import project_root
from deltaworks.specs.loading import load_spec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import declare_columns, pipeline_spec
from generator.games import deliveries
from generator.settings import FaultRates, GamesSettings
from tests.unit.events.spoilt_events import NUMBERS, VALUES, as_payload, spoilt, vectors, with_value, wrapped

NOW = 1_717_200_000
STAMP = BatchMetadata(7, NOW * 1_000_000, "f" * 16)
#: A column of every kind, at the top, inside objects, and two that read one field.
COLUMNS = declare_columns(
    "device string",
    "kind string from name",
    "level int from params.level",
    "score long from params.score",
    "ratio double from params.ratio",
    "share float from params.share",
    "web boolean from params.web",
    "seen timestamp from params.seen",
    "day date from params.day",
    "blob binary from params.blob",
    "price decimal(12,2) from params.price",
    "price_as_double double from params.price",
    "tags array<string>",
    "moves array<int> from params.moves",
    "weights map<string,double>",
    "place struct<x: long, at: array<decimal(10,2)>, names: array<string>> from params.deep.place",
)
PATHS = [tuple(column["path"].split(".")) for column in COLUMNS] + [("time",), ("id",), ("params",)]
EVENTS = {"name": "events", "catch_all": True, "columns": COLUMNS[:3]}
ORDERS = {"name": "orders", "when": {"name": ["order", "refund"]}, "columns": COLUMNS}
LOGINS = {"name": "logins", "when": {"name": "login"}, "columns": [COLUMNS[0] | {"required": True}, COLUMNS[2]]}
NAMED = {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}, "id": "id"}


def declared(*tables: dict[str, Any], event: dict[str, Any] | None = None, **more: Any) -> PipelineSpec:
    return pipeline_spec(*(tables or (EVENTS, ORDERS, LOGINS)), event=NAMED | (event or {}), **more)


def good_event(rng: Random) -> dict[str, Any]:
    params = {
        "level": rng.randrange(90, 110),
        "score": rng.randrange(1 << 40),
        "ratio": rng.random(),
        "share": rng.randrange(100) / 4,
        "web": rng.random() < 0.5,
        "seen": f"2024-05-{rng.randrange(1, 29):02}T10:00:00Z",
        "day": f"2024-05-{rng.randrange(1, 29):02}",
        "blob": "10:00:00Z",
        "price": rng.randrange(10_000) / 100,
        "moves": [rng.randrange(5) for _ in range(rng.randrange(3))],
        "deep": {"place": {"x": rng.randrange(9), "at": [1.25, 3], "names": ["a", "é"]}},
    }
    absent = rng.sample(sorted(params), rng.randrange(3))
    name = rng.choice(["order", "refund", "login"])
    return {
        "name": name,
        "time": NOW - rng.randrange(90 * 86_400),
        "id": f"{rng.getrandbits(40):x}",
        "device": rng.choice(["ios", "android", "web" if name == "login" else None]),
        "tags": rng.choice([None, [], ["a", "b"]]),
        "weights": rng.choice([None, {}, {"a": 1.5, "b": 2}]),
        "params": {name: value for name, value in params.items() if name not in absent},
    }


def payloads_of(rng: Random, count: int, share: float, *, wrap: bool, suite: Sequence[bytes] = ()) -> list[Payload]:
    pieces = []
    for _ in range(count):
        event = good_event(rng)
        text = json.dumps(event).encode()
        if rng.random() < share:
            text = spoilt(text.decode(), PATHS, rng, suite)
        elif wrap:
            text = b'{"path":"/v1","body":%b}' % json.dumps(text.decode()).encode()
        if rng.random() < share and wrap:
            text = wrapped(text, rng)
        pieces.append(text)
    cuts = sorted({0, count, *(rng.randrange(count + 1) for _ in range(4))})
    return [
        Payload(seq, f"k/{seq}", as_payload(pieces[start:end], rng), arrived_at_us=STAMP.ingested_at_us)
        for seq, (start, end) in enumerate(itertools.pairwise(cuts), 1)
    ]


Outcome = tuple[dict[str, pa.Table], dict[str, Any]]


def outcome(parser: Parser, payloads: Sequence[Payload]) -> Outcome:
    """All rows by table, quarantine sorted, since its order within a chunk is nobody's business; and the findings."""
    parts: dict[str, list[pa.Table]] = {}
    for name, rows in parser.parse(payloads, STAMP):
        rows.validate(full=True)
        parts.setdefault(name, []).append(rows)
    tables = {name: pa.concat_tables(some).combine_chunks() for name, some in parts.items()}
    if "quarantine" in tables:
        tables["quarantine"] = tables["quarantine"].sort_by([("_seq", "ascending"), ("_position", "ascending")])
    findings = parser.findings.as_record()
    for name in ("rejected", "rejected_events", "new_fields"):
        findings[name].sort()
    return tables, findings


def differences(one: Outcome, other: Outcome) -> list[str]:
    if one[0].keys() != other[0].keys():
        return [f"tables only one way: {sorted(one[0].keys() ^ other[0].keys())}"]
    different = [f"findings {name}" for name, of_one in one[1].items() if of_one != other[1][name]]
    for name, rows in one[0].items():
        others = other[0][name]
        if rows.num_rows != others.num_rows or rows.schema != others.schema:
            different.append(f"{name}: {rows.num_rows} and {others.num_rows} rows")
            continue
        # To the bit: 0.0 equals -0.0 otherwise.
        different += [
            f"{name}.{column}"
            for column in rows.column_names
            if not rows[column].equals(others[column])
            or ("double" in str(rows[column].type) and str(rows[column].to_pylist()) != str(others[column].to_pylist()))
        ]
    return different


def assert_equal_to_row_parser(spec: PipelineSpec, payloads: Sequence[Payload], chunk_events: int) -> Parser:
    """Read both ways; the parser that decoded."""
    by_rows = outcome(Parser(spec, columnar_from_bytes=None, chunk_events=chunk_events), payloads)
    parser = Parser(spec, columnar_from_bytes=0, chunk_events=chunk_events)
    assert differences(by_rows, outcome(parser, payloads)) == []
    return parser


RULES = [
    {"name": "known", "check": "level < 109"},
    {"name": "few", "check": "level < 100", "on_fail": "warn"},
]
#: Pipelines of which some events have slots, by what is declared beside the columns.
DECODED = {
    "unwrapped": declared(),
    "wrapped": declared(unwrap={"path": "body"}),
    "rules": declared(EVENTS, ORDERS | {"rules": RULES}, LOGINS),
    "ages": declared(event={"time": NAMED["time"] | {"max_age_days": 30, "max_future_minutes": 60}}),
    "rescue": declared(EVENTS | {"evolve": "rescue", "columns": COLUMNS}, ORDERS | {"evolve": "rescue"}, LOGINS),
    "add columns": declared(EVENTS, ORDERS | {"evolve": "add_columns"}, LOGINS),
    "composite id": declared(event={"id": ["id", "device", "params.level"]}),
    "no id": declared(event={"id": []}),
    "time of parts": declared(event={"time": {"path": ["params.day", "params.blob"], "unit": "iso8601"}}),
    "arrival when missing": declared(event={"time": NAMED["time"] | {"arrival": "when_missing"}}),
    "one name": declared(ORDERS | {"catch_all": True, "when": {}}, event={"name": {"constant": "order"}}),
    "any name": declared(EVENTS | {"columns": COLUMNS}, LOGINS | {"catch_all": "rest", "when": {}}),
    "records": declared(source={"kind": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["orders"]}),
}


@pytest.mark.parametrize("branch", DECODED)
def test_every_columnar_plan_gives_the_rows_of_the_row_parser(branch: str) -> None:
    spec = DECODED[branch]
    rng = Random(branch)
    for count, share, chunk_events in ((260, 0.0, 20_000), (240, 0.25, 97)):
        payloads = payloads_of(rng, count, share, wrap=spec.unwrap is not None)
        parser = assert_equal_to_row_parser(spec, payloads, chunk_events)
        assert parser.row_parser_reason is None
        assert parser.columnar_count > 0, parser.row_parser_reasons


def test_each_value_in_each_field_equals_the_row_parser() -> None:
    event = good_event(Random(1)) | {"name": "order"}
    texts = [with_value(event, path, value) for path in PATHS for value in VALUES]
    texts += [
        with_value(event, path, value, twice=True) for path in PATHS for value in ("null", "1", '"a"', "[]", "{}")
    ]
    raw = "\n".join(texts).encode("utf-8", "surrogatepass")

    parser = assert_equal_to_row_parser(DECODED["unwrapped"], [Payload(1, "k", raw)], 20_000)

    assert parser.columnar_count > len(PATHS) * len(NUMBERS) // 4


def small_games() -> PipelineSpec:
    spec = load_spec(PipelineSpec, project_root() / "include" / "pipelines" / "games" / "pipeline.yaml")
    # Personal data is stripped from rows: `test_stripping` holds that.
    source = spec.source.model_copy(update={"max_event_bytes": 4_000})
    return spec.model_copy(update={"source": source, "privacy": None})


def games_objects(events: int, *, faults: bool) -> list[bytes]:
    names = ("malformed", "without_time", "unknown_name", "type_mismatch", "missing_required")
    rates = FaultRates() if faults else FaultRates(**dict.fromkeys(names, 0.0))
    settings = GamesSettings(target_events=events, days=1, events_per_file=400, buffer_seconds=86_400, rates=rates)
    return [gzip.decompress(delivery.body) for delivery in deliveries(settings)]


def event_of(value: Any) -> dict[str, Any] | None:
    """Returns the event of a record; None for one that the generator has made malformed."""
    try:
        event = orjson.loads(value["body"])
    except (KeyError, TypeError, ValueError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("eventParams"), dict) else None


def spoilt_games(objects: Sequence[bytes], share: float, rng: Random, suite: Sequence[bytes]) -> list[bytes]:
    spoilt_objects = []
    for data in objects:
        pieces = []
        for value, raw in framing.read_events(data):
            event = event_of(value)
            if event is not None and rng.random() < share:
                paths = [("eventParams", name) for name in event["eventParams"]] + [("eventTime",), ("eventName",)]
                pieces.append(wrapped(spoilt(value["body"], paths, rng, suite), rng))
            else:
                pieces.append(raw)
        spoilt_objects.append(as_payload(pieces, rng))
    return spoilt_objects


def numbered(objects: Sequence[bytes]) -> list[Payload]:
    return [Payload(seq, f"games/{seq}", data) for seq, data in enumerate(objects, 1)]


@pytest.mark.parametrize(("kind", "chunk_events"), [("clean", 20_000), ("faulty", 97), ("spoilt", 997)])
def test_game_events_give_the_same_rows(kind: str, chunk_events: int) -> None:
    objects = games_objects(1_200, faults=kind == "faulty")
    if kind == "spoilt":
        objects = spoilt_games(objects, 0.02, Random(2), [])

    parser = assert_equal_to_row_parser(small_games(), numbered(objects), chunk_events)

    assert parser.columnar_count > 0.8 * parser.findings.events


def test_json_suite_vectors_give_the_same_rows_at_any_position(malformed_json: Path) -> None:
    suite = vectors(malformed_json)
    spec, rng = DECODED["wrapped"], Random(3)
    event = good_event(rng) | {"name": "order"}
    pieces = [vector for vector in suite if b"\n" not in vector]
    for vector in suite:
        text = vector.decode("utf-8", "replace")
        inside = [text, *(with_value(event, path, text) for path in (("params", "level"), ("tags",), ("other",)))]
        pieces += [b'{"body":%b}' % json.dumps(body).encode() for body in inside]
        pieces.append(b'{"body":"{}","other":%b}' % vector)

    assert_equal_to_row_parser(spec, [Payload(1, "k", b"\n{}\n".join(pieces))], 20_000)
    assert_equal_to_row_parser(DECODED["unwrapped"], numbered(suite), 997)


@pytest.mark.integration
@pytest.mark.parametrize("chunk_events", [97, 1_000, 20_000])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.5, 1.0])
def test_many_game_events_give_the_same_rows(malformed_json: Path, share: float, chunk_events: int) -> None:
    suite, rng = vectors(malformed_json), Random(chunk_events)
    objects = spoilt_games(games_objects(12_000, faults=share > 0.0), share, rng, suite)

    assert_equal_to_row_parser(small_games(), numbered(objects), chunk_events)


@pytest.mark.integration
@pytest.mark.parametrize("branch", DECODED)
def test_many_events_of_every_plan_give_the_same_rows(malformed_json: Path, branch: str) -> None:
    spec, rng, suite = DECODED[branch], Random(branch), vectors(malformed_json)
    for share in (0.02, 0.3, 1.0):
        payloads = payloads_of(rng, 3_000, share, wrap=spec.unwrap is not None, suite=suite)
        for chunk_events in (97, 1_000, 20_000):
            assert_equal_to_row_parser(spec, payloads, chunk_events)


BY_ROWS = {
    "payloads are not JSON": declared(source={"kind": "s3_sqs", "relay": "r", "bucket": "b", "format": "csv"}),
    "looked up or masked": declared(EVENTS, ORDERS, private=[{"path": "device", "keep": "nothing"}]),
    "fields from their wrapper": declared(unwrap={"path": "body", "keep": ["stage"]}),
    "more than their name": declared(EVENTS, ORDERS | {"when": {"name": "order", "device": "ios"}}),
    "inside another field": declared(EVENTS, event={"name": {"path": "params.name"}}),
    "is the arrival time": declared(event={"time": {"arrival": True}}),
    "fields from their record": declared(
        EVENTS | {"columns": [{"name": "at", "path": "_record.at", "type": "string"}]}
    ),
}


@pytest.mark.parametrize("reason", BY_ROWS)
def test_pipelines_without_plans_use_the_row_parser_with_a_reason(reason: str) -> None:
    parser = assert_equal_to_row_parser(BY_ROWS[reason], payloads_of(Random(reason), 60, 0.1, wrap=True), 97)

    assert reason in str(parser.row_parser_reason)
    assert parser.columnar_count == 0


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ({"name": "big", "path": "big", "type": "decimal(20,0)"}, "accepts integers beyond 64 bits"),
        ({"name": "params", "path": "params", "type": "map<string,string>"}, "params"),
        ({"name": "quoted", "path": 'qu"ote', "type": "string"}, "a struct cannot have"),
    ],
)
def test_event_types_without_a_plan_use_the_row_parser_with_a_reason(column: dict[str, Any], reason: str) -> None:
    spec = declared(EVENTS, ORDERS | {"columns": [*COLUMNS, column]}, LOGINS)

    parser = assert_equal_to_row_parser(spec, payloads_of(Random(4), 90, 0.1, wrap=False), 20_000)

    assert parser.row_parser_reasons.keys() == {"order", "refund"}
    assert all(reason in why for why in parser.row_parser_reasons.values())
    assert 0 < parser.columnar_count < 60


def test_unread_fields_get_struct_fields_once_seen() -> None:
    rng = Random(5)
    events = [good_event(rng) | {"extra": number, "more": {"deep": [number]}} for number in range(400)]
    raw = "".join(map(json.dumps, events)).encode()

    parser = assert_equal_to_row_parser(declared(), [Payload(1, "k", raw)], 20_000)

    assert 390 <= parser.columnar_count <= 400 - 3  # all but the first of each name, and what is not sure


def test_too_many_unread_fields_use_the_row_parser() -> None:
    events = [good_event(Random(6)) | {"name": "login", f"extra {number}": 1} for number in range(300)]
    raw = "".join(map(json.dumps, events)).encode()

    parser = assert_equal_to_row_parser(declared(), [Payload(1, "k", raw)], 20_000)

    assert parser.row_parser_reasons == {"login": "they have too many fields that no column reads"}


def test_small_inputs_use_the_row_parser_and_large_ones_are_decoded() -> None:
    raw = "".join(json.dumps(good_event(Random(number))) for number in range(50)).encode()
    parser = Parser(declared(), columnar_from_bytes=3 * len(raw))

    decoded = []
    for _ in range(4):
        before = parser.columnar_count
        list(parser.parse([Payload(1, "k", raw)], STAMP))
        decoded.append(parser.columnar_count - before)

    assert decoded[:2] == [0, 0]
    assert min(decoded[2:]) > 40


def test_an_unexpected_error_falls_back_to_the_row_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = payloads_of(Random(7), 120, 0.1, wrap=False)
    expected = outcome(Parser(declared(), columnar_from_bytes=None), payloads)

    def failing(*_: object) -> Any:
        raise MemoryError

    monkeypatch.setattr(EventPlan, "to_arrays", failing)
    parser = Parser(declared(), columnar_from_bytes=0)

    assert differences(expected, outcome(parser, payloads)) == []
    assert parser.columnar_count == 0


def test_framing_for_other_callers_never_yields_decoded_events() -> None:
    raw = json.dumps(good_event(Random(8))).encode()
    parser = Parser(declared(), columnar_from_bytes=0)

    assert [type(value) for _, (value, _) in parser.frame(Payload(1, "k", raw))] == [dict]
