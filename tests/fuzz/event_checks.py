"""Checks of every parsing target: no exception, no event lost or doubled, and equal results when parsed twice.

`observe` runs the product; `problems` compares its result with a slow reader's. An event must land if all fields that
the declaration reads are clearly valid, must not land if one is clearly invalid, and may do either otherwise. A landed
event must be in exactly the tables of its name.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.events.reasons import ENTIRE_OBJECT, QUARANTINE_TABLE, ReasonCode
from deltaworks.events.redaction import RedactionKeys
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import PayloadSpec
from deltaworks.testing import declare_table
from tests.fuzz.plain_readers import BROKEN, UNSURE, Reading

STAMP = BatchMetadata(batch_id=3, ingested_at_us=1_700_000_000_000_000, fingerprint="fp")
#: Reasons to refuse a payload that is readable.
_BEYOND_BUDGET = frozenset({str(ReasonCode.TOO_LARGE), "over_budget"})
#: The parser's reason for an unforeseen error: no event is lost, but the bug has to be fixed.
_UNFORESEEN = re.compile(r"(?:splitting|reading|converting) failed: \w+")
#: Lower than usual, so that inputs of some kilobytes reach the limits; partitions are limited elsewhere.
_BUDGET = {"max_decoded_bytes": "128MiB", "max_records": 20_000, "max_partitions": 1_000_000_000}
_SECONDS_FROM, _SECONDS_TO = -2_208_988_800, 253_402_300_799
_SHOWN = 3
_DECLARED: dict[str, Any] = {
    "pipeline": "shop",
    "description": "orders",
    "owner": "tests",
    "event": {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}, "id": "id"},
    "tables": [
        declare_table(
            "events",
            "device string",
            "level int from params.level",
            "score double from params.score",
            "seen timestamp from params.seen",
            "day date from params.day",
            "blob binary from params.blob",
            "tags array<string>",
            "weights map<string, float>",
            "place struct<x: long, at: array<decimal(10,2)>>",
            evolve="rescue",
        ),
        declare_table(
            "orders",
            "amount decimal(12,2)",
            when={"name": ["order", "refund"]},
            evolve="add_columns",
            rules=[{"name": "small", "check": "amount < 1000000"}],
        ),
        declare_table("logins", "web boolean", when="login"),
    ],
}
_TABLES = {name: {"events", "orders"} for name in ("order", "refund")} | {"login": {"events", "logins"}}
_OBJECTS = {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"}


@lru_cache(maxsize=64)
def _spec(source: str, event: str) -> PipelineSpec:
    declared = json.loads(source)
    declared_event = _DECLARED["event"] | json.loads(event)
    if "budget" in PayloadSpec.model_fields:
        declared["budget"] = _BUDGET
    keep = declared.pop("unwrap", None)
    privacy = {"privacy": declared.pop("privacy")} if "privacy" in declared else {}
    unwrap = {} if keep is None else {"unwrap": {"path": "body", "keep": keep}}
    return PipelineSpec.model_validate(
        _DECLARED
        | unwrap
        | privacy
        | {"source": declared if "kind" in declared else _OBJECTS | declared, "event": declared_event}
    )


#: Tasks reuse one parser for all payloads, and building it takes longer than parsing a small payload.
_PARSERS: dict[tuple[str, bool], Parser] = {}


def _parser(spec: PipelineSpec, *, by_columns: bool) -> Parser:
    name = f"{spec.source.model_dump_json()}{spec.event.model_dump_json()}{spec.unwrap}{spec.privacy}", by_columns
    if name not in _PARSERS:
        keys = None if spec.privacy is None else RedactionKeys(bytes(32))
        _PARSERS[name] = Parser(spec, redaction_keys=keys, columnar_from_bytes=0 if by_columns else None)
    return _PARSERS[name]


def declared(event: Mapping[str, Any] | None = None, **source: Any) -> PipelineSpec:
    """Returns the pipeline that reads all payloads, with this source; `event` overrides parts of its event section."""
    return _spec(json.dumps(source), json.dumps(dict(event or {})))


@dataclass(frozen=True, slots=True)
class Observed:
    """The product's result for payloads: tables and event ids by position, and quarantine reasons by position."""

    tables: Mapping[tuple[int, int], tuple[str, ...]]
    ids: Mapping[tuple[int, int], tuple[str | None, ...]]
    reasons: Mapping[tuple[int, int], tuple[str, ...]]
    #: All rows by table, for comparing two runs.
    rows: Mapping[str, pa.Table] = field(default_factory=dict, compare=False)
    notes: tuple[str, ...] = ()
    unforeseen: tuple[str, ...] = ()

    def of(self, seq: int) -> tuple[dict[int, tuple[str, ...]], dict[int, tuple[str, ...]]]:
        """Returns tables and reasons of one payload by position."""
        landed = {position: names for (of, position), names in self.tables.items() if of == seq}
        return landed, {position: codes for (of, position), codes in self.reasons.items() if of == seq}

    def differs(self, other: Observed) -> bool:
        """Whether another run on the same payloads gave other rows."""
        if self != other or self.rows.keys() != other.rows.keys():
            return True
        return any(not _in_order(rows).equals(_in_order(other.rows[name])) for name, rows in self.rows.items())


