"""Generates hostile objects and messages: small to send, but expensive to read or fatal for the reader.

Each kind has a function that takes the object's number; objects that are expensive to generate are cached. The events
have recognizable ids (`h12-3`), so that none is mistaken for the good producer's.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults.harness.crashing_objects import CRASH_KINDS

FIRST_TIME = 1_600_000_000
DAY_SECONDS = 86_400
#: Before the year 4000, so that all of them are valid partition days.
_DAYS = 3_000
_DEPTHS = (900, 970, 990, 1_000, 1_015, 1_030, 5_000)
_BOMB_BYTES = 320 << 20
MANY_BRACES_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class HostileObject:
    """One object to put. `is_deleted`: it is deleted before it is read. `suffix` is appended to the key."""

    kind: str
    body: bytes
    suffix: str = ".json"
    is_deleted: bool = False


def event(number: int, place: int, **values: object) -> bytes:
    """Returns a valid event that lands in the same tables as the good producer's; `values` overrides fields."""
    fields = {"name": "k01", "at": FIRST_TIME + place, "id": f"h{number}-{place}", "n": place}
    return json.dumps(fields | values).encode()


def _deep(number: int) -> bytes:
    """A value nested to the depth where recursive code fails, between valid events."""
    depth = _DEPTHS[number % len(_DEPTHS)]
    nested = event(number, 1, n="@").replace(b'"@"', b"[" * depth + b"]" * depth)
    return b"".join((event(number, 0), nested, event(number, 2)))


def _never_closed(number: int) -> bytes:
    return event(number, 0) + b'{"a":' * 900 + b"[" + b"1," * (64 << 10)


def _no_text(number: int) -> bytes:
    """Names, ids and times that are invalid UTF-8, lone surrogates, NUL, markup or too long."""
    names = [b"ho\xffstile", b"\\ud800", b"\\u0000", b"[/x][link=http://localhost]", b"\\u001b[2J", b"x" * 100_000]
    lines = [event(number, place, name="@").replace(b"@", name) for place, name in enumerate(names)]
    lines.append(event(number, 6, id="@").replace(b"@", b"\xc3"))
    lines.append(event(number, 7, id="@").replace(b"@", b"\\udfff"))
    lines.append(event(number, 8, at="@").replace(b"@", b"\xff"))
    return b"\n".join([*lines, event(number, 9)])


def _quadratic(_: int) -> bytes:
    """A text of brackets followed by numbers; a reader that retries after every bracket needs quadratic time."""
    return b'{"a":"' + b"}{" * 32_000 + b'"}' + b" 1" * 32_000


