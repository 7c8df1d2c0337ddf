"""The parser: reads events of payloads, routes them to tables and converts their columns.

An event is committed to every table whose condition matches, or to quarantine with its reasons, but never to both. All
tables of a chunk are converted before any row is yielded (`conversion`), and an event that one table rejects is removed
from all.

No payload can stop a stream. Any error from reading an event becomes its reason in quarantine. If the conversion of a
chunk fails, the chunk is split until only the failing events are rejected. The only errors raised are those that a
declaration asks for, such as `on_fail: fail`; they are `DeltaworksError`s.

Events are decoded into structs if a plan exists for their type, and with orjson otherwise. Plans are compiled for the
event names that tables declare. From events that the row parser reads, the decoder learns more names (for tables that
accept any name) and fields that no column reads, because decoding fails on unknown fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from deltaworks.errors import DeltaworksError
from deltaworks.events.budget import BudgetExceededError, EventRun, OverBudget
from deltaworks.events.chunks import (
    END_OF_CHUNK,
    BatchMetadata,
    Chunk,
    Payload,
    PositionedEvent,
    number_events,
    rejected_event_of,
    unexpected_error_reason,
)
from deltaworks.events.columnar_batches import EMPTY_EVENT, ColumnarChunk, DecodedEvents, convert_by_columns
from deltaworks.events.columnar_plan import EventPlan, paths_without_field, row_parser_reason
from deltaworks.events.columnar_redaction import ColumnarRedaction
from deltaworks.events.columnar_structs import DECODE_ERRORS, NotColumnarError, Path, create_decoder
from deltaworks.events.conversion import ChunkConverter, ConvertedChunk, RowIndexes, TableRows
from deltaworks.events.erasure_tombstones import ERASED_BYTES
from deltaworks.events.events import EventReader, Router, path_getter
from deltaworks.events.evolution import EvolvedColumns
from deltaworks.events.formats.json_recovery import Malformed, parse_value
from deltaworks.events.formats.registry import Framer, create_framer, estimate_events
from deltaworks.events.reasons import ENTIRE_OBJECT, ConversionError, Reason, ReasonCode, RejectedEvent, quarantine_rows
from deltaworks.events.redaction import RedactionKeys, create_redaction
from deltaworks.events.source_fields import (
    PARTITION_FIELD,
    RECORD_FIELD,
    create_lookups_and_masks,
    partition_fields,
    pin_databases,
)
from deltaworks.events.table_columns import TableColumns
from deltaworks.events.task_findings import TaskFindings
from deltaworks.specs.base import path_names
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import RecordSourceSpec
from deltaworks.specs.sources import partition_columns_of
from deltaworks.specs.storage import StorageSpec

if TYPE_CHECKING:
    from deltaworks.events.lookup_databases import PinnedDatabases

#: Maximum number of plans, and of unread fields per event type. Each new one recompiles all plans.
_MAX_PLANS, _MAX_UNREAD_FIELDS = 128, 64
#: Events of each type that are examined for unread fields.
_MAX_EXAMINED_EVENTS = 200
#: Nesting that both msgspec and orjson accept. Only texts long enough to exceed it are checked.
_DEEP_BRACKETS, _DEEP_BYTES = 900, 1_800
#: Number of failures after which decoding is given up if fewer events were decoded successfully.
_TRIAL_EVENTS = 1_000


class EventDecoder:
    """Decodes the events of one pipeline. Not thread-safe.

    Attributes:
        row_parser_reason: why no event is decoded into a struct; None if some are.
        row_parser_reasons: the same by event name.
        plans: the plan by struct class.
        scan_candidates: `id()` of decoded events whose texts must be scanned for personal data; cleared by the caller.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        router: Router,
        by_table: Mapping[str, TableColumns],
        redaction: ColumnarRedaction | None = None,
    ) -> None:
        """Creates a decoder. `redaction` is required for pipelines that declare personal data."""
        self._spec = spec
        self._redaction = redaction
        self._scanner = None if redaction is None else redaction.redactor.scanner
        self.scan_candidates: set[int] = set()
        path = spec.event.name.path
        self._name_field = None if path is None else path_names(path)[0]
        self._router = router
        self._by_table = by_table
        self.row_parser_reason = row_parser_reason(spec, router)
        self.row_parser_reasons: dict[str, str] = {}
        self.plans: dict[type, EventPlan] = {}
        self._by_name: dict[str, EventPlan] = {}
        self._unread_fields: dict[str, list[Path]] = {}
        self._examined: dict[str, int] = {}
        self._unwrap = path_getter(path_names(spec.unwrap.path)) if spec.unwrap else None
        # Compiled when the first event is decoded, because a task may have none.
        self._decode: Any = _reject_all if self.row_parser_reason is not None else self._compile_and_decode
        self._decoded_count = self._refused_count = 0

    def loads(self, raw: bytes) -> Any:
        """Decodes an event into a struct, or into Python objects if no struct fits.

        Raises:
            orjson.JSONDecodeError: invalid JSON.
        """
        if ERASED_BYTES in raw:
            return orjson.loads(raw)
        if self._unwrap is None:
            value = None
            text: Any = raw
        else:
            value = orjson.loads(raw)
            text = self._unwrap(value)
        try:
            if len(text) <= _DEEP_BYTES or not _is_deep(text):
                decoded = self._decode(text)
                self._decoded_count += 1
                if self._scanner is not None and self._scanner.may_contain(text):
                    self.scan_candidates.add(id(decoded))
                return decoded
        except DECODE_ERRORS:
            pass
        self._refused_count += 1
        if self._refused_count >= _TRIAL_EVENTS and self._refused_count > self._decoded_count:
            self.row_parser_reason = "most of them cannot be decoded into structs"
        return orjson.loads(raw) if self._unwrap is None else value

    def learn(self, event: Mapping[str, Any], name: str, tables: tuple[str, ...]) -> None:
        """Learns names and fields from an event that was not decoded, so that later events like it are."""
        if name in self.row_parser_reasons:
            return
        plan = self._by_name.get(name)
        if plan is None:
            if len(self._by_name) < _MAX_PLANS and self._plan(name, tables):
                self._compile()
            return
        examined = self._examined[name] = self._examined.get(name, 0) + 1
        if not plan.accepts_unread_fields or examined > _MAX_EXAMINED_EVENTS:
            return
        unread = [path for path in paths_without_field(event, plan.tree) if path != plan.name_path]
        if unread:
            present = self._unread_fields.setdefault(name, [])
            present += unread
            if len(present) > _MAX_UNREAD_FIELDS:
                self._give_up(name, "they have too many fields that no column reads")
            else:
                self._plan(name, tables)
            self._compile()

    def _compile_and_decode(self, text: Any) -> Any:
        for name in self._declared_names():
            self._plan(name)
        self._compile()
        return self._decode(text)

    def _declared_names(self) -> list[str]:
        event = self._spec.event.name
        if event.constant is not None:
            return [event.constant]
        names = {value for table in self._spec.event_tables for value in table.when.get(event.path or "", ())}
        return sorted(value for value in names if type(value) is str and value)

    def _plan(self, name: str, tables: tuple[str, ...] | None = None) -> bool:
        """Compiles the plan of an event name. Returns whether that succeeded."""
        try:
            tables = tables or self._router.tables({} if self._name_field is None else {self._name_field: name}, name)
            unread = tuple(self._unread_fields.get(name, ()))
            self._by_name[name] = EventPlan.compile(
                self._spec, name, tables, self._by_table, unread, redaction=self._redaction
            )
        except (NotColumnarError, ConversionError) as refusal:
            self._give_up(name, str(refusal))
            return False
        return True

    def _give_up(self, name: str, reason: str) -> None:
        self.row_parser_reasons[name] = reason
        self._by_name.pop(name, None)

    def _compile(self) -> None:
        # Classes of replaced plans stay in the mapping, because events of the current chunk may have them.
        self.plans.update((plan.layout.struct_type, plan) for plan in self._by_name.values())
        kinds = [plan.layout.struct_type for plan in self._by_name.values()]
        self._decode = create_decoder(kinds, tag_field=self._name_field).decode if kinds else _reject_all