def _in_order(rows: pa.Table) -> pa.Table:
    """Sorts quarantine rows, whose order within a chunk is not guaranteed."""
    return rows.sort_by([("_seq", "ascending"), ("_position", "ascending")]) if "reasons" in rows.column_names else rows


def observe(spec: PipelineSpec, payloads: Sequence[Payload], notes: Sequence[str] = ()) -> Observed:
    """Parses payloads as a task does. Where events are decoded in columns, also parses them row by row and compares."""
    by_columns = _parser(spec, by_columns=True)
    observed = _observed(by_columns, payloads, notes)
    if by_columns.row_parser_reason is None and _observed(_parser(spec, by_columns=False), payloads, notes).differs(
        observed
    ):
        return replace(observed, unforeseen=(*observed.unforeseen, "columns and rows differ"))
    return observed


def _observed(parser: Parser, payloads: Sequence[Payload], notes: Sequence[str]) -> Observed:
    chunks: dict[str, list[pa.Table]] = {}
    for name, rows in parser.parse(payloads, STAMP):
        chunks.setdefault(name, []).append(rows)
    tables: dict[tuple[int, int], list[str]] = {}
    ids: dict[tuple[int, int], list[str | None]] = {}
    reasons: dict[tuple[int, int], tuple[str, ...]] = {}
    whole: dict[str, pa.Table] = {}
    unforeseen: list[str] = []
    for name, parts in chunks.items():
        rows = whole[name] = pa.concat_tables(parts)
        rows.validate(full=True)
        places = zip(rows["_seq"].to_pylist(), rows["_position"].to_pylist(), strict=True)
        if name == QUARANTINE_TABLE:
            codes = rows["reasons"].to_pylist()
            for place, of_row in zip(places, codes, strict=True):
                unforeseen += [text for reason in of_row for text in _UNFORESEEN.findall(reason["detail"])]
                reasons[place] = reasons.get(place, ()) + tuple(reason["code"] for reason in of_row)
            if len(reasons) < rows.num_rows:
                raise AssertionError("two rows of quarantine have one place")
            continue
        for place, event_id in zip(places, rows["event_id"].to_pylist(), strict=True):
            tables.setdefault(place, []).append(name)
            ids.setdefault(place, []).append(event_id)
    sorted_tables = {place: tuple(sorted(names)) for place, names in tables.items()}
    return Observed(
        sorted_tables, {place: tuple(v) for place, v in ids.items()}, reasons, whole, tuple(notes), tuple(unforeseen)
    )


def problems(observed: Observed, reading: Reading, *, seq: int = 1) -> list[str]:
    """Returns the contradictions between the slow reading of payload `seq` and the observed rows; empty if they
    agree."""
    return list(_problems(observed, reading, seq))[:_SHOWN]


