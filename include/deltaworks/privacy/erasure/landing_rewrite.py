"""Rewrites landed objects without the events of erased people; all other events keep their bytes and positions.

Objects are split into pieces by the readers' own framers. An erased event becomes a tombstone, which readers skip, so
later events keep their positions. The new content is parsed again: if another event changed, or an event to erase
remains, nothing is written.
"""

from __future__ import annotations

import bz2
import copy
import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from deltaworks.events.budget import OverBudget
from deltaworks.events.collector_sequence_numbers import CollectorSequenceNumbers
from deltaworks.events.decompression import ContentTooLarge, DamagedContent, decompress, detect_compression
from deltaworks.events.erasure_tombstones import ERASED_FIELD, tombstone, tombstone_line
from deltaworks.events.events import EventReader, value_at
from deltaworks.events.formats.json_recovery import Malformed
from deltaworks.events.formats.registry import create_framer
from deltaworks.events.lossless_numbers import dump_lossless, parse_lossless
from deltaworks.events.reasons import ConversionError
from deltaworks.privacy.erasure.token_search import TokenSearch, combine_searches, has_token_form
from deltaworks.privacy.tokens.redactor import Redactor
from deltaworks.specs.base import path_names
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.tables.files import open_parquet, without_views

#: Request id by index of the event to erase within one piece of a payload.
Owners = dict[int, str]


class EventOwners:
    """Assigns events to erasure requests. Not thread-safe.

    Args:
        specs: pipelines that read the object, all with the same event boundaries.
        key: token key of the namespace.
        searches: token search by request id.
    """

    def __init__(self, specs: Sequence[PipelineSpec], key: bytes, searches: Mapping[str, TokenSearch]) -> None:
        self._readers = [(EventReader(spec), Redactor(spec.privacy, key)) for spec in specs if spec.privacy is not None]
        self._searches = searches
        self._combined_search = combine_searches(searches.values())
        #: Searched tokens that do not have the usual form, such as ids created by mutations.
        self._untyped_ids = {token for token in self._combined_search.tokens if not has_token_form(token)}

    def owners_in_piece(self, value: Any, raw: bytes, *, at_ms: int) -> tuple[int, Owners]:
        """Returns the number of events in a piece, and the events to erase.

        Args:
            at_ms: time when the object landed; tokens of children depend on the day.
        """
        if isinstance(value, Malformed | OverBudget):
            request = self._first_request(self._combined_search.tokens_in_bytes(raw))
            return 1, {} if request is None else {0: request}
        events, owners = 0, Owners()
        for reader, redactor in self._readers:
            event_value = value if len(self._readers) == 1 else copy.deepcopy(value)
            events = 0
            for index, (inner, inner_raw) in enumerate(reader.unwrap_arrays([(event_value, raw)])):
                events = index + 1
                if index not in owners:
                    request = self._owner_of_event(reader, redactor, inner, inner_raw, at_ms)
                    owners.update({} if request is None else {index: request})
        if events > 1 and not owners:
            # The wrapper of events may contain a token that none of its events contains.
            request = self._first_request(self._combined_search.tokens_in_bytes(raw))
            owners = {} if request is None else dict.fromkeys(range(events), request)
        return events, owners

    def _owner_of_event(
        self, reader: EventReader, redactor: Redactor, value: Any, raw: bytes, at_ms: int
    ) -> str | None:
        present = self._combined_search.tokens_in_bytes(raw)
        if not present and not reader.is_erased(value):
            try:
                event = redactor.redact_reread(reader.read_event(value), at_ms=at_ms)
            except ConversionError:
                return None
            present = self._combined_search.tokens_in_bytes(_encode_event(event))
            if not present and self._untyped_ids:
                present = self._untyped_ids.intersection(_texts(event))
        return self._first_request(present)

    def _first_request(self, tokens: set[str]) -> str | None:
        if not tokens:
            return None
        return next(request for request, search in sorted(self._searches.items()) if tokens & search.tokens)