def _reject_all(_: Any) -> Any:
    raise TypeError("no event type has a plan")


def _is_deep(text: bytes | str) -> bool:
    brackets = (text.count("[") + text.count("{")) if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    return brackets > _DEEP_BRACKETS


#: Size of payloads below which the row parser is faster, because columnar conversion has a fixed cost per event type.
COLUMNAR_FROM_BYTES = 512 << 10
#: Formats whose error messages contain no input.
_FORMATS_WITHOUT_QUOTES = frozenset({"json", "tsv", "text"})


class Parser:
    """Parses payloads to Arrow tables by table name, including quarantine. Not thread-safe.

    Attributes:
        findings: counts, new fields and errors of the task, complete once `parse` has ended.
        redaction: redacts personal data.
        columnar_count: number of events that were decoded into structs and converted by columns.
        row_parser_reasons: why events need the row parser, by event name.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        *,
        evolved: EvolvedColumns | None = None,
        databases: PinnedDatabases | None = None,
        redaction_keys: RedactionKeys | None = None,
        chunk_events: int = 20_000,
        columnar_from_bytes: int | None = COLUMNAR_FROM_BYTES,
        validate_rows: Callable[[Sequence[TableRows]], None] | None = None,
    ) -> None:
        """Creates a parser for a pipeline.

        Args:
            evolved: columns that schema evolution added to tables.
            databases: databases for look-ups, from `source_fields.pin_databases`.
            redaction_keys: keys for redaction, if the pipeline declares personal data.
            chunk_events: events per chunk.
            columnar_from_bytes: payload bytes from which on events are decoded into structs; None always uses the row
                parser. The rows are the same.
            validate_rows: called with a chunk's rows before they are yielded; if it raises, the failing events are
                rejected.
        """
        self.findings = TaskFindings()
        self._reader = EventReader(spec, record_over_budget=self.findings.record_over_budget)
        self._router = Router(spec)
        self.redaction = create_redaction(spec, redaction_keys, self._reader, self.findings)
        self._framer = create_framer(spec.source, record_over_budget=self.findings.record_over_budget)
        self._source_is_records = isinstance(spec.source, RecordSourceSpec)
        self._partition_columns = partition_columns_of(spec.source)
        self._converter = ChunkConverter(
            spec,
            self._router,
            evolved=evolved,
            lossless_event=lambda raw: self.redaction.redact_reread(self._reader.lossless_event(raw)),
            redacted_event=self._redacted_event,
            record_over_budget=self.findings.record_over_budget,
        )
        self._format = spec.source.format
        self._max_event_bytes = spec.source.max_event_bytes
        self._retain_raw_bytes = spec.quarantine.retain_raw_bytes
        self._chunk_events = chunk_events
        self._validate_rows = validate_rows
        # After worker crashes, rows are validated event by event, which only the row parser supports.
        decodes = columnar_from_bytes is not None and validate_rows is None
        columns, columnar_redaction = self._converter.columns, self.redaction.columnar
        self._decoder = EventDecoder(spec, self._router, columns, columnar_redaction) if decodes else None
        self._plans: Mapping[type, EventPlan] = {} if self._decoder is None else self._decoder.plans
        self.row_parser_reasons: Mapping[str, str] = {} if self._decoder is None else self._decoder.row_parser_reasons
        self.columnar_count = 0
        self._row_parser_bytes = columnar_from_bytes or 0
        self._decoding_framer = self._framer
        if self._decoder is not None:
            self._decoding_framer = create_framer(
                spec.source, record_over_budget=self.findings.record_over_budget, decoder=self._decoder
            )
        self._lookups_and_masks = create_lookups_and_masks(spec, databases)
        self._withholds_raw = bool(spec.private)
        self._quotes_values = not (spec.private or spec.privacy) or spec.source.format in _FORMATS_WITHOUT_QUOTES

    def parse(self, payloads: Iterable[Payload], stamp: BatchMetadata) -> Iterator[TableRows]:
        """Parses payloads. Yields (table name, rows) any number of times per table, in chunks of bounded size.

        Raises:
            ContractError: RULE_FAILED or FIELD_UNDECLARED, if a table declares to fail; RULE_UNUSABLE.
        """
        self.redaction.start(stamp.arrived_at_us or stamp.ingested_at_us)
        chunk = ColumnarChunk()
        for payload in payloads:
            if payload is END_OF_CHUNK:
                yield from self._finish_chunk(chunk, stamp)
                chunk = ColumnarChunk()
                continue
            if payload.problem is not None or (payload.data is None and payload.events is None):
                problem = payload.problem or Reason(ReasonCode.OBJECT_UNREADABLE, "", "no data")
                chunk.rejected.append(self._rejected_payload(payload, problem, events=payload.lost_events))
                self.findings.refusal = self.findings.refusal or payload.refusal
                continue
            self.findings.any_read = True
            try:
                for position, event in self._frame_payload(payload, self._select_framer(payload)):
                    if type(event[0]) is EventRun:
                        self._add_run(chunk, payload, position, event[0])
                    else:
                        self._add_event(chunk, payload, position, event)
                    if chunk.is_full(self._chunk_events):
                        yield from self._finish_chunk(chunk, stamp)
                        chunk = ColumnarChunk()
            except ConversionError as error:  # raised before the first event: the payload is unreadable
                events = error.events if isinstance(error, BudgetExceededError) else 1
                estimated = estimate_events(payload.data or b"", self._format)
                rejected = self._rejected_payload(payload, self._reason(error), events=max(events, estimated))
                chunk.rejected.append(rejected)
        yield from self._finish_chunk(chunk, stamp)
        self.redaction.seal_identities()

    @property
    def row_parser_reason(self) -> str | None:
        """Why all events are read by the row parser; None if some are decoded."""
        return "it is requested" if self._decoder is None else self._decoder.row_parser_reason

    def frame(self, payload: Payload) -> Iterable[PositionedEvent]:
        """Yields the events of a payload. An unreadable rest is one `Malformed` event.

        Raises:
            ConversionError: nothing can be read; raised by the first `next`.
        """
        return self._frame_payload(payload, self._framer)

    def _frame_payload(self, payload: Payload, frame: Framer) -> Iterable[PositionedEvent]:
        if payload.events is not None:
            return payload.events
        data = payload.data or b""
        return number_events(
            lambda: self._reader.unwrap_arrays(frame(data)), rest=data if self._source_is_records else b""
        )

    def _select_framer(self, payload: Payload) -> Framer:
        """Returns the framer of a payload; once there are enough bytes, the one that decodes into structs."""
        self._row_parser_bytes -= len(payload.data or b"")
        return self._framer if self._row_parser_bytes > 0 or self.row_parser_reason else self._decoding_framer

    def _add_event(self, chunk: Chunk, payload: Payload, position: int, framed: tuple[Any, bytes]) -> None:
        name = None
        value, raw = framed
        chunk.raw_bytes += len(raw)
        try:
            # The rest beyond a budget is not an event, so the limit of an event's length does not apply.
            if len(raw) > self._max_event_bytes and not isinstance(value, OverBudget):
                raise ConversionError(ReasonCode.TOO_LARGE, f"{len(raw)} bytes, more than {self._max_event_bytes}")
            if ERASED_BYTES in raw and self._reader.is_erased(value):
                self.findings.privacy["erased"] += 1
                return
            event = self._reader.read_event(value)
            if self._partition_columns:
                event[PARTITION_FIELD] = partition_fields(payload.key, self._partition_columns)
            if payload.record is not None:
                event[RECORD_FIELD] = payload.record
            if not self.redaction.redact_event(event, payload.arrived_at_us, raw):
                return
            name = self._reader.event_name(event)
            tables = self._router.tables(event, name)
        except Exception as error:
            reason = (
                self._reason(error)
                if isinstance(error, ConversionError)
                else unexpected_error_reason("reading", type(error).__name__)
            )
            events = value.events if isinstance(value, Malformed | OverBudget) else 1
            chunk.rejected.append(rejected_event_of(payload, position, raw, name, (reason,), events=events))
            return
        if self._lookups_and_masks is not None:
            self._lookups_and_masks.apply(event, self.findings)
        if self._decoder is not None and self._row_parser_bytes <= 0 and self._decoder.row_parser_reason is None:
            self._decoder.learn(event, name, tables)
        index = chunk.append(event, name, payload, position, raw)
        chunk.rows_by_table_set.setdefault(tables, []).append(index)

    def _add_run(self, chunk: ColumnarChunk, payload: Payload, position: int, run: EventRun) -> None:
        row, plans, by_kind = len(chunk.events), self._plans, chunk.decoded
        chunk.append_run(EMPTY_EVENT, payload, position, run)
        scan_candidates = set[int]() if self._decoder is None else self._decoder.scan_candidates
        if payload.record is not None and self.redaction.may_contain(payload.record):
            scan_candidates.update(map(id, run.events))
        for event in run.events:
            kind = type(event)
            decoded = by_kind.get(kind)
            if decoded is None:
                decoded = by_kind[kind] = DecodedEvents(plans[kind], chunk, self.redaction.arrival_ms)
            chunk.event_names.append(decoded.plan.name)
            if scan_candidates and id(event) in scan_candidates:
                chunk.scan_candidates[row] = payload.record
            decoded.append(event, row)
            row += 1
        scan_candidates.clear()

    def _reason(self, error: ConversionError) -> Reason:
        """Returns the quarantine reason of an error. If the message may quote private values, only the kind of error is
        given.
        """
        shows_detail = self._quotes_values or error.code in (ReasonCode.TOO_LARGE, ReasonCode.OVER_BUDGET)
        return Reason(error.code, error.path, error.detail if shows_detail else "(withheld: fields are private)")

    def _finish_chunk(self, chunk: Chunk, stamp: BatchMetadata) -> Iterator[TableRows]:
        parts, errors = self._convert_chunk(chunk, stamp)
        yield from parts
        rejected = self.redaction.redact_rejected(chunk.rejected + errors)
        unframed = sum(row.events for row in chunk.rejected)
        self.findings.record_events(len(chunk.events) - chunk.dropped_count + unframed, rejected)
        if rejected:
            yield "quarantine", self._quarantine_rows(rejected, stamp)

    def _convert_chunk(self, chunk: Chunk, stamp: BatchMetadata) -> tuple[list[TableRows], list[RejectedEvent]]:
        """Converts a chunk. Returns the rows by table and the rejected events.

        Findings are recorded once, even if parts of the chunk are converted again after an error.
        """
        findings, counts_before = TaskFindings(), self.redaction.snapshot_counts()
        try:
            converted = self._convert(chunk, stamp)
            parts, reasons = self._converter.accept_rows(chunk, converted, findings)
            if self._validate_rows is not None:
                self._validate_rows(parts)
        except DeltaworksError:
            raise
        except Exception as error:
            failure = type(error).__name__
        else:
            self.findings.merge(findings)
            self.findings.privacy.update(converted.redaction_counts)
            for row in converted.opted_out_rows:
                self.redaction.record_dropped(parse_value(chunk.raw_values[row])[0])
            self.columnar_count += converted.columnar_count
            errors = [chunk.rejected_event(row, row_reasons) for row, row_reasons in sorted(reasons.items())]
            return parts, converted.rejected + errors
        # Outside of the handler, because the exception references the chunk's data there.
        if isinstance(chunk, ColumnarChunk) and chunk.decoded:
            self.redaction.restore_counts(counts_before)
            row_chunk, _ = self._to_row_chunk(chunk, np.arange(len(chunk.events)))
            chunk.dropped_count = len(chunk.events) - len(row_chunk.events) - len(row_chunk.rejected)
            parts, errors = self._convert_chunk(row_chunk, stamp)
            return parts, row_chunk.rejected + errors
        if len(chunk.events) <= 1:
            misfit = [unexpected_error_reason("converting", failure)]
            return [], [chunk.rejected_event(row, misfit) for row in range(len(chunk.events))]
        first, second = (self._convert_chunk(half, stamp) for half in chunk.split())
        return first[0] + second[0], first[1] + second[1]

    def _convert(self, chunk: Chunk, stamp: BatchMetadata) -> ConvertedChunk:
        if isinstance(chunk, ColumnarChunk) and chunk.decoded:
            return convert_by_columns(self._converter, chunk, stamp, self._to_row_chunk)
        return self._converter.convert_by_rows(chunk, stamp)

    def _to_row_chunk(self, chunk: Chunk, rows: RowIndexes) -> tuple[Chunk, RowIndexes]:
        """Returns a new chunk with these events as Python objects, and their indexes. Decoded events are parsed again.

        Unreadable events are in the new chunk's `rejected`.
        """
        tables_by_row = {row: tables for tables, indexes in chunk.rows_by_table_set.items() for row in indexes}
        row_chunk, read_rows = Chunk(), list[int]()
        for row in rows.tolist():
            payload, position, raw = chunk.payloads[chunk.seqs[row]], chunk.positions[row], chunk.raw_values[row]
            if row in tables_by_row:
                index = row_chunk.append(chunk.events[row], chunk.event_names[row], payload, position, raw)
                row_chunk.rows_by_table_set.setdefault(tables_by_row[row], []).append(index)
            else:
                self._add_event(row_chunk, payload, position, parse_value(raw))
            if len(row_chunk.events) > len(read_rows):
                read_rows.append(row)
        return row_chunk, np.array(read_rows, np.int64)

    def _redacted_event(self, raw: bytes) -> Any:
        exact = self.redaction.redact_reread(self._reader.lossless_event(raw))
        return exact if self._lookups_and_masks is None else self._lookups_and_masks.mask_reread(exact)

    def _rejected_payload(self, payload: Payload, reason: Reason, *, events: int = 1) -> RejectedEvent:
        # An object can be read again, but a record is lost once it has expired from its stream.
        raw = b""
        if self._source_is_records:
            raw = payload.data or b""
        else:
            self.findings.record_rejected_object(str(reason.code), payload.key)
        return rejected_event_of(payload, ENTIRE_OBJECT, raw, None, (reason,), events=events)

    def _quarantine_rows(self, rejected: list[RejectedEvent], stamp: BatchMetadata) -> pa.Table:
        return quarantine_rows(
            rejected,
            batch_id=stamp.batch_id,
            ingested_at_us=stamp.ingested_at_us,
            fingerprint=stamp.fingerprint,
            retain_raw_bytes=self._retain_raw_bytes,
            withhold_raw=self._withholds_raw,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserInputs:
    """Pinned databases for look-ups, and keys for redaction; either may be absent.

    All rows of a batch are parsed with the same database versions and the same suppression list.
    """

    databases: PinnedDatabases | None = None
    redaction_keys: RedactionKeys | None = None

    @classmethod
    def pin(cls, spec: PipelineSpec, lake: StorageSpec, *, seal_for_batch: str | None = None) -> ParserInputs:
        """Pins the current inputs for parsing a pipeline's events.

        Args:
            seal_for_batch: the batch whose identities are written to the vault; None if events are read again, whose
                identities are in the vault already.

        Raises:
            ConfigError, ContractError, TransientError: see `pin_databases` and `load_redaction_keys`.
        """
        # Imported here, because tasks do not need the key service.
        from deltaworks.events.redaction_keys import load_redaction_keys

        databases = pin_databases(spec, lake)
        return cls(databases=databases, redaction_keys=load_redaction_keys(spec, lake, seal_for_batch=seal_for_batch))

    def create_parser(
        self,
        spec: PipelineSpec,
        *,
        evolved: EvolvedColumns | None = None,
        validate_rows: Callable[[Sequence[TableRows]], None] | None = None,
    ) -> Parser:
        """Creates a parser with these inputs; the other arguments are those of `Parser`.

        Raises:
            ConfigError, TransientError: see `create_lookups_and_masks`.
        """
        return Parser(
            spec,
            evolved=evolved,
            databases=self.databases,
            redaction_keys=self.redaction_keys,
            validate_rows=validate_rows,
        )


#: For pipelines without look-ups and personal data.
NO_PARSER_INPUTS = ParserInputs()
