"""Errors while parsing: only the failing events are quarantined, and no event value appears in any message."""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import HeartbeatWriter
from deltaworks.control.job import as_deltaworks_error
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ContractError, DeltaworksError
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.events import EventReader
from deltaworks.events.parse import Parser, TableRows
from deltaworks.events.reasons import Reason, ReasonCode, RejectedEvent, quarantine_rows
from deltaworks.events.table_columns import SharedColumns, TableColumns
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import declare_columns, pipeline_spec, present, rows_by_table
from tests.examples import examples

MakeSpec = Callable[..., PipelineSpec]
STAMP = BatchMetadata(batch_id=7, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
KINDS: dict[str, Callable[[], Exception]] = {
    "RecursionError": RecursionError,
    "MemoryError": MemoryError,
    "ArrowInvalid": lambda: pa.ArrowInvalid("a value"),
    "UnicodeEncodeError": lambda: UnicodeEncodeError("utf-8", "\udce9", 0, 1, "surrogates not allowed"),
    "KeyError": lambda: KeyError("a value"),
    "OSError": lambda: OSError("a value"),
}
#: An event is good, misfits, cannot be read, cannot be converted, or is one that a writer cannot take.
EVENTS = st.sampled_from(["good", "good", "good", "misfit"]) | st.tuples(
    st.sampled_from(["read", "convert", "complete", "write"]), st.sampled_from(sorted(KINDS))
)
Rows = dict[str, list[dict[str, Any]]]


def line(event: str | tuple[str, str]) -> str:
    amount = "much" if event == "misfit" else 4.5
    poison = list(event) if isinstance(event, tuple) else None
    return json.dumps({"name": "order", "time": 1_700_000_000, "params": {"amount": amount}, "poison": poison})


def burst(doing: str, events: Sequence[Mapping[str, Any]]) -> None:
    """Raise what the first of the events asks for that is poison to what is done with it."""
    for event in events:
        where, kind = event.get("poison") or ("", "")
        if where == doing:
            raise KINDS[kind]()


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading, converting and completing events raise what poison among them asks for."""
    read, convert, complete = EventReader.read_event, TableColumns.convert, TableColumns.add_undeclared_fields

    def poisoned_event(self: EventReader, value: Any) -> dict[str, Any]:
        burst("read", [value])
        return read(self, value)

    def poisoned_convert(self: TableColumns, shared: SharedColumns) -> Any:
        burst("convert", shared.events)
        return convert(self, shared)

    def poisoned_complete(self: TableColumns, rows: pa.Table, events: Any, *rest: Any) -> pa.Table:
        burst("complete", events)
        return complete(self, rows, events, *rest)

    monkeypatch.setattr(EventReader, "read_event", poisoned_event)
    monkeypatch.setattr(TableColumns, "convert", poisoned_convert)
    monkeypatch.setattr(TableColumns, "add_undeclared_fields", poisoned_complete)


def proof(parts: Sequence[TableRows]) -> None:
    """Refuses rows that rescued poison which a writer cannot take."""
    for name, rows in parts:
        if name == "events":
            burst("write", [json.loads(text) for text in rows.column("_rescued").to_pylist() if text])


def spec_of(make_spec: MakeSpec) -> PipelineSpec:
    events = {"name": "events", "catch_all": True, "evolve": "rescue"}
    amount = {"name": "amount", "path": "params.amount", "type": "double"}
    return make_spec(tables=[events, {"name": "orders", "when": {"name": "order"}, "columns": [amount]}])


def parsed(parser: Parser, payloads: Sequence[Payload]) -> Rows:
    return defaultdict(list, rows_by_table(parser.parse(payloads, STAMP)))


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(EVENTS, max_size=12), min_size=1, max_size=4), st.integers(1, 9), st.booleans())
def test_only_failing_events_are_quarantined(
    make_spec: MakeSpec, poisoned: None, batch: list[list[Any]], chunk_events: int, with_proof: bool
) -> None:
    payloads = [Payload(seq, f"k{seq}", "".join(map(line, events)).encode()) for seq, events in enumerate(batch, 1)]
    if not all(batch):
        payloads = [payload for payload in payloads if payload.data]
    parser = Parser(spec_of(make_spec), chunk_events=chunk_events, validate_rows=proof if with_proof else None)

    rows = parsed(parser, payloads)

    # The slow reading: each event by itself.
    wanted: dict[str, list[tuple[int, int]]] = defaultdict(list)
    reasons: dict[tuple[int, int], str] = {}
    for seq, events in enumerate(batch, 1):
        for position, event in enumerate(events):
            doing, kind = event if isinstance(event, tuple) else ("", "")
            if event == "misfit":
                reasons[seq, position] = ""
            elif doing and not (doing == "write" and not with_proof):
                reasons[seq, position] = f"{'converting' if doing != 'read' else 'reading'} failed: {kind}"
            else:
                wanted["events"].append((seq, position))
                wanted["orders"].append((seq, position))
    for name in ("events", "orders"):
        assert [(row["_seq"], row["_position"]) for row in rows[name]] == wanted[name]
    quarantined = {(row["_seq"], row["_position"]): row["reasons"] for row in rows["quarantine"]}
    assert len(quarantined) == len(rows["quarantine"])
    assert quarantined.keys() == reasons.keys()
    for place, detail in reasons.items():
        if detail:
            assert quarantined[place] == [{"code": "malformed", "path": "", "detail": detail}]


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_events_before_a_framer_failure_are_kept_and_the_rest_is_one_row(
    make_spec: MakeSpec, kind: str, taken: int
) -> None:
    parser = Parser(spec_of(make_spec), chunk_events=2)
    find = parser._framer

    def failing(data: bytes) -> Iterator[tuple[Any, bytes]]:
        for place, value in enumerate(find(data)):
            if data.startswith(b" ") and place == taken:
                raise KINDS[kind]()
            yield value

    parser._framer = failing
    good = "".join(map(line, ["good"] * 5))

    rows = parsed(parser, [Payload(seq, f"k{seq}", (begin + good).encode()) for seq, begin in ((1, ""), (2, " "))])

    assert Counter(row["_seq"] for row in rows["orders"]) == Counter({1: 5} | ({2: taken} if taken else {}))
    (row,) = rows["quarantine"]
    assert (row["_seq"], row["_position"], row["object_key"]) == (2, taken or -1, "k2")
    said = f"splitting failed: {kind}"
    detail = f"the rest is unreadable: {said}" if taken else said
    assert row["reasons"] == [{"code": "malformed", "path": "", "detail": detail}]
    assert parser.findings.objects_rejected == Counter({} if taken else {"malformed": 1})


def test_splitting_a_chunk_records_findings_once(make_spec: MakeSpec, poisoned: None) -> None:
    spec = spec_of(make_spec)
    rules = [{"name": "paid", "check": "amount > 100", "on_fail": "warn"}]
    tables = [table.model_dump() | ({"rules": rules} if table.name == "orders" else {}) for table in spec.tables]
    parser = Parser(make_spec(tables=tables))
    events = ["good", "good", ("complete", "KeyError"), "good"]

    rows = parsed(parser, [Payload(1, "k", "".join(map(line, events)).encode())])

    assert len(rows["orders"]) == 3
    assert parser.findings.rule_warnings == Counter({"orders.paid": 3})


def test_declared_failures_still_stop_the_stream(make_spec: MakeSpec) -> None:
    rules = [{"name": "paid", "check": "amount > 100", "on_fail": "fail"}]
    amount = {"name": "amount", "path": "params.amount", "type": "double"}
    spec = make_spec(tables=[{"name": "orders", "catch_all": True, "columns": [amount], "rules": rules}])

    with pytest.raises(ContractError, match="RULE_FAILED"):
        parsed(Parser(spec), [Payload(1, "k", line("good").encode())])


def test_a_quarantine_row_can_always_be_written() -> None:
    deep: Any = []
    for _ in range(2_000):
        deep = [deep]
    record = {"key": "\udce9", "deep": deep, "large": 1 << 70, "partition": 3, "\udc80": "name"}
    reason = Reason(ReasonCode.MALFORMED, "\udce9", "said \udce9")
    rejected = [
        RejectedEvent(1, 0, "k\udce9", b"\xff{}", "n\udce9", (reason,), record),
        RejectedEvent(2, 0, "k", b"", None, ()),
    ]

    rows = quarantine_rows(rejected, batch_id=1, ingested_at_us=0, fingerprint="fp", retain_raw_bytes=10).to_pylist()

    assert [row["object_key"] for row in rows] == ["k\\xe9", "k"]
    assert (rows[0]["event_name"], rows[0]["raw"]) == ("n\\xe9", "\\xff{}")
    assert rows[0]["reasons"] == [{"code": "malformed", "path": "\\xe9", "detail": "said \\xe9"}]
    assert json.loads(rows[0]["record"]) == {
        "key": "\\xe9",
        "deep": "(cannot be serialized)",
        "large": "(cannot be serialized)",
        "partition": 3,
        "\\x80": "name",
    }


CANARY = "canary7f3a"
FIRST_BATCH = BatchMetadata(batch_id=1, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
#: Where a rule's own expression fails on a text, where it fails the event, and where it only warns.
CHECKS = {
    "none": [],
    "warn": [{"name": "short", "check": "length(c) < 3", "on_fail": "warn"}],
    "fail": [{"name": "short", "check": "length(c) < 3", "on_fail": "fail"}],
    "quarantine": [{"name": "a_number", "check": "CAST(c AS INTEGER) > 0", "on_fail": "quarantine"}],
}
canaries = st.text(max_size=4).map(lambda text: f"{text}{CANARY}{text}")
values = st.recursive(
    canaries | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=6,
)
#: Events that fit but for a field that no column takes, and events of any shape.
fitting = st.fixed_dictionaries(
    {"n": st.just("a"), "t": st.just(1_700_000_000), "c": canaries}, optional={"extra": values, "email": canaries}
)
#: A text as name is told with what was rejected, so that an operator knows which event it was.
names = st.just("a") | values.filter(lambda value: not isinstance(value, str))
events = fitting | st.fixed_dictionaries(
    {"t": st.just(1_700_000_000) | values, "c": values},
    optional={"n": names, "d": values, "o": values, "email": values, "extra": values},
)


def checked_spec(evolve: str, rules: str) -> PipelineSpec:
    columns = declare_columns("c string", "d decimal(4,2)", "o struct<a:int,b:date>")
    table = {"name": "x", "catch_all": True, "evolve": evolve, "columns": columns, "rules": CHECKS[rules]}
    return pipeline_spec(
        table,
        pipeline="p",
        source={"kind": "s3_sqs", "relay": "landing", "bucket": "b"},
        event={"name": {"path": "n"}, "time": {"path": "t", "unit": "epoch_seconds"}},
    )


def surfaces(spec: PipelineSpec, data: bytes, heartbeat: LocalObjects) -> str:
    """All that leaves a pass over a payload but its rows: findings, the error as it is told, logs, the heartbeat."""
    log = StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    parser = Parser(spec)
    told: list[str] = []
    try:
        list(parser.parse([Payload(1, "key", data)], FIRST_BATCH))
    except DeltaworksError as error:
        parser.findings.failure = error
        told = [str(error), error.as_line(), repr(error), as_deltaworks_error(error).as_line()]
        writer = HeartbeatWriter(heartbeat, "heartbeat.json", pipeline="p", trigger_seconds=1)
        writer.start()
        writer.close(state="failed", error=error.as_record())
        stored = present(heartbeat.get("heartbeat.json"))
        told.append(stored.data.decode())
    finally:
        logging.getLogger().removeHandler(handler)
    told.append(json.dumps(parser.findings.as_record()))
    told.append(json.dumps(parser.findings.ledger_entry()))
    return "\n".join([*told, log.getvalue()])


@pytest.mark.parametrize("evolve", ["rescue", "add_columns", "fail"])
@pytest.mark.parametrize("rules", CHECKS)
@settings(max_examples=examples(20))
@given(sent=st.lists(events, min_size=1, max_size=4))
def test_no_value_of_an_event_leaves_the_lake(
    tmp_path_factory: pytest.TempPathFactory, evolve: str, rules: str, sent: list[dict[str, Any]]
) -> None:
    heartbeat = LocalObjects(tmp_path_factory.getbasetemp() / paths.pipeline_control("p"))

    said = surfaces(checked_spec(evolve, rules), "".join(map(json.dumps, sent)).encode(), heartbeat)

    assert CANARY not in said


def test_an_undeclared_field_is_named_with_its_type_and_without_its_value(tmp_path: Path) -> None:
    data = b'{"n":"a","t":1700000000,"c":"ab","person":{"email":"jane.doe@example.org"},"person2":1}'

    with pytest.raises(ContractError) as refused:
        list(Parser(checked_spec("fail", "none")).parse([Payload(1, "k", data)], FIRST_BATCH))

    assert refused.value.condition == "FIELD_UNDECLARED"
    assert refused.value.message == (
        "Table 'x' has no column for field 'person' (JSON type object) in event 0 of file event 1, and declares "
        "evolve: fail."
    )


def test_a_field_with_an_endless_name_is_named_by_its_beginning() -> None:
    data = json.dumps({"n": "a", "t": 1_700_000_000, "c": "ab", "x" * 100_000: 1}).encode()

    with pytest.raises(ContractError) as refused:
        list(Parser(checked_spec("fail", "none")).parse([Payload(1, "k", data)], FIRST_BATCH))

    assert len(refused.value.message) < 400
