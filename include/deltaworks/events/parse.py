"""From payloads to rows: read each event, route it to its tables, convert its columns.

An event lands in every table whose condition matches, or in quarantine with its reasons; never in some tables and
in quarantine too. So the columns of all tables of a chunk are converted first, and an event that fits not every
one of its tables is then taken out of all of them.

Nothing in a payload ends a stream. What reading an event raises, expected or not, is its reason in quarantine; a chunk
whose conversion fails is halved until only the events that fail are left out. Only a `DeltaworksError`, which a
declaration asks for, passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltaworks.errors import DeltaworksError
from deltaworks.events.budget import OverBudget
from deltaworks.events.chunks import Chunk, fitting_rows
from deltaworks.events.envelope import Envelope
from deltaworks.events.events import EventReader, Router
from deltaworks.events.evolution import Evolved
from deltaworks.events.findings import Findings
from deltaworks.events.formats.registry import framer
from deltaworks.events.misfits import Misfit
from deltaworks.events.origins import PARTITION_FIELD, RECORD_FIELD, answer_fields, partition_fields, protection_of
from deltaworks.events.partitions import OpenPartitions
from deltaworks.events.reasons import WHOLE_OBJECT, Reason, ReasonCode, Rejected, quarantine_rows
from deltaworks.events.rules import RuleChecker, RuleEngine, rule_failed
from deltaworks.events.stripping import StripKeys, stripping_of
from deltaworks.events.table_columns import Reasons, TableColumns
from deltaworks.events.unexpected import Framed, numbered, unexpected
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.declared import partition_columns_of
from deltaworks.specs.sources.payload import TEXT_FORMATS, RecordSourceSpec

if TYPE_CHECKING:
    from deltaworks.events.enriching.databases import Databases

#: Formats whose reasons for what cannot be read quote nothing of it.
_QUOTES_NOTHING = frozenset({"json", "tsv", "text"})
#: Rows on their way to their table, by its name.
Part = tuple[str, pa.Table]


@dataclass(frozen=True, slots=True)
class Payload:
    """One object's or message's bytes: `seq` orders payloads, `data` is None where they could not be had.

    `events` are single events of it with their positions, values and bytes, where not all are to be read.
    `record` is what a record of a stream says of itself; its events have it below `_record`. `refusal` is why the
    payload may not be had, where it is not clear yet that others may. `arrived_at_us` is when its store or its stream
    took it, by their own record of it, so that it is the same whenever the payload is read; None where that is not on
    record.
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
    """

    def __init__(
        self,
        spec: PipelineSpec,
        *,
        evolved: Evolved | None = None,
        databases: Databases | None = None,
        strip_keys: StripKeys | None = None,
        chunk_events: int = 20_000,
        proof: Callable[[Sequence[Part]], None] | None = None,
    ) -> None:
        """Read as `spec` declares.

        Args:
            evolved: the columns that tables were given while they ran.
            databases: those that the pipeline looks addresses up in, as `origins.fixed_databases` gives them.
            strip_keys: by which personal data is stripped, where the pipeline declares any.
            chunk_events: events that are converted at once.
            proof: called with the rows of a chunk before they are given; what it raises is held against their events.
        """
        self.findings = Findings()
        self._reader = EventReader(spec, note_over_budget=self.findings.note_over_budget)
        self._envelope = Envelope(spec, self._reader.exact_event)
        self._router = Router(spec)
        self._frame = framer(spec.source, note_over_budget=self.findings.note_over_budget)
        self._partitions = OpenPartitions.of(spec, self.findings.note_over_budget)
        of_text = spec.source.format in TEXT_FORMATS
        self._of_records = isinstance(spec.source, RecordSourceSpec)
        self._partition_columns = partition_columns_of(spec.source)
        answers = answer_fields(spec)
        self._columns = {
            table.name: TableColumns(
                table, spec.event, (evolved or {}).get(table.name, ()), of_text=of_text, answers=answers
            )
            for table in spec.event_tables
        }
        engine = RuleEngine()
        self._rules = {table.name: RuleChecker(table, engine) for table in spec.tables if table.rules}
        self._max_event_bytes = spec.source.max_event_bytes
        self._retain = spec.quarantine.retain_raw_bytes
        self._chunk_events = chunk_events
        self._proof = proof
        self._protection = protection_of(spec, databases)
        self.stripping = stripping_of(spec, strip_keys, self._reader, self.findings)
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
                for position, event in self.framed(payload):
                    self._take(chunk, payload, position, event)
                    if chunk.is_full(self._chunk_events):
                        yield from self._finish(chunk, stamp)
                        chunk = Chunk()
            except Misfit as misfit:  # raised before the first event: nothing of this payload can be read
                chunk.rejected.append(self._whole(payload, self._reason(misfit)))
        yield from self._finish(chunk, stamp)
        self.stripping.seal()

    def framed(self, payload: Payload) -> Iterable[Framed]:
        """Each event of a payload; a `Malformed` one stands for a rest that cannot be read.

        Raises:
            Misfit: nothing of it can be read; raised by the first `next`.
        """
        if payload.events is not None:
            return payload.events
        data = payload.data or b""
        return numbered(lambda: self._reader.spread(self._frame(data)), rest=data if self._of_records else b"")

    def _take(self, chunk: Chunk, payload: Payload, position: int, framed: tuple[Any, bytes]) -> None:
        name = None
        value, raw = framed
        chunk.raw_bytes += len(raw)
        try:
            # What is left behind a budget is no event, however long it is: its reason is the budget.
            if len(raw) > self._max_event_bytes and not isinstance(value, OverBudget):
                raise Misfit(ReasonCode.TOO_LARGE, f"{len(raw)} bytes, more than {self._max_event_bytes}")
            event = self._reader.event(value)
            if self._partition_columns:
                event[PARTITION_FIELD] = partition_fields(payload.key, self._partition_columns)
            if payload.record is not None:
                event[RECORD_FIELD] = payload.record
            if not self.stripping.keeps(event, payload.arrived_at_us):
                return
            name = self._reader.name(event)
            tables = self._router.tables(event, name)
        except Exception as error:
            reason = self._reason(error) if isinstance(error, Misfit) else unexpected("reading", type(error).__name__)
            chunk.rejected.append(_rejected(payload, position, raw, name, (reason,)))
            return
        if self._protection is not None:
            self._protection.apply(event, self.findings)
        index = len(chunk.events)
        chunk.events.append(event)
        chunk.raws.append(raw)
        chunk.names.append(name)
        chunk.seqs.append(payload.seq)
        chunk.payloads[payload.seq] = payload
        chunk.positions.append(position)
        for table in tables:
            chunk.rows_by_table.setdefault(table, []).append(index)

    def _reason(self, misfit: Misfit) -> Reason:
        """Why something cannot be read. Where it may quote what was to be masked, it only says of what kind it is."""
        says = self._says_why or misfit.code in (ReasonCode.TOO_LARGE, ReasonCode.OVER_BUDGET)
        return Reason(misfit.code, misfit.path, misfit.detail if says else "(withheld: fields are private)")

    def _finish(self, chunk: Chunk, stamp: BatchStamp) -> Iterator[Part]:
        parts, misfits = self._landing(chunk, stamp)
        yield from parts
        rejected = self.stripping.kept(chunk.rejected + misfits)
        self.findings.note_events(len(chunk.events) + len(chunk.rejected), rejected)
        if rejected:
            yield "quarantine", self._quarantine(rejected, stamp)

    def _landing(self, chunk: Chunk, stamp: BatchStamp) -> tuple[list[Part], list[Rejected]]:
        """The rows of the chunk's tables, and its events that do not fit; nothing is noted twice, whatever raises."""
        findings = Findings()
        try:
            parts, reasons = self._converted(chunk, stamp, findings)
            if self._proof is not None:
                self._proof(parts)
        except DeltaworksError:
            raise
        except Exception as error:
            failure = type(error).__name__
        else:
            self.findings.add(findings)
            return parts, [self._misfit(chunk, row, of_row) for row, of_row in sorted(reasons.items())]
        # Here and not above, where the error still holds what it was raised over.
        if len(chunk.events) <= 1:
            misfit = [unexpected("converting", failure)]
            return [], [self._misfit(chunk, row, misfit) for row in range(len(chunk.events))]
        first, second = (self._landing(half, stamp) for half in chunk.halves())
        return first[0] + second[0], first[1] + second[1]

    def _converted(self, chunk: Chunk, stamp: BatchStamp, findings: Findings) -> tuple[list[Part], Reasons]:
        """The rows of each table that land, and the reasons of the events that do not."""
        envelope, reasons, unusable = self._envelope.columns(chunk, stamp)
        converted = {}
        for name, rows in chunk.rows_by_table.items():
            arrays, of_table = self._columns[name].convert([chunk.events[row] for row in rows])
            converted[name] = pa.Table.from_arrays(
                [*envelope.take(pa.array(rows)).columns, *arrays], schema=self._columns[name].schema
            )
            for index, of_row in of_table.items():
                noted = reasons.setdefault(rows[index], [])
                noted.extend(reason for reason in of_row if reason not in noted)
        if self._rules:
            self._hold_to_rules(chunk, converted, reasons, findings)
        self._hold_to_partitions(chunk, converted, reasons)
        findings.unusable_times += sum(row not in reasons for row in unusable)
        parts = []
        for name in list(converted):
            fitting, rows = fitting_rows(converted.pop(name), chunk.rows_by_table[name], reasons)
            if fitting.num_rows and self._columns[name].keeps_other_fields:
                events = [chunk.events[row] for row in rows]
                exact = partial(self._exact_event, [chunk.raws[row] for row in rows])
                fitting = self._columns[name].complete(fitting, events, findings, exact)
            if fitting.num_rows:
                parts.append((name, self._columns[name].untouched(fitting)))
        return parts, reasons

    def _hold_to_rules(
        self, chunk: Chunk, converted: dict[str, pa.Table], reasons: Reasons, findings: Findings
    ) -> None:
        """Note the reasons of events that fail a rule; rows that do not fit anyway are held to none."""
        misfits = frozenset(reasons)
        warned: list[tuple[str, list[int]]] = []
        for name, checker in self._rules.items():
            if name not in converted:
                continue
            table, rows = fitting_rows(converted[name], chunk.rows_by_table[name], misfits)
            if not rows:
                continue
            for rule, places in checker.failing(table):
                failing = [rows[place] for place in places]
                if rule.on_fail == "warn":
                    warned.append((f"{name}.{rule.name}", failing))
                    continue
                if rule.on_fail == "fail":
                    raise rule_failed(name, rule, seq=chunk.seqs[failing[0]], position=chunk.positions[failing[0]])
                reason = Reason(ReasonCode.RULE, rule.name, f"{name}: not {rule.check}")
                for row in failing:
                    reasons.setdefault(row, []).append(reason)
        for rule_name, failing in warned:
            landing = sum(row not in reasons for row in failing)
            if landing:
                findings.rule_warnings[rule_name] += landing

    def _hold_to_partitions(self, chunk: Chunk, converted: dict[str, pa.Table], reasons: Reasons) -> None:
        """Note the reasons of events that would go to one partition too many of a table."""
        for name, table in converted.items():
            fitting, rows = fitting_rows(table, chunk.rows_by_table[name], reasons)
            for place, reason in self._partitions.beyond(name, fitting):
                reasons.setdefault(rows[place], []).append(reason)

    def _exact_event(self, raws: Sequence[bytes], index: int) -> Any:
        exact = self.stripping.masked(self._reader.exact_event(raws[index]))
        return exact if self._protection is None else self._protection.masked(exact)

    def _whole(self, payload: Payload, reason: Reason) -> Rejected:
        # An object can be read again. A record is gone once its stream has let go of it.
        if self._of_records:
            return _rejected(payload, WHOLE_OBJECT, payload.data or b"", None, (reason,))
        self.findings.note_object(str(reason.code), payload.key)
        return _rejected(payload, WHOLE_OBJECT, b"", None, (reason,))

    @staticmethod
    def _misfit(chunk: Chunk, index: int, reasons: list[Reason]) -> Rejected:
        payload = chunk.payloads[chunk.seqs[index]]
        return _rejected(payload, chunk.positions[index], chunk.raws[index], chunk.names[index], tuple(reasons))

    def _quarantine(self, rejected: list[Rejected], stamp: BatchStamp) -> pa.Table:
        return quarantine_rows(
            rejected,
            batch_id=stamp.batch_id,
            ingested_at_us=stamp.ingested_at_us,
            fingerprint=stamp.fingerprint,
            retain_raw_bytes=self._retain,
            withhold_raw=self._withhold,
        )


def _rejected(
    payload: Payload, position: int, raw: bytes, event_name: str | None, reasons: tuple[Reason, ...]
) -> Rejected:
    return Rejected(
        payload.seq,
        position,
        payload.key,
        raw,
        event_name,
        reasons,
        record=payload.record,
        arrived_at_us=payload.arrived_at_us,
    )