def _encode_event(event: Any) -> bytes:
    try:
        return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError):
        return json.dumps(event, default=str).encode("utf-8", "replace")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield str(name)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def erase_parquet_rows(content: bytes, request_by_row: Mapping[int, str]) -> bytes:
    """Returns the object with these rows replaced by tombstones. Row groups, compression and other rows stay the same.

    Args:
        request_by_row: request id by row number.
    """
    file = open_parquet(pa.BufferReader(content))
    # Erased rows are null, so all columns must be nullable.
    fields = without_views(file.schema_arrow.empty_table()).schema
    schema = pa.schema([field.with_nullable(True) for field in fields], fields.metadata)
    if ERASED_FIELD not in schema.names:
        schema = schema.append(pa.field(ERASED_FIELD, pa.string()))
    metadata = file.metadata
    codec = metadata.row_group(0).column(0).compression if metadata.num_row_groups else "NONE"
    sink = pa.BufferOutputStream()
    first = 0
    with pq.ParquetWriter(sink, schema, compression=codec.lower()) as writer:
        for group in range(metadata.num_row_groups):
            rows = without_views(file.read_row_group(group))
            writer.write_table(_replace_rows(rows, schema, request_by_row, first), row_group_size=max(1, rows.num_rows))
            first += rows.num_rows
    return bytes(sink.getvalue())


def _replace_rows(rows: pa.Table, schema: pa.Schema, request_by_row: Mapping[int, str], first: int) -> pa.Table:
    requests = [request_by_row.get(first + number) for number in range(rows.num_rows)]
    row_indexes = pa.array([number if request is None else None for number, request in enumerate(requests)], pa.int64())
    existing = rows.column(ERASED_FIELD).to_pylist() if ERASED_FIELD in rows.schema.names else [None] * rows.num_rows
    columns = []
    for column in schema:
        if column.name == ERASED_FIELD:
            columns.append(pa.array([new or old for new, old in zip(requests, existing, strict=True)], column.type))
        else:
            columns.append(rows.column(column.name).take(row_indexes))
    return pa.Table.from_arrays(columns, schema=schema)