def _problems(observed: Observed, reading: Reading, seq: int) -> Iterator[str]:
    landed, rejected = observed.of(seq)
    for text in observed.unforeseen[:1]:
        yield f"an error that nobody thought of, {text}"
    for position, names in landed.items():
        if len(set(names)) < len(names):
            yield f"event {position} is twice in a table: {names}"
        if position in rejected:
            yield f"event {position} is in {names} and in quarantine too"
    if ENTIRE_OBJECT in rejected:
        codes = rejected[ENTIRE_OBJECT]
        if not (reading.whole or _BEYOND_BUDGET & set(codes)):
            yield f"the whole payload is in quarantine as {codes}, though {len(reading.events)} events can be read"
        return
    positions = sorted({*landed, *rejected})
    count = len(positions)
    if positions != list(range(count)):
        yield f"events vanished: of {count} the last is {positions[-1]}"
        return
    is_cut = any(_BEYOND_BUDGET & set(codes) for codes in rejected.values())
    if count > reading.most or (count < reading.least and not is_cut):
        most = "" if reading.most == reading.least else f" to {reading.most}"
        yield f"{count} events came out, {reading.least}{most} are there"
        return
    if len(rejected) < reading.broken:
        yield f"{len(rejected)} rows are in quarantine, {reading.broken} pieces are broken"
    if not count and not (reading.is_exact or reading.may_be_empty):
        yield "the payload left no row at all"
    kept = Counter(event["id"] for event in reading.kept if is_plainly_right(event))
    if lost := kept - Counter(ids[0] for (of, _), ids in observed.ids.items() if of == seq):
        yield f"right events on lines of their own are lost: {sorted(lost)}"
    for position, event in enumerate(reading.events[:count]):
        yield from _of_event(event, position, landed.get(position), observed.ids.get((seq, position)))


def _of_event(
    event: Any, position: int, names: tuple[str, ...] | None, ids: tuple[str | None, ...] | None
) -> Iterator[str]:
    if event is UNSURE:
        return
    expected = expected_tables(event)
    if names is None:
        if is_plainly_right(event):
            yield f"event {position} is right and in quarantine: {str(event)[:200]}"
        return
    if set(names) != expected:
        yield f"event {position} landed in {names}, expected {sorted(expected) or 'quarantine'}: {str(event)[:200]}"
    if isinstance(event, dict) and isinstance(event.get("id"), str) and set(ids or ()) != {event["id"]}:
        yield f"event {position} has the id {ids}, not {event['id']!r}"


def expected_tables(event: Any) -> set[str]:
    """Returns the tables an event belongs to; empty if it can only be in quarantine."""
    if event is BROKEN or not isinstance(event, dict):
        return set()
    name, time, event_id = event.get("name"), event.get("time"), event.get("id")
    if not isinstance(name, str) or time is None or event_id in (None, "") or isinstance(event_id, list | dict):
        return set()
    if isinstance(time, bool | list | dict) or (isinstance(time, float) and not math.isfinite(time)):
        return set()
    return _TABLES.get(name, set())


def is_plainly_right(event: Any) -> bool:
    """Whether nothing about an event could prevent it from landing."""
    if not expected_tables(event) or not {*event} <= {"name", "time", "id", "device"}:
        return False
    time, texts = event["time"], (event["name"], event["id"], event.get("device") or "")
    if isinstance(time, str):
        time = int(time) if time.isascii() and time.isdigit() and len(time) < 18 else None
    if isinstance(time, bool) or not isinstance(time, int) or not _SECONDS_FROM <= time <= _SECONDS_TO:
        return False
    return all(isinstance(text, str) and text.isprintable() and len(text) < 1_000 for text in texts)


def counts(observed: Observed) -> tuple[int, int]:
    """Returns the numbers of events and of quarantined events."""
    return len({*observed.tables, *observed.reasons}), len(observed.reasons)
