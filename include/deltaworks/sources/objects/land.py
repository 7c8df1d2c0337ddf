"""Lands files in the bucket that a pipeline reads, as its producers do. No other part of the stream changes.

The stream learns of the objects as usual: from the bucket's notifications, or from the relay's listing. A key consists
of the file's path, the number of the piece and a digest of its content. Landing a file again yields the same keys and
no duplicates, so an interrupted landing can be repeated.

Large files are split into pieces with bounded memory: text between lines, CSV between records (each piece begins with
the field names), JSON between values. JSON may be one value per line, concatenated, pretty-printed, or arrays. A split
position is used only if everything before it parses as complete values. Therefore each event is in one piece, and the
concatenated pieces equal the stream byte for byte. An array longer than a piece becomes several arrays. A longer single
value, such as a wrapper of many events, is not split.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import pyarrow as pa

from deltaworks.errors import ConfigError, ContractError
from deltaworks.events.budget import Budget, BudgetExceededError, OverBudget
from deltaworks.events.formats.csv import CsvFramer
from deltaworks.events.formats.json import read_events
from deltaworks.events.formats.json_recovery import WHITE_SPACE, Malformed
from deltaworks.events.formats.registry import create_framer, reject_other_formats
from deltaworks.events.reasons import ConversionError
from deltaworks.events.source_fields import partition_fields
from deltaworks.sources.objects.landed_inputs import Content, Input
from deltaworks.sources.objects.landing_store import LandingStore
from deltaworks.specs.base import resolve_text
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import BudgetSpec, KafkaSourceSpec, KinesisSourceSpec, PayloadSpec
from deltaworks.specs.sources import FileSourceSpec, key_matcher

# Keys of landed objects.

_SUFFIXES = {"json": ".json", "csv": ".csv", "tsv": ".tsv", "text": ".txt", "parquet": ".parquet", "avro": ".avro"}
_WILDCARD = re.compile(r"[*?{]")
#: Characters that every S3 client accepts without escaping.
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._=-]+")
_MAX_PATH_CHARACTERS = 200


class ObjectKeys:
    """Creates the object keys of one pipeline.

    Args:
        subfolder: a folder below the pipeline's prefix, such as `day=2026-01-31`.
        force: create unused keys, so that files land again.
    """

    def __init__(self, source: FileSourceSpec, *, compression_suffix: str, subfolder: str, force: bool) -> None:
        head, tail = _key_affixes(source)
        self._source = source
        self._folder = "/".join(part for part in (head.rstrip("/"), subfolder.strip("/")) if part)
        suffix = _SUFFIXES[source.format]
        self._suffix = tail or (suffix if source.format in ("parquet", "avro") else suffix + compression_suffix)
        self._force = force

    def key(self, name: PurePosixPath, number: int, content: bytes) -> str:
        """Returns the object key of piece `number` of a file. `content` is the uncompressed piece."""
        parts = [safe for part in _stem(name).parts if (safe := _UNSAFE_CHARACTERS.sub("-", part).strip("-."))]
        path = "/".join(parts)[-_MAX_PATH_CHARACTERS:].strip("/") or "events"
        unique = uuid.uuid4().hex if self._force else hashlib.sha256(content).hexdigest()
        return "/".join(part for part in (self._folder, f"{path}-{number:05d}-{unique[:16]}{self._suffix}") if part)

    def check(self, name: PurePosixPath) -> None:
        """Verifies that the source would read the file's objects.

        Raises:
            ConfigError: LANDING_KEY_INVALID.
        """
        source, key = self._source, self.key(name, 1, b"")
        values = partition_fields(key, source.partition_columns)
        missing = [column for column in source.partition_columns if column not in values]
        if key.startswith(source.prefix) and key_matcher(source.glob)(key) and not missing:
            return
        location = f"prefix {source.prefix!r}" + (f", glob {source.glob!r}" if source.glob else "")
        partition_hint = f" and folders such as {missing[0]}=VALUE/" if missing else ""
        raise ConfigError(
            "LANDING_KEY_INVALID",
            f"The source reads {location}{partition_hint}; it would not read an object with the key {key}.",
        )


def _key_affixes(source: FileSourceSpec) -> tuple[str, str]:
    """Returns the fixed prefix and the fixed suffix of all keys that the source reads."""
    if source.glob is None:
        return source.prefix, ""
    first = _WILDCARD.search(source.glob)
    if first is None:
        return source.prefix, ""
    folder = source.glob[: first.start()].rpartition("/")[0]
    tail = re.split(r"[*?{}]", source.glob)[-1]
    head = folder if len(folder) > len(source.prefix) else source.prefix
    return head, tail if tail.startswith(".") else ""


def _stem(name: PurePosixPath) -> PurePosixPath:
    """Returns the path without the suffixes for format and compression."""
    while name.suffix.lower() in _STRIPPED_SUFFIXES and name.stem != name.name:
        name = name.with_suffix("")
    return name


_STRIPPED_SUFFIXES = {*_SUFFIXES.values(), ".jsonl", ".ndjson", ".log", ".gz", ".gzip", ".bz2", ".zst", ".zstd"}


# Pieces of JSON.

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
#: Matches possible boundaries of values: between adjacent objects, or between any values on separate lines.
_VALUE_BOUNDARY = re.compile(rb"\}[ \t\r\n]*(?=\{)|[\}\]\"\w][ \t\r]*\n[ \t\r\n]*(?=[\{\[\"\w-])")
#: Split positions are searched backwards from the end of a window, one block at a time.
_BLOCK_BYTES, _OVERLAP_BYTES = 64 << 10, 1 << 10
_MAX_CUT_ATTEMPTS = 16
#: A position that does not parse after two scans is not used.
_SCAN_BUDGET = BudgetSpec(max_scans=2)
_NOT_WHITE_SPACE = re.compile(r"[^ \t\r\n]")
_decoder = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Piece:
    """The content of one landed object. `events` includes the `unreadable` values; both are None if they cannot be
    counted.
    """

    data: bytes
    events: int | None = None
    unreadable: int | None = None


@dataclass(frozen=True, slots=True)
class _Cut:
    piece: Piece
    rest: bytes


def json_pieces(read: Callable[[int], bytes], *, target_bytes: int, max_value_bytes: int) -> Iterator[Piece]:
    """Yields pieces of about `target_bytes`. A value that is longer makes a longer piece.

    Args:
        read: returns up to the given number of bytes of the stream, fewer only at its end.
        max_value_bytes: a longer value is cut at any position, because no reader accepts it.
    """
    buffer, at_end, window = b"", False, target_bytes
    while True:
        while not at_end and len(buffer) <= window:
            needed = window + 1 - len(buffer)
            chunk = read(needed)
            at_end = len(chunk) < needed
            buffer = buffer + chunk if buffer else chunk.removeprefix(_BYTE_ORDER_MARK)
        if at_end and len(buffer) <= target_bytes:
            break
        cut = _sequence_cut(buffer, window) or _array_cut(buffer, window)
        if cut is not None:
            yield cut.piece
            buffer, window = cut.rest, target_bytes
        elif window >= len(buffer):
            break
        elif window >= max_value_bytes:
            yield _piece(buffer)
            buffer, window = b"", target_bytes
        else:
            # Doubling the window keeps the work proportional to the input.
            window *= 2
    if buffer.strip(WHITE_SPACE):
        yield _piece(buffer)


def _sequence_cut(buffer: bytes, window: int) -> _Cut | None:
    for number, end in enumerate(_cut_positions(buffer, window)):
        if number == _MAX_CUT_ATTEMPTS:
            break
        piece = _piece(buffer[:end], complete_only=True)
        if piece.events is not None:
            return _Cut(piece, buffer[end:])
    return None


def _cut_positions(buffer: bytes, window: int) -> Iterator[int]:
    """Yields possible split positions in the window, from the last to the first."""
    end = window
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        matches = _VALUE_BOUNDARY.finditer(buffer, max(0, start - _OVERLAP_BYTES), end + 1)
        yield from reversed([match.end() for match in matches if start < match.end() <= end])
        end = start


def _piece(data: bytes, *, complete_only: bool = False) -> Piece:
    """Returns a piece with the number of its events. With `complete_only`, does not count if the last value cannot be
    read.
    """
    events = unreadable = 0
    readable = True
    try:
        for value, _ in read_events(data, Budget(_SCAN_BUDGET, size=len(data))):
            events += 1
            readable = not isinstance(value, Malformed | OverBudget)
            unreadable += not readable
    except BudgetExceededError:
        return Piece(data)
    return Piece(data) if complete_only and not readable else Piece(data, events, unreadable)


def _array_cut(buffer: bytes, window: int) -> _Cut | None:
    """Splits an array that is longer than the window: its complete elements become one array, the rest another."""
    # Latin-1 has one character per byte, so text offsets are byte offsets.
    text = buffer[:window].decode("latin-1")
    opening = _skip_white_space(text, 0)
    if text[opening : opening + 1] != "[":
        return None
    position, elements, end, next_position = opening + 1, 0, 0, 0
    while True:
        try:
            _, after = _decoder.raw_decode(text, _skip_white_space(text, position))
        except (ValueError, RecursionError):
            break
        position = _skip_white_space(text, after)
        if text[position : position + 1] != ",":
            break
        elements, end, next_position = elements + 1, after, position + 1
        position = next_position
    if not elements:
        return None
    return _Cut(Piece(buffer[:end] + b"]", elements, 0), b"[" + buffer[next_position:])


def _skip_white_space(text: str, position: int) -> int:
    match = _NOT_WHITE_SPACE.search(text, position)
    return match.start() if match else len(text)


# Pieces of lines and CSV records.

_FIELDS_LINE = re.compile(rb"(?:\A|[\r\n])(#Fields:[^\r\n]*)")
#: The reader's budget is per object. Splitting only has to bound the search for a closing quote.
_UNBOUNDED_SIZE = 1 << 50


def line_pieces(
    read: Callable[[int], bytes], source: PayloadSpec, *, target_bytes: int, max_line_bytes: int
) -> Iterator[Piece]:
    """Yields pieces of complete lines, of at most `target_bytes` unless a line is longer.

    For format `tsv`, each piece begins with the `#Fields:` line that applies to it.

    Args:
        read: returns up to the given number of bytes of the stream, fewer only at its end.
        max_line_bytes: a longer line is cut at any position, because no reader accepts it.
    """
    has_named_fields = source.format == "tsv" and not source.tsv.columns
    count = _piece_factory(source)
    buffer, at_end, fields, window = b"", False, b"", target_bytes
    while True:
        if not at_end and len(buffer) < window:
            chunk = read(window - len(buffer))
            at_end = len(buffer) + len(chunk) < window
            buffer = buffer + chunk if buffer else chunk.removeprefix(_BYTE_ORDER_MARK)
        end = _line_end(buffer, target_bytes, at_end=at_end)
        if not end and not at_end and len(buffer) < max_line_bytes:
            window = target_bytes + 2 * len(buffer)
            continue
        data = buffer[: end or len(buffer)]
        buffer, window = buffer[len(data) :], target_bytes
        if data.strip():
            yield count(fields + data if fields and not data.startswith(b"#Fields:") else data)
        for match in _FIELDS_LINE.finditer(data) if has_named_fields else ():
            fields = match.group(1) + b"\n"
        if at_end and not buffer:
            return


def _line_end(buffer: bytes, target_bytes: int, *, at_end: bool) -> int:
    """Returns the length of the complete lines within the target, or of the first line if it is longer; 0 without a
    line end.
    """
    if at_end and len(buffer) <= target_bytes:
        return len(buffer)
    return buffer.rfind(b"\n", 0, target_bytes) + 1 or buffer.find(b"\n") + 1


def csv_pieces(lines: Iterator[str], source: PayloadSpec, *, target_bytes: int) -> Iterator[Piece]:
    """Yields pieces of complete records, each with the header; quoted multi-line fields are not split."""
    records = CsvFramer(source.csv).read_records(
        lines, Budget(size=_UNBOUNDED_SIZE, max_event_bytes=source.max_event_bytes)
    )
    count = _piece_factory(source)
    header = b""
    if source.csv.header:
        header = next((raw + b"\n" for _, raw in records), b"")
    parts, size = [header], len(header)
    for _, raw in records:
        if len(parts) > 1 and size + len(raw) >= target_bytes:
            yield count(b"".join(parts))
            parts, size = [header], len(header)
        parts.append(raw + b"\n")
        size += len(raw) + 1
    if len(parts) > 1:
        yield count(b"".join(parts))


def _piece_factory(source: PayloadSpec) -> Callable[[bytes], Piece]:
    """Returns a function that makes a piece of lines. It counts events in the same way as the stream."""
    events_of = create_framer(source)

    def count(data: bytes) -> Piece:
        events = unreadable = 0
        try:
            for value, _ in events_of(data):
                events += 1
                unreadable += isinstance(value, Malformed)
        except ConversionError:
            return Piece(data)
        return Piece(data, events, unreadable)

    return count


# Landing.

OBJECT_BYTES = 16 << 20
#: Formats that cannot be split, because offsets in a footer locate their content.
UNSPLITTABLE_FORMATS = ("parquet", "avro")
_GZIP_LEVEL = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedFile:
    """The result of landing one file.

    Attributes:
        objects: number of created objects.
        existing: number of objects that were present with the same content.
        events: events in all objects, existing ones included; None if they cannot be counted.
        unreadable: number of these that the format's parser rejects; they go to quarantine.
        read_bytes, landed_bytes: stored bytes of the file read; compressed bytes of the created objects.
        keys: of all objects, existing ones included.
    """

    file: str
    objects: int = 0
    existing: int = 0
    events: int | None = 0
    unreadable: int | None = 0
    read_bytes: int = 0
    landed_bytes: int = 0
    keys: tuple[str, ...] = ()

    def with_object(self, key: str, piece: Piece, *, stored_bytes: int, created: bool) -> LandedFile:
        """Returns the result with one more object counted."""
        return replace(
            self,
            keys=(*self.keys, key),
            objects=self.objects + created,
            existing=self.existing + (not created),
            events=_sum(self.events, piece.events),
            unreadable=_sum(self.unreadable, piece.unreadable),
            landed_bytes=self.landed_bytes + stored_bytes * created,
        )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def require_file_source(spec: PipelineSpec) -> FileSourceSpec:
    """Returns the pipeline's source; raises if it does not read objects.

    Raises:
        ConfigError: LANDING_WITHOUT_OBJECTS, with the tool to use instead.
    """
    source = spec.source
    if isinstance(source, FileSourceSpec):
        return source
    if isinstance(source, KafkaSourceSpec):
        location = f"`kcat -P -b {resolve_text(source.bootstrap_servers)} -t {source.topics[0]} -l FILE`"
        hint = f"Use a Kafka producer with one record per event: {location} sends the lines of a file."
    elif isinstance(source, KinesisSourceSpec):
        hint = (
            f"Put them into the stream with `aws kinesis put-records` or `deltaworks collect --stream {source.stream}`."
        )
    else:
        hint = f"Write rows to that table: {source.display_name()}."
    raise ConfigError(
        "LANDING_WITHOUT_OBJECTS",
        f"{spec.pipeline!r} reads {source.kind} ({source.display_name()}), so there is no bucket to land objects in.",
        hint=hint,
    )


def land(
    inputs: Sequence[Input],
    source: FileSourceSpec,
    store: LandingStore,
    *,
    object_bytes: int = OBJECT_BYTES,
    subfolder: str = "",
    force: bool = False,
    progress: Callable[[Input, LandedFile], None] | None = None,
) -> list[LandedFile]:
    """Lands the files in the store, one object after another, and returns a result per file.

    Idempotent unless `force`: the same files with the same object size have the same keys, and each key is created
    once.

    Args:
        object_bytes: approximate size of an object before compression; a larger event makes a larger object.
        progress: called after each object with the result of its file so far.

    Raises:
        ConfigError: INPUT_MISSING, LANDING_KEY_INVALID, LANDING_REFUSED.
        ContractError: INPUT_DAMAGED, INPUT_WRONG_FORMAT, INPUT_TOO_LARGE; objects landed before stay.
        TransientError: STORAGE_UNREACHABLE.
    """
    compressor, suffix = _compressor(source)
    names = ObjectKeys(source, compression_suffix=suffix, subfolder=subfolder, force=force)
    for file in inputs:
        names.check(file.name)
    results = []
    for file in inputs:
        result = LandedFile(file=str(file))
        with file.open(decompress=source.format not in UNSPLITTABLE_FORMATS) as content:
            for number, piece in enumerate(pieces_of(content, source, object_bytes=object_bytes), 1):
                stored = compressor(piece.data)
                key = names.key(file.name, number, piece.data)
                created = store.put_if_absent(key, stored)
                result = result.with_object(key, piece, stored_bytes=len(stored), created=created)
                result = replace(result, read_bytes=content.stored_bytes)
                if progress is not None:
                    progress(file, result)
        results.append(result)
    return results


def pieces_of(content: Content, source: PayloadSpec, *, object_bytes: int) -> Iterator[Piece]:
    """Splits the content of a file into the contents of its objects. Each event is in exactly one.

    Raises:
        ContractError: INPUT_DAMAGED, INPUT_WRONG_FORMAT, INPUT_TOO_LARGE.
    """
    max_bytes = source.max_object_bytes if isinstance(source, FileSourceSpec) else 512 << 20
    if source.format in UNSPLITTABLE_FORMATS:
        yield _unsplit_piece(content, source, max_bytes)
        return
    try:
        reject_other_formats(content.head(), source.format)
    except ConversionError as misfit:
        raise _wrong_format(content, misfit.detail) from misfit
    if source.format == "csv":
        yield from csv_pieces(content.lines(), source, target_bytes=object_bytes)
    elif source.format == "json":
        yield from json_pieces(content.read, target_bytes=object_bytes, max_value_bytes=max_bytes)
    else:
        yield from line_pieces(content.read, source, target_bytes=object_bytes, max_line_bytes=max_bytes)


def _wrong_format(content: Content, why: str) -> ContractError:
    return ContractError("INPUT_WRONG_FORMAT", f"{content}: {why}.")


def _unsplit_piece(content: Content, source: PayloadSpec, max_bytes: int) -> Piece:
    data = content.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ContractError(
            "INPUT_TOO_LARGE", f"{content} has more than {max_bytes} bytes, and {source.format} files cannot be split."
        )
    try:
        return Piece(data, _EVENT_COUNTERS[source.format](data), 0)
    except Exception as error:  # the exception type depends on the damage
        raise _wrong_format(content, f"it cannot be read as {source.format}") from error


def _rows_of_parquet(data: bytes) -> int:
    from deltaworks.tables.files import open_parquet

    return int(open_parquet(pa.BufferReader(data)).metadata.num_rows)


def _records_of_avro(data: bytes) -> int:
    import fastavro

    return sum(block.num_records for block in fastavro.block_reader(io.BytesIO(data)))


_EVENT_COUNTERS: dict[str, Callable[[bytes], int]] = {"parquet": _rows_of_parquet, "avro": _records_of_avro}


def _compressor(source: FileSourceSpec) -> tuple[Callable[[bytes], bytes], str]:
    """Returns the function that compresses objects of this source, and the suffix of their names."""
    kind = source.compression
    if kind == "auto":
        kind = "none" if source.format in UNSPLITTABLE_FORMATS else "gzip"
    return {
        "none": (bytes, ""),
        # Without a timestamp, so equal content gives equal objects.
        "gzip": (lambda data: gzip.compress(data, _GZIP_LEVEL, mtime=0), ".gz"),
        "bzip2": (bz2.compress, ".bz2"),
        "zstd": (lambda data: pa.compress(data, codec="zstd", asbytes=True), ".zst"),
    }[kind]
