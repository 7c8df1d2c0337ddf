"""Events with every kind of error in every field, to compare two parsers."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import orjson

#: Values as they are written. What each reader of JSON makes of them differs most at these.
NUMBERS = (
    *(
        "1",
        "-0",
        "-0.0",
        "1.0",
        "1.5",
        "1e2",
        "1e22",
        "0.1",
        "4.99",
        "4.999",
        "0.30000000000000004",
        "123456789012345.5",
    ),
    *("2147483648", "9007199254740993", "9007199254740993.0", "9223372036854775807", "9223372036854775808"),
    *("18446744073709551616", "100000000000000000000", "1e308", "1.8e308", "1.00000e312", "1e400", "1e-400"),
    *("01", "1.", "+1", ".5", "-", "0x1", "NaN", "Infinity"),
)
TEXTS = (
    *(
        '""',
        '"abc"',
        '"1"',
        '"4.99"',
        '"}{"',
        '"x}{y"',
        r'"\ud800"',
        r'"\udc00"',
        r'"\ud83d\ude00"',
        r'"\u0000"',
        r'"\q"',
    ),
    *('"a\tb"', '"\U0001f600"', '"2024-01-01"', '"2024-01-01T00:00:00"', '"2024-01-01T00:00:00.1234567Z"'),
    *('"2024-01-01T00:00:00+02:00"', '"1800-01-01T00:00:00Z"', '"9999-12-31T23:59:59.999999Z"', '"1717200000"'),
    '"' + "x" * 3_000 + '"',
)
OTHERS = (
    *("null", "true", "false", "[]", "[1]", "[1.5]", "[1.0]", '["a"]', "[null]", "[true]", "[[1]]", "[{}]", "{}"),
    *('{"a":1}', '{"a":"b"}', '{"a":null}', '{"a":1.5}', '{"a":1,"a":2}', '{"b":-0,"a":2}', '{"a":{"before":"x"}}'),
    *('[{"item":"a","count":1.0}]', "[9007199254740993.0]", "[" * 1030 + "]" * 1030, '{"a":' * 600 + "1" + "}" * 600),
)
VALUES = (*NUMBERS, *TEXTS, *OTHERS)
Damage = Callable[[Random, bytes], bytes]


def vectors(folder: Path) -> list[bytes]:
    """The files of JSONTestSuite."""
    with tarfile.open(folder / "test_parsing.tar.gz") as archive:
        return [file.read() for member in archive.getmembers() if (file := archive.extractfile(member)) is not None]


def with_value(event: dict[str, Any], path: Sequence[str], value: str, *, twice: bool = False) -> str:
    """The event as JSON, with this text as the value at a path; `twice` where the field keeps its own before it."""
    name = path[0]
    inner = event.get(name)
    if len(path) > 1:
        value = with_value(inner if isinstance(inner, dict) else {}, path[1:], value, twice=twice)
    fields = [(key, json.dumps(held)) for key, held in event.items() if key != name or (twice and len(path) == 1)]
    return "{" + ",".join(f"{json.dumps(key)}:{text}" for key, text in [*fields, (name, value)]) + "}"


def spoilt(text: str, paths: Sequence[Sequence[str]], rng: Random, suite: Sequence[bytes]) -> bytes:
    """An event's JSON with one mistake: at one of these fields, at one that nobody reads, or in its bytes."""
    event = orjson.loads(text)
    match rng.randrange(8):
        case 0 | 1 | 2 | 3:
            path = rng.choice([*paths, ("other",), (*paths[-1][:-1], "other")])
            return with_value(event, path, rng.choice(VALUES), twice=rng.random() < 0.1).encode(
                "utf-8", "surrogatepass"
            )
        case 4:
            fields = list(event.items())
            rng.shuffle(fields)
            return json.dumps(dict(fields), indent=rng.choice([None, 1]), ensure_ascii=rng.random() < 0.5).encode()
        case 5 if suite:
            return rng.choice(suite)
        case _:
            return rng.choice(_DAMAGES)(rng, text.encode())


def _bytes_inserted(rng: Random, text: bytes) -> bytes:
    place = rng.randrange(len(text))
    return text[:place] + rng.choice([b"\xff", b"\xed\xa0\x80", b"\x00", b'"', b"}{", b"\\u0063", b"\n"]) + text[place:]


def _name_escaped(rng: Random, text: bytes) -> bytes:
    return text.replace(b'":', rng.choice([b'\\u0020":', b'" : ', b'"\n:\t']), 1)


_DAMAGES: tuple[Damage, ...] = (
    _bytes_inserted,
    _name_escaped,
    lambda rng, text: text[: rng.randrange(len(text))],
    lambda rng, text: text[rng.randrange(len(text)) :],
    lambda rng, text: text + rng.choice([text, b"\x00", b",", b"}", b" " * 90]),
    lambda rng, text: rng.choice([b"[%b,%b]", b"[[%b],%b]", b'{"a":%b,"b":%b}']) % (text, text),
    lambda rng, text: rng.choice([b"17", b"true", b"[]", b"{}", b'"x"', b"null", b"", b"{" + b" " * 70 + b"}"]),
    lambda rng, text: rng.choice([b" ", b"\n", b"\r\n\t", b" " * 100, b"\xef\xbb\xbf"]) + text,
    lambda rng, text: rng.choice([b'{"a":"}', b'{","b":1}', b"{}{}", b"}", b'{"a":{}']),
)


def wrapped(body: bytes, rng: Random, *, field: str = "body") -> bytes:
    """An event's JSON as a text in a wrapper; now and then as itself, with a wrapper's own mistakes, or alone."""
    name = field.encode()
    match rng.randrange(24):
        case 0:
            return b'{"%b":%b}' % (name, body)
        case 1:
            return body
    try:
        text = json.dumps(body.decode(), ensure_ascii=rng.random() < 0.3).encode()
    except UnicodeDecodeError:
        text = b'"%b"' % body
    match rng.randrange(24):
        case 0:
            return b'{"path":"/v1","%b":"{}","%b":%b}' % (name, name, text)
        case 1:
            return b'{"path":"}{","%b":%b,"other":%b}' % (
                name,
                text,
                rng.choice(VALUES).encode("utf-8", "surrogatepass"),
            )
    return b'{"path":"/v1","headers":{"a":["b",{}]},"%b":%b}' % (name, text)


def as_payload(pieces: Sequence[bytes], rng: Random) -> bytes:
    """Pieces as an object holds them: one behind the other, or a line each."""
    between = rng.choice([b"", b"", b"\n", b"\r\n", b" "])
    return rng.choice([b"", b"", b"\xef\xbb\xbf", b" "]) + between.join(pieces) + rng.choice([b"", b"\n"])