_LINE_FORMATS = ("csv", "tsv", "text")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CannotRewriteError(Exception):
    """The owners of an object's events are unknown, or the object cannot be written without some events.

    The message contains the reason.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasedContent:
    """Result of rewriting an object.

    Args:
        stored: new content, compressed as before; None if no event is erased.
        events: number of erased events by request.
        unreadable: number of unreadable events, which stay because their owners are unknown.
        sequence_numbers: collector sequence numbers of erased events.
    """

    stored: bytes | None = None
    events: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0
    sequence_numbers: CollectorSequenceNumbers = field(default_factory=CollectorSequenceNumbers)


@dataclass(slots=True)
class _PayloadPieces:
    """Pieces of a payload: the bytes and number of events of each, and the events to erase by piece."""

    raw_pieces: list[bytes] = field(default_factory=list)
    event_counts: list[int] = field(default_factory=list)
    erased: dict[int, Owners] = field(default_factory=dict)
    unreadable: int = 0


class ContentEraser:
    """Erases events from objects that the same pipelines read. Not thread-safe.

    Needs several times the object's size in memory.
    """

    def __init__(self, specs: Sequence[PipelineSpec], key: bytes, searches: Mapping[str, TokenSearch]) -> None:
        self._specs = specs
        self._owners = EventOwners(specs, key, searches)
        self._combined_search = combine_searches(searches.values())
        source = specs[0].source
        if not isinstance(source, FileSourceSpec):
            raise TypeError(f"{specs[0].pipeline} reads no objects")
        self._source = source
        self._unwrap = () if specs[0].unwrap is None else path_names(specs[0].unwrap.path)

    def erase(self, stored: bytes, *, at_ms: int) -> ErasedContent:
        """Returns the object without the events to erase.

        Args:
            stored: the stored bytes.
            at_ms: time when it landed, in milliseconds since 1970.

        Raises:
            CannotRewriteError: with the reason.
        """
        if not stored:
            return ErasedContent()
        kind, content = self._decompress(stored)
        if not content.strip():
            return ErasedContent()
        pieces = self._split_pieces(content, at_ms)
        if not pieces.erased:
            return ErasedContent(unreadable=pieces.unreadable)
        if len({_parse_settings(spec) for spec in self._specs}) > 1:
            raise CannotRewriteError("pipelines parse it with different settings")
        for candidate in self._candidate_contents(content, pieces):
            if self._is_equivalent(pieces, candidate, at_ms):
                events = Counter(request for owners in pieces.erased.values() for request in owners.values())
                numbers = _sequence_numbers(pieces)
                return ErasedContent(
                    stored=_COMPRESS[kind](candidate),
                    events=events,
                    unreadable=pieces.unreadable,
                    sequence_numbers=numbers,
                )
        raise CannotRewriteError(f"its {self._source.format} content would parse differently after the rewrite")

    def _decompress(self, stored: bytes) -> tuple[str, bytes]:
        declared = self._source.compression
        try:
            content = decompress(stored, declared, max_bytes=self._source.max_object_bytes)
        except (DamagedContent, ContentTooLarge) as error:
            raise CannotRewriteError(str(error)) from error
        return detect_compression(stored) if declared == "auto" else declared, content

    def _split_pieces(self, content: bytes, at_ms: int) -> _PayloadPieces:
        pieces = _PayloadPieces()
        try:
            for number, (value, raw) in enumerate(create_framer(self._source)(content)):
                if isinstance(value, OverBudget):
                    raise CannotRewriteError(f"a part of it exceeds the budget {value.budget}")
                count, owners = self._owners.owners_in_piece(value, raw, at_ms=at_ms)
                pieces.raw_pieces.append(raw)
                pieces.event_counts.append(count)
                pieces.unreadable += isinstance(value, Malformed) and not owners
                if owners:
                    pieces.erased[number] = owners
        except ConversionError as misfit:
            raise CannotRewriteError(f"{misfit.code}: it is unreadable") from misfit
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError, pa.ArrowException) as error:
            raise CannotRewriteError(f"parsing it failed ({type(error).__name__})") from error
        return pieces

    def _candidate_contents(self, content: bytes, pieces: _PayloadPieces) -> Sequence[bytes]:
        """Yields possible new contents. Contents that preserve more bytes come first."""
        source_format = self._source.format
        if source_format == "parquet":
            rows = {number: owners[0] for number, owners in pieces.erased.items()}
            return [erase_parquet_rows(content, rows)]
        if source_format == "avro":
            raise CannotRewriteError("rewriting avro is not supported")
        new = {number: self._replacement_piece(pieces, number) for number in pieces.erased}
        if source_format in _LINE_FORMATS:
            return _splice(content, pieces.raw_pieces, new, start=self._header_end(content), by_line=True)
        all_pieces = [new.get(number, raw) for number, raw in enumerate(pieces.raw_pieces)]
        return [*_splice(content, pieces.raw_pieces, new), _join_pieces(content, all_pieces)]

    def _replacement_piece(self, pieces: _PayloadPieces, number: int) -> bytes:
        """Returns the replacement of a piece with erased events."""
        raw, owners = pieces.raw_pieces[number], pieces.erased[number]
        first = next(iter(owners.values()))
        if self._source.format in _LINE_FORMATS:
            return tombstone_line(first).encode()
        if not self._unwrap or not _wraps_list(raw, self._unwrap):
            return orjson.dumps(tombstone(first))
        value = parse_lossless(raw)
        *parents, last = self._unwrap
        parent = value_at(value, tuple(parents))
        text = parent[last]
        inner = parse_lossless(text) if isinstance(text, str) else text
        inner = [tombstone(owners[index]) if index in owners else event for index, event in enumerate(inner)]
        parent[last] = dump_lossless(inner).decode() if isinstance(text, str) else inner
        written = dump_lossless(value)
        if not self._combined_search.tokens_in_bytes(written):
            return written
        # The wrapper itself contains a token. Replace the wrapper and keep the number of events.
        wrapped: Any = [tombstone(first)] * pieces.event_counts[number]
        for name in reversed(self._unwrap):
            wrapped = {name: wrapped}
        return orjson.dumps(wrapped)

    def _header_end(self, content: bytes) -> int:
        """Returns the offset of the first record of a CSV object with a header."""
        if self._source.format != "csv" or not self._source.csv.header:
            return 0
        begins = len(content) - len(content.removeprefix(_BYTE_ORDER_MARK).lstrip(b"\r\n"))
        end = content.find(b"\n", begins)
        return len(content) if end < 0 else end

    def _is_equivalent(self, pieces: _PayloadPieces, candidate: bytes, at_ms: int) -> bool:
        """Returns whether the new content is parsed like the old one, except for erased events."""
        if self._combined_search.tokens_in_bytes(candidate):
            return False
        try:
            reread = self._split_pieces(candidate, at_ms)
        except CannotRewriteError:
            return False
        if reread.erased or reread.event_counts != pieces.event_counts:
            return False
        return all(
            number in pieces.erased or raw == before
            for number, (raw, before) in enumerate(zip(reread.raw_pieces, pieces.raw_pieces, strict=True))
        )


def _wraps_list(raw: bytes, path: tuple[str, ...]) -> bool:
    """Returns whether a wrapper has its events in a list, so that they can be erased individually."""
    try:
        inner = value_at(orjson.loads(raw), path)
        inner = orjson.loads(inner) if isinstance(inner, str) and inner.lstrip().startswith("[") else inner
    except orjson.JSONDecodeError:
        return False
    return isinstance(inner, list)


def _splice(
    content: bytes, raws: Sequence[bytes], new: Mapping[int, bytes], *, start: int = 0, by_line: bool = False
) -> list[bytes]:
    """Replaces pieces of the content. Each piece is searched after the previous one.

    Returns the new content as a list of one, or an empty list if a piece is not found. Array elements are serialized
    again and may differ from the original bytes.
    """
    parts: list[bytes] = []
    cursor, copied_until = start, 0
    for number, raw in enumerate(raws):
        at = _find_line(content, raw, cursor) if by_line else content.find(raw, cursor)
        if at < 0:
            return []
        cursor = at + len(raw)
        if number in new:
            parts += [content[copied_until:at], new[number]]
            copied_until = cursor
    return [b"".join([*parts, content[copied_until:]])]


def _find_line(content: bytes, raw: bytes, cursor: int) -> int:
    at = content.find(raw, cursor)
    while at >= 0:
        end = at + len(raw)
        begins = at == 0 or content[at - 1] in b"\r\n" or (at == len(_BYTE_ORDER_MARK) and content[0] == 0xEF)
        if begins and content[end : end + 1] in (b"", b"\r", b"\n"):
            return at
        at = content.find(raw, at + 1)
    return -1


def _join_pieces(content: bytes, pieces: Sequence[bytes]) -> bytes:
    """Joins pieces as an array if the content is an array, otherwise one per line."""
    try:
        is_array = type(orjson.loads(content.removeprefix(_BYTE_ORDER_MARK))) is list
    except orjson.JSONDecodeError:
        is_array = False
    return b"[" + b",\n".join(pieces) + b"]" if is_array else b"".join(piece + b"\n" for piece in pieces)


def _sequence_numbers(pieces: _PayloadPieces) -> CollectorSequenceNumbers:
    """Returns the collector sequence numbers of erased events."""
    numbers = CollectorSequenceNumbers()
    for number, owners in pieces.erased.items():
        numbers.add_raw(
            pieces.raw_pieces[number], None if len(owners) == pieces.event_counts[number] else sorted(owners)
        )
    return numbers


def _parse_settings(spec: PipelineSpec) -> str:
    """Returns the settings of a pipeline that determine the events and positions it reads from an object."""
    keys = {"format", "csv", "tsv", "pattern", "compression"}
    unwrap = "" if spec.unwrap is None else spec.unwrap.model_dump_json()
    return spec.source.model_dump_json(include=keys) + unwrap


def _compress_zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return bytes(sink.getvalue())


_COMPRESS: Mapping[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    # Without a timestamp, so that equal content gives equal bytes.
    "gzip": lambda content: gzip.compress(content, 6, mtime=0),
    "bzip2": bz2.compress,
    "zstd": _compress_zstd,
}
