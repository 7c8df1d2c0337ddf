"""The fuzzer detects, shrinks, saves and replays planted faults, covers every target, and its Avro reader is sound."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import registry, seeds
from tests.fuzz.avro_reader import avro_records
from tests.fuzz.campaign import Campaign, replay
from tests.fuzz.cases import Case, read_cases
from tests.fuzz.container_inputs import avro_container, encoded, long
from tests.fuzz.judge import judge
from tests.fuzz.mutations import mutated
from tests.fuzz.plain_readers import BROKEN
from tests.fuzz.shrinking import shrunk

PLANTED = "tests.unit.fuzz.planted"
SIGNATURES = {
    "segfault": "segfault: the process was ended by SIGSEGV",
    "memory": "memory: took N MiB of memory",
    "busy": "busy: the process was ended for its CPU",
    "exception": "exception: raised LookupError in the test",
    "losing": "losing: an event vanished",
    "random": "random: read twice, it comes to other rows",
}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    """One run over all planted faults."""
    run = Campaign(
        ("right", *SIGNATURES),
        seed=7,
        seconds=0.0,
        folder=tmp_path_factory.mktemp("fuzz"),
        module=PLANTED,
        passes=1,
        is_quiet=True,
        shrinking_seconds=2.0,
    )
    assert run.run() == 1
    return run


def test_every_kind_of_fault_is_a_failure_and_nothing_else_is(campaign: Campaign) -> None:
    assert set(campaign.failures) == set(SIGNATURES.values())
    assert campaign.tallies["right"].inputs > 0
    assert campaign.tallies["right"].failures == 0


def test_a_failure_is_saved_small_with_the_line_that_replays_it(campaign: Campaign) -> None:
    for signature in (SIGNATURES["exception"], SIGNATURES["segfault"]):
        (path, *_) = campaign.failures[signature]

        assert Case.decode(path.read_bytes()).data == b"!"
        assert any(f"python -m tests.fuzz --replay {path}" in line for line in campaign.lines)


def test_a_saved_failure_fails_again_until_it_is_mended(campaign: Campaign, tmp_path: Path) -> None:
    files = read_cases([campaign.failures[SIGNATURES["losing"]][0], campaign.failures[SIGNATURES["segfault"]][0]])

    assert len(replay(files, tmp_path, module=PLANTED)) == 2


def test_the_table_counts_every_target(campaign: Campaign) -> None:
    rows = [line.split() for line in campaign.table().splitlines()]

    assert rows[0][:4] == ["target", "inputs", "events", "quarantined"]
    assert [row[0] for row in rows[1:-1]] == ["right", *SIGNATURES]


def test_a_framer_that_loses_an_event_is_seen(tmp_path: Path) -> None:
    line = b'{"name": "login", "time": 1700000000, "id": "a"}\n'
    case = Case("json", "values", line * 3)
    path = case.save(tmp_path)

    assert "events came out" in replay([(path, case)], tmp_path / "work", module=PLANTED)[path]
    assert judge(case).problems == ()


def test_a_smaller_input_is_one_that_fails_alike() -> None:
    assert shrunk(b"abc{def}ghi", lambda data: b"{" in data and b"}" in data, seconds=60) == b"{}"


def test_a_case_is_the_same_after_it_was_saved(tmp_path: Path) -> None:
    case = Case("csv", "commas", b"\x00\n{\xff")

    assert [loaded for _, loaded in read_cases([case.save(tmp_path, note="why")])] == [case]


EXAMPLES = Path(__file__).resolve().parents[2] / "fuzz" / "examples"
_MADE, _DAMAGED = 8, 16
#: What is this large is for a process of its own.
_MOST_BYTES = 8_000
VARIANTS = pytest.mark.parametrize(
    ("name", "variant"),
    [
        pytest.param(name, variant, id=f"{name}-{variant}")
        for name in registry.NAMES
        for variant in registry.target(name).variants()
    ],
)


@VARIANTS
def test_inputs_by_structure_are_read_as_a_slow_reader_reads_them(name: str, variant: str) -> None:
    @settings(max_examples=_MADE, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(registry.target(name).inputs(variant))
    def examine(data: bytes) -> None:
        if len(data) <= _MOST_BYTES:
            assert judge(Case(name, variant, data)).problems == ()

    examine()


@VARIANTS
def test_damaged_objects_are_read_as_a_slow_reader_reads_them(name: str, variant: str) -> None:
    rng = Random(f"{name}/{variant}")
    # Objects that every machine has: shared data would make it other inputs here than there.
    objects = seeds.own_seeds(name, variant)

    for _ in range(_DAMAGED):
        data = mutated(rng.choice(objects), rng, kind=registry.target(name).kind, others=objects)[:_MOST_BYTES]
        verdict = judge(Case(name, variant, data))

        assert verdict.problems == (), data


def test_inputs_that_failed_once_are_read_rightly(tmp_path: Path) -> None:
    files = read_cases([EXAMPLES])

    assert files
    assert replay(files, tmp_path) == {}


def test_an_example_is_called_by_its_own_digest() -> None:
    assert [path.name for path, case in read_cases([EXAMPLES]) if f"{case.target}-{case.digest}" != path.stem] == []


LONGS = st.integers(-(2**63) + 1, 2**63 - 1)
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": LONGS,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=5).map(bytes.hex),
    "string": st.text(st.characters(codec="utf-8"), max_size=5),
}
TYPES: st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]] = st.recursive(
    st.sampled_from(list(PRIMITIVES.items())),
    lambda inner: st.one_of(
        inner.filter(lambda kind: kind[0] != "null").map(
            lambda kind: ({"type": "array", "items": kind[0]}, st.lists(kind[1], max_size=3))
        ),
        inner.map(
            lambda kind: (
                {"type": "map", "values": kind[0]},
                st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), kind[1], max_size=3),
            )
        ),
    ),
    max_leaves=3,
)
LONG_FIELD = {"name": "at", "type": "long"}


def record_of(*fields: Any, name: str = "event") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def written(schema: Any, value: Any) -> Any:
    """A value as a library takes it: bytes are hexadecimal texts in events."""
    if schema == "bytes":
        return bytes.fromhex(value)
    if isinstance(schema, dict):
        if schema["type"] == "array":
            return [written(schema["items"], item) for item in value]
        return {name: written(schema["values"], item) for name, item in value.items()}
    return value


@settings(deadline=None)
@given(st.data())
def test_what_a_library_writes_is_read_value_by_value(data: st.DataObject) -> None:
    kind, values = data.draw(TYPES)
    schema = record_of(LONG_FIELD, {"name": "a", "type": kind})
    records = [{"at": 1, "a": value} for value in data.draw(st.lists(values, max_size=4))]
    blocks = [(1, encoded(schema, {"at": 1, "a": written(kind, record["a"])})) for record in records]

    reading = avro_records(avro_container(schema, blocks))

    assert reading.is_exact
    assert list(reading.events) == records


def test_named_types_unions_and_logical_types_are_followed() -> None:
    place = {"type": "record", "name": "place", "namespace": "geo", "fields": [{"name": "x", "type": "double"}]}
    schema = record_of(
        {"name": "name", "type": {"type": "enum", "name": "names", "symbols": ["login", "order"]}},
        {"name": "from", "type": ["null", place]},
        {"name": "to", "type": "geo.place"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
        {"name": "mark", "type": {"type": "fixed", "name": "two", "size": 2}},
        {"name": "uuid", "type": {"type": "string", "logicalType": "uuid"}},
    )
    record = {
        "name": "order",
        "from": {"x": 1.5},
        "to": {"x": 2.0},
        "amount": Decimal("1.25"),
        "mark": b"\xff\x00",
        "uuid": "none",
    }
    fastavro.parse_schema(schema)

    (event,) = avro_records(avro_container(schema, [(1, encoded(schema, record))])).events

    assert type(event.pop("amount")).__name__ == "_Typed"
    assert event == {"name": "order", "from": {"x": 1.5}, "to": {"x": 2.0}, "mark": "ff00", "uuid": "none"}


@pytest.mark.parametrize(
    "schema",
    [
        record_of({"name": "next", "type": ["null", "event"]}),
        record_of({"name": "a", "type": "null"}),
        record_of({"name": "a", "type": {"type": "array", "items": "null"}}),
        record_of({"name": "a", "type": "nothing"}),
        record_of({"name": "a", "type": json.loads('{"type":' * 300 + '"int"' + "}" * 300)}),
    ],
    ids=["inside itself", "no bytes", "items without bytes", "no type", "deep"],
)
def test_what_readers_are_free_to_refuse_decides_nothing(schema: Any) -> None:
    reading = avro_records(avro_container(schema, [(1, b"\x02" * 100_000)]))

    assert (reading.least, reading.most, reading.whole, reading.may_be_empty) == (0, float("inf"), True, False)


@pytest.mark.parametrize(
    ("block", "bounds"),
    [
        ((1, long(5)), (1, 1, 0)),
        ((2, long(5)), (1, 3, 1)),
        ((1, long(5) * 2), (1, 2, 1)),
        ((1, b"\xff" * 11), (1, 2, 1)),
        ((1, b"\xff" * 11 + b"\0"), (1, 1, 0)),
        ((-1, long(5)), (1, 1, 1)),
        ((0, b""), (0, 0, 0)),
    ],
    ids=["right", "too few", "too many", "no end", "beyond 64 bits", "negative", "none"],
)
def test_a_block_has_as_many_events_as_can_be_said_of_it(
    block: tuple[int, bytes], bounds: tuple[int, int, int]
) -> None:
    reading = avro_records(avro_container(record_of(LONG_FIELD), [block]))

    assert (reading.least, reading.most, reading.broken) == bounds


def test_a_text_that_is_none_breaks_its_record_and_no_other() -> None:
    schema = record_of({"name": "name", "type": "string"})
    good, bad = long(1) + b"a", long(2) + b"\xff\xfe"

    reading = avro_records(avro_container(schema, [(3, good + bad + good)]))

    assert list(reading.events) == [{"name": "a"}, BROKEN, {"name": "a"}]
