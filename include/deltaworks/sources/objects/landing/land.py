"""Lands files in the bucket that a pipeline reads, as its producers do. No other part of the stream changes.

The stream learns of the objects as usual: from the bucket's notifications, or from the relay's listing.
"""

from __future__ import annotations

import bz2
import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from deltaworks.errors import ConfigError, ContractError
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.formats.registry import reject_other_formats
from deltaworks.sources.objects.landing.inputs import Content, Input
from deltaworks.sources.objects.landing.json_pieces import Piece, json_pieces
from deltaworks.sources.objects.landing.landing_store import LandingStore
from deltaworks.sources.objects.landing.line_pieces import csv_pieces, line_pieces
from deltaworks.sources.objects.landing.object_keys import ObjectKeys
from deltaworks.specs.base import resolve_text
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.specs.sources.payload import PayloadSpec
from deltaworks.specs.sources.records import KafkaSourceSpec, KinesisSourceSpec

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
    """

    file: str
    objects: int = 0
    existing: int = 0
    events: int | None = 0
    unreadable: int | None = 0
    read_bytes: int = 0
    landed_bytes: int = 0

    def with_object(self, piece: Piece, *, stored_bytes: int, created: bool) -> LandedFile:
        """Returns the result with one more object counted."""
        return replace(
            self,
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
                created = store.put_if_absent(names.key(file.name, number, piece.data), stored)
                result = result.with_object(piece, stored_bytes=len(stored), created=created)
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
    import pyarrow.parquet as pq

    return int(pq.read_metadata(pa.BufferReader(data)).num_rows)


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
