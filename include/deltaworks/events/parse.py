"""From payloads to rows: read each event, route it to its tables, convert its columns.

An event lands in every table whose condition matches, or in quarantine with its reasons; never in some tables and
in quarantine too. So the columns of all tables of a chunk are converted first (`conversion`), and an event that fits
not every one of its tables is then taken out of all of them.

Nothing in a payload ends a stream. What reading an event raises, expected or not, is its reason in quarantine; a chunk
whose conversion fails is halved until only the events that fail are left out. Only a `DeltaworksError`, which a
declaration asks for, passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from deltaworks.errors import DeltaworksError
from deltaworks.events.budget import OverBudget, Run
from deltaworks.events.chunks import Chunk, rejected
from deltaworks.events.conversion import Conversion, Converted, Part, Rows
from deltaworks.events.decoded import NO_FIELDS, DecodedEvents, by_columns
from deltaworks.events.decoding import EventDecoder
from deltaworks.events.erased import ERASED_BYTES
from deltaworks.events.events import EventReader, Router
from deltaworks.events.evolution import Evolved
from deltaworks.events.findings import Findings
from deltaworks.events.formats.json_recovery import value_of
from deltaworks.events.formats.registry import Framer, framer
from deltaworks.events.misfits import Misfit
from deltaworks.events.origins import PARTITION_FIELD, RECORD_FIELD, partition_fields, protection_of
from deltaworks.events.plans import EventPlan
from deltaworks.events.reasons import WHOLE_OBJECT, Reason, ReasonCode, Rejected, quarantine_rows
from deltaworks.events.stripping import StripKeys, stripping_of
from deltaworks.events.unexpected import Framed, numbered, unexpected
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.declared import partition_columns_of
from deltaworks.specs.sources.payload import RecordSourceSpec

if TYPE_CHECKING:
    from deltaworks.events.enriching.databases import Databases

#: Payloads of so many bytes together cost less by rows: columns of a type of event cost as much however few they are.
COLUMNAR_FROM_BYTES = 512 << 10
#: Formats whose reasons for what cannot be read quote nothing of it.
_QUOTES_NOTHING = frozenset({"json", "tsv", "text"})


@dataclass(frozen=True, slots=True)
class Payload:
    """One object's or message's bytes: `seq` orders payloads, `data` is None where they could not be had.

    `events` are single events of it with their positions, values and bytes, where not all are to be read.
    `record` is what a record of a stream says of itself; its events have it below `_record`. `refusal` is why the
    payload may not be had, where it is not clear yet that others may. `arrived_at_us` is when its store or its stream
    took it, by their own record, so that it is the same whenever it is read; None where that is not on record.
    """

    seq: int
    key: str
    data: bytes | None
    problem: Reason | None = None
    events: tuple[Framed, ...] | None = None
    record: Mapping[str, Any] | None = None
    refusal: DeltaworksError | None = None
    arrived_at_us: int | None = None


#: No payload: where it comes, everything before it is converted and given before what follows is looked at.
END_OF_CHUNK = Payload(-1, "", None)


@dataclass(frozen=True, slots=True)
class BatchStamp:
    """What every row of a batch is stamped with.

    `arrived_at_us` is what the age of events is judged by, where that is not `ingested_at_us`: for rows read again.
    """

    batch_id: int
    ingested_at_us: int
    fingerprint: str
    arrived_at_us: int | None = None


class Parser:
    """Turns payloads into Arrow tables by table name, quarantine among them. Used by one thread.

    `findings` is what was noted beside rows, complete once `parse` has ended; `stripping` what strips personal data.
    `by_columns` counts events with rows that were not read by rows; `row_path_reasons` says why those of a name are.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        *,
        evolved: Evolved | None = None,
        databases: Databases | None = None,
        strip_keys: StripKeys | None = None,
        chunk_events: int = 20_000,
        columnar_from_bytes: int | None = COLUMNAR_FROM_BYTES,
        proof: Callable[[Sequence[Part]], None] | None = None,
    ) -> None:
        """Read as `spec` declares.

        Args:
            evolved: the columns that tables were given while they ran.
            databases: those that the pipeline looks addresses up in, as `origins.fixed_databases` gives them.
            strip_keys: by which personal data is stripped, where the pipeline declares any.
            chunk_events: events that are converted at once.
            columnar_from_bytes: from how many bytes of payloads on events are decoded into slots where they can be;
                None reads all of them by rows. What they come to is the same.
            proof: called with the rows of a chunk before they are given; what it raises is held against their events.
        """
        self.findings = Findings()
        self._reader = EventReader(spec, note_over_budget=self.findings.note_over_budget)
        self._router = Router(spec)
        self.stripping = stripping_of(spec, strip_keys, self._reader, self.findings)
        self._frame = framer(spec.source, note_over_budget=self.findings.note_over_budget)
        self._of_records = isinstance(spec.source, RecordSourceSpec)
        self._partition_columns = partition_columns_of(spec.source)
        self._conversion = Conversion(
            spec,
            self._router,
            evolved=evolved,
            exact_event=lambda raw: self.stripping.masked(self._reader.exact_event(raw)),
            masked_event=self._masked_event,
            note_over_budget=self.findings.note_over_budget,
        )
        self._max_event_bytes = spec.source.max_event_bytes
        self._retain = spec.quarantine.retain_raw_bytes
        self._chunk_events = chunk_events
        self._proof = proof
        # A proof is asked for after deaths, and has to tell events apart.
        decodes = columnar_from_bytes is not None and proof is None
        columns, slots = self._conversion.columns, self.stripping.slots
        self._decoder = EventDecoder(spec, self._router, columns, slots) if decodes else None
        self._plans: Mapping[type, EventPlan] = {} if self._decoder is None else self._decoder.plans
        self.row_path_reasons: Mapping[str, str] = {} if self._decoder is None else self._decoder.reasons
        self.by_columns = 0
        self._row_bytes = columnar_from_bytes or 0
        self._frame_decoded = self._frame
        if self._decoder is not None:
            self._frame_decoded = framer(
                spec.source, note_over_budget=self.findings.note_over_budget, decoder=self._decoder
            )
        self._protection = protection_of(spec, databases)
        self._withhold = bool(spec.private)
        self._says_why = not (spec.private or spec.privacy) or spec.source.format in _QUOTES_NOTHING

    def parse(self, payloads: Iterable[Payload], stamp: BatchStamp) -> Iterator[Part]:
        """Read payloads; yields `(table name, rows)` many times over, in chunks of bounded size.

        Raises:
            ContractError: RULE_FAILED, FIELD_UNDECLARED where that is declared; RULE_UNUSABLE.
        """
        self.stripping.begin(stamp.arrived_at_us or stamp.ingested_at_us)
        chunk = Chunk()
        for payload in payloads:
            if payload is END_OF_CHUNK:
                yield from self._finish(chunk, stamp)
                chunk = Chunk()
                continue
            if payload.problem is not None or (payload.data is None and payload.events is None):
                problem = payload.problem or Reason(ReasonCode.OBJECT_UNREADABLE, "", "no data")
                chunk.rejected.append(self._whole(payload, problem))
                self.findings.refusal = self.findings.refusal or payload.refusal
                continue
            self.findings.some_read = True
            try:
                for position, event in self._framed(payload, self._frame_by_size(payload)):
                    if type(event[0]) is Run:
                        self._take_run(chunk, payload, position, event[0])
                    else:
                        self._take(chunk, payload, position, event)
                    if chunk.is_full(self._chunk_events):
                        yield from self._finish(chunk, stamp)
                        chunk = Chunk()
            except Misfit as misfit:  # raised before the first event: nothing of this payload can be read
                chunk.rejected.append(self._whole(payload, self._reason(misfit)))
        yield from self._finish(chunk, stamp)
        self.stripping.seal()

    @property
    def row_path_reason(self) -> str | None:
        """Why all events are read by rows; None where some are decoded."""
        return "it is asked for" if self._decoder is None else self._decoder.reason

    def framed(self, payload: Payload) -> Iterable[Framed]:
        """Each event of a payload; a `Malformed` one stands for a rest that cannot be read.

        Raises:
            Misfit: nothing of it can be read; raised by the first `next`.
        """
        return self._framed(payload, self._frame)

    def _framed(self, payload: Payload, frame: Framer) -> Iterable[Framed]:
        if payload.events is not None:
            return payload.events
        data = payload.data or b""
        return numbered(lambda: self._reader.spread(frame(data)), rest=data if self._of_records else b"")

    def _frame_by_size(self, payload: Payload) -> Framer:
        """What splits a payload: it decodes its events too once there are enough of them."""
        self._row_bytes -= len(payload.data or b"")
        return self._frame if self._row_bytes > 0 or self.row_path_reason else self._frame_decoded

    def _take(self, chunk: Chunk, payload: Payload, position: int, framed: tuple[Any, bytes]) -> None:
        name = None
        value, raw = framed
        chunk.raw_bytes += len(raw)
        try:
            # What is left behind a budget is no event, however long it is: its reason is the budget.
            if len(raw) > self._max_event_bytes and not isinstance(value, OverBudget):
                raise Misfit(ReasonCode.TOO_LARGE, f"{len(raw)} bytes, more than {self._max_event_bytes}")
            if ERASED_BYTES in raw and self._reader.is_erased(value):
                self.findings.privacy["erased"] += 1
                return
            event = self._reader.event(value)
            if self._partition_columns:
                event[PARTITION_FIELD] = partition_fields(payload.key, self._partition_columns)
            if payload.record is not None:
                event[RECORD_FIELD] = payload.record
            if not self.stripping.keeps(event, payload.arrived_at_us, raw):
                return
            name = self._reader.name(event)
            tables = self._router.tables(event, name)
        except Exception as error:
            reason = self._reason(error) if isinstance(error, Misfit) else unexpected("reading", type(error).__name__)
            chunk.rejected.append(rejected(payload, position, raw, name, (reason,)))
            return
        if self._protection is not None:
            self._protection.apply(event, self.findings)
        if self._decoder is not None and self._row_bytes <= 0 and self._decoder.reason is None:
            self._decoder.learn(event, name, tables)
        index = chunk.take(event, name, payload, position, raw)
        chunk.rows_by_tables.setdefault(tables, []).append(index)

    def _take_run(self, chunk: Chunk, payload: Payload, position: int, run: Run) -> None:
        row, plans, by_kind = len(chunk.events), self._plans, chunk.decoded
        chunk.take_run(NO_FIELDS, payload, position, run)
        suspects = set[int]() if self._decoder is None else self._decoder.suspects
        if payload.record is not None and self.stripping.may_find_in(payload.record):
            suspects.update(map(id, run.events))
        for event in run.events:
            kind = type(event)
            decoded = by_kind.get(kind)
            if decoded is None:
                decoded = by_kind[kind] = DecodedEvents(plans[kind], chunk, self.stripping.at_ms)
            chunk.names.append(decoded.plan.name)
            if suspects and id(event) in suspects:
                chunk.suspects[row] = payload.record
            decoded.take(event, row)
            row += 1
        suspects.clear()

    def _reason(self, misfit: Misfit) -> Reason:
        """Why something cannot be read. Where it may quote what was to be masked, it only says of what kind it is."""
        says = self._says_why or misfit.code in (ReasonCode.TOO_LARGE, ReasonCode.OVER_BUDGET)
        return Reason(misfit.code, misfit.path, misfit.detail if says else "(withheld: fields are private)")

    def _finish(self, chunk: Chunk, stamp: BatchStamp) -> Iterator[Part]:
        parts, misfits = self._landing(chunk, stamp)
        yield from parts
        rejected = self.stripping.kept(chunk.rejected + misfits)
        self.findings.note_events(len(chunk.events) - chunk.dropped + len(chunk.rejected), rejected)
        if rejected:
            yield "quarantine", self._quarantine(rejected, stamp)

    def _landing(self, chunk: Chunk, stamp: BatchStamp) -> tuple[list[Part], list[Rejected]]:
        """The rows of the chunk's tables, and its events that do not fit; nothing is noted twice, whatever raises."""
        findings, before = Findings(), self.stripping.counted()
        try:
            converted = self._converted(chunk, stamp)
            parts, reasons = self._conversion.landing(chunk, converted, findings)
            if self._proof is not None:
                self._proof(parts)
        except DeltaworksError:
            raise
        except Exception as error:
            failure = type(error).__name__
        else:
            self.findings.add(findings)
            self.findings.privacy.update(converted.stripped)
            for row in converted.refused:
                self.stripping.note_dropped(value_of(chunk.raws[row])[0])
            self.by_columns += converted.by_columns
            misfits = [chunk.misfit(row, of_row) for row, of_row in sorted(reasons.items())]
            return parts, converted.rejected + misfits
        # Here and not above, where the error still holds what it was raised over.
        if chunk.decoded:
            self.stripping.count_again(before)
            by_rows, _ = self._by_rows(chunk, np.arange(len(chunk.events)))
            chunk.dropped = len(chunk.events) - len(by_rows.events) - len(by_rows.rejected)
            parts, misfits = self._landing(by_rows, stamp)
            return parts, by_rows.rejected + misfits
        if len(chunk.events) <= 1:
            misfit = [unexpected("converting", failure)]
            return [], [chunk.misfit(row, misfit) for row in range(len(chunk.events))]
        first, second = (self._landing(half, stamp) for half in chunk.halves())
        return first[0] + second[0], first[1] + second[1]

    def _converted(self, chunk: Chunk, stamp: BatchStamp) -> Converted:
        if not chunk.decoded:
            return self._conversion.by_rows(chunk, stamp)
        return by_columns(self._conversion, chunk, stamp, self._by_rows)

    def _by_rows(self, chunk: Chunk, rows: Rows) -> tuple[Chunk, Rows]:
        """These events of a chunk by themselves, those that were decoded read anew by their bytes, and which they are.

        What cannot be read so is among what the new chunk rejects.
        """
        tables_of = {row: tables for tables, some in chunk.rows_by_tables.items() for row in some}
        alone, taken = Chunk(), list[int]()
        for row in rows.tolist():
            payload, position, raw = chunk.payloads[chunk.seqs[row]], chunk.positions[row], chunk.raws[row]
            if row in tables_of:
                index = alone.take(chunk.events[row], chunk.names[row], payload, position, raw)
                alone.rows_by_tables.setdefault(tables_of[row], []).append(index)
            else:
                self._take(alone, payload, position, value_of(raw))
            if len(alone.events) > len(taken):
                taken.append(row)
        return alone, np.array(taken, np.int64)

    def _masked_event(self, raw: bytes) -> Any:
        exact = self.stripping.masked(self._reader.exact_event(raw))
        return exact if self._protection is None else self._protection.masked(exact)

    def _whole(self, payload: Payload, reason: Reason) -> Rejected:
        # An object can be read again. A record is gone once its stream has let go of it.
        if self._of_records:
            return rejected(payload, WHOLE_OBJECT, payload.data or b"", None, (reason,))
        self.findings.note_object(str(reason.code), payload.key)
        return rejected(payload, WHOLE_OBJECT, b"", None, (reason,))

    def _quarantine(self, rejected: list[Rejected], stamp: BatchStamp) -> pa.Table:
        return quarantine_rows(
            rejected,
            batch_id=stamp.batch_id,
            ingested_at_us=stamp.ingested_at_us,
            fingerprint=stamp.fingerprint,
            retain_raw_bytes=self._retain,
            withhold_raw=self._withhold,
        )