@functools.cache
def _many_braces() -> bytes:
    return gzip.compress(b"{}" * (MANY_BRACES_BYTES // 2))


@functools.cache
def _gzip_bomb() -> bytes:
    """Several gzip members, each a thousand times as large after decompression."""
    return gzip.compress(b"[" + b"0," * (4 << 20)) + gzip.compress(bytes(_BOMB_BYTES // 8)) * 8


@functools.cache
def _bzip2_bomb() -> bytes:
    return bz2.compress(bytes(_BOMB_BYTES // 8)) * 8


@functools.cache
def _zip_bomb() -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writer:
        for name in range(3):
            writer.writestr(f"{name}.json", bytes(_BOMB_BYTES // 8))
    return archive.getvalue()


@functools.cache
def _avro_bomb() -> bytes:
    """A recursive Avro schema, 300 levels deep, compressed."""
    schema = {"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}
    value: dict[str, object] = {"n": None}
    for _ in range(300):
        value = {"n": value}
    written = io.BytesIO()
    fastavro.writer(written, schema, [value], codec="deflate")
    return written.getvalue()


@functools.cache
def _parquet_bomb() -> bytes:
    """A million rows of one long text, stored in a kilobyte by dictionary encoding."""
    indices = pa.array([0] * 1_000_000, pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 1_000]))
    written = io.BytesIO()
    pq.write_table(pa.table({"a": column}), written, compression="zstd", store_schema=False)
    return written.getvalue()


def _cut_gzip(number: int) -> bytes:
    return gzip.compress(b"\n".join(event(number, place) for place in range(500)))[:-9]


def _many_partitions(number: int) -> bytes:
    return b"\n".join(event(number, day, at=FIRST_TIME - day * DAY_SECONDS) for day in range(_DAYS))


def _numbers(number: int) -> bytes:
    """Numbers that fit no column: too large, too long, not finite; and ids that are equal once rounded."""
    wrong = [b"1e999", b"9" * 5_000, b"NaN", b"-Infinity", b"1.5", b"18446744073709551616", b"-0"]
    lines = [event(number, place, n="@").replace(b'"@"', value) for place, value in enumerate(wrong)]
    times = [b"1e300", b"9" * 400, b"-99999999999999"]
    lines += [event(number, 10 + place, at="@").replace(b'"@"', value) for place, value in enumerate(times)]
    ids = [10**20 + 2 * number, 10**20 + 2 * number + 1]
    lines += [event(number, 20 + place, id=value) for place, value in enumerate(ids)]
    return b"\n".join(lines)


def _large(number: int) -> bytes:
    return event(number, 0) + event(number, 1, blob="x" * (2 << 20)) + event(number, 2)


def _wide(number: int) -> bytes:
    """Tens of thousands of fields, many with the same name."""
    fields = {f"f{place}": place for place in range(20_000)}
    repeated = b'{"name":"k01",' + b'"id":"x",' * 20_000 + event(number, 1)[1:]
    return event(number, 0, **fields) + repeated


def _array(number: int) -> bytes:
    return b"[" + b",".join([*(b"[[]]" for _ in range(300)), b"null", event(number, 0)]) + b"]" + b"[]" * 1_000


def _wrong_types(number: int) -> bytes:
    """Events whose values fit no column, and one undeclared event."""
    values: list[object] = ["no number", [1], {"n": 1}, True, None, 2**63]
    lines = [event(number, place, n=value) for place, value in enumerate(values)]
    return b"\n".join([*lines, event(number, len(lines), name="hostile")])


def _utf16(number: int) -> bytes:
    return b"\xff\xfe" + event(number, 0).decode().encode("utf-16-le")


#: By kind. Objects that are expensive to generate are all equal.
KINDS: dict[str, Callable[[int], HostileObject]] = {
    "deep JSON": lambda number: HostileObject("deep JSON", _deep(number)),
    "JSON never closed": lambda number: HostileObject("JSON never closed", _never_closed(number)),
    "names that are no text": lambda number: HostileObject("names that are no text", _no_text(number)),
    "quadratic garbage": lambda number: HostileObject("quadratic garbage", _quadratic(number)),
    "64 MB of {}": lambda _: HostileObject("64 MB of {}", _many_braces(), ".json.gz"),
    "gzip bomb": lambda _: HostileObject("gzip bomb", _gzip_bomb(), ".json.gz"),
    "bzip2 bomb": lambda _: HostileObject("bzip2 bomb", _bzip2_bomb(), ".json.bz2"),
    "zip bomb": lambda _: HostileObject("zip bomb", _zip_bomb(), ".zip"),
    "Avro bomb": lambda _: HostileObject("Avro bomb", _avro_bomb(), ".avro"),
    "Parquet bomb": lambda _: HostileObject("Parquet bomb", _parquet_bomb(), ".parquet"),
    "cut-off gzip": lambda number: HostileObject("cut-off gzip", _cut_gzip(number), ".json.gz"),
    "many partitions": lambda number: HostileObject("many partitions", _many_partitions(number)),
    "numbers": lambda number: HostileObject("numbers", _numbers(number)),
    "large event": lambda number: HostileObject("large event", _large(number)),
    "wide event": lambda number: HostileObject("wide event", _wide(number)),
    "array of arrays": lambda number: HostileObject("array of arrays", _array(number)),
    "wrong types": lambda number: HostileObject("wrong types", _wrong_types(number)),
    "UTF-16": lambda number: HostileObject("UTF-16", _utf16(number)),
    "empty": lambda _: HostileObject("empty", b""),
    "page of HTML": lambda _: HostileObject("page of HTML", b"<html><body>503</body></html>", ".html"),
    "odd key": lambda number: HostileObject("odd key", event(number, 0), " [/x]+100%25 ü😀#?&=.json"),
    "deleted": lambda number: HostileObject("deleted", event(number, 0), is_deleted=True),
}


def deadly(number: int) -> HostileObject:
    """Returns the object with this number that kills its reader; the crash kinds alternate."""
    kind = list(CRASH_KINDS)[number % len(CRASH_KINDS)]
    return HostileObject(kind, CRASH_KINDS[kind] + b"\n".join(event(number, place) for place in range(3)))


def make_ready() -> None:
    """Generates the expensive objects in advance, so that a producer does not pause later."""
    for maker in KINDS.values():
        maker(0)


def messages(bucket: str, number: int) -> list[str]:
    """Returns unusable messages: ETags with a line break, keys outside the bucket, deeply nested JSON."""

    def notification(key: str, etag: str) -> str:
        s3 = {"bucket": {"name": bucket}, "object": {"key": key, "size": 2, "eTag": etag}}
        when = "2026-03-01T10:20:30.123Z"
        return json.dumps({"Records": [{"eventName": "ObjectCreated:Put", "eventTime": when, "s3": s3}]})

    return [
        notification(f"hostile/tag-{number}.json", 'e"\r\nX-Header: 1'),
        notification("../../control/lease.json", "e"),
        notification("a%00b", "e"),
        notification("k" * 2_000, "e"),
        "[" * 5_000,
        '{"Records": ' + "[" * 3_000 + "]" * 3_000 + "}",
        '{"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": 7}}]}',
    ]
