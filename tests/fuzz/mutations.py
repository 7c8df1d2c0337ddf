"""Damages real objects deterministically: bits, bytes, pieces, tokens, and nodes of JSON trees."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

MOST_BYTES = 128 << 10
TOKENS: dict[str, tuple[bytes, ...]] = {
    "json": (
        *(b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b"}{", b"{}", b"null", b"NaN", b"1e999", b"-", b"\n"),
        *(b'{"a":', b'"\\ud800"', b"\\u0000", b"9" * 25, b"\xff\xfe", b"\xef\xbb\xbf", b'"}', b'{"', b"\xed\xa0\x80"),
    ),
    "text": (
        *(b",", b'"', b'""', b"\n", b"\r", b"\r\n", b"\t", b";", b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x85"),
        *(b"#Fields: ", b"#", b"-", b"9" * 30, b"1e400", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\x1c", b"{", b"["),
    ),
    "binary": (b"\0", b"\xff", b"\x7f\xff\xff\xff", b"\x80\x80\x80\x80\x10", b"Obj\x01", b"PAR1", b"\x02" * 16),
    "yaml": (
        *(
            b": ",
            b"- ",
            b"\n",
            b"  ",
            b"\t",
            b"&a ",
            b"*a",
            b"<<: *a",
            b"!!binary ",
            b"!!set",
            b"!x ",
            b"|",
            b">",
            b"?",
        ),
        *(b"{", b"}", b"[", b"]", b"#", b"'", b'"', b"%", b"@", b"`", b"---\n", b"...\n", b"null", b"~", b"9" * 5000),
        *(
            b"2001-99-99",
            b"0x",
            b"1e999",
            b".nan",
            b"0b1",
            b"1:2:3",
            b"\xff",
            b"\xef\xbf\xbe",
            b"\0",
            b"\xc2\x85",
            b"=\n",
        ),
    ),
}
_ODD_BYTES = (0, 1, 0x22, 0x2C, 0x7B, 0x7D, 0x7F, 0x80, 0xC3, 0xFE, 0xFF)
_REPEATS = (2, 3, 10, 100, 1_000, 1_005, 20_000)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 2**31, 2**63, 2**64, 10**20, 10**400, 1e300, -0.0, "", " ", "x" * 5_000),
    *("\0", "\u2028", "\U0001f600", "1e999", "-", "nan", "0001-01-01", "9999-12-31T23:59:59Z", "-5", "٣", "²", "1_0"),
    *([], {}, [[]], [None], {"": None}, {"a": {"a": {}}}, "0" * 5_000, "9" * 5_000, "2015-02-30", "24:00", "true"),
)
_DEPTHS = (10, 200, 330, 500, 900, 980, 990, 1_000, 1_010, 1_020, 1_030, 5_000)


def mutated(data: bytes, rng: Random, *, kind: str, others: Sequence[bytes] = ()) -> bytes:
    """Returns `data` after one to four mutations of `kind`, a key of `TOKENS`; `others` are inputs to splice with."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        if kind == "json" and rng.random() < 0.3:
            data = _tree_mutated(data, rng)
        else:
            data = rng.choice(_DAMAGES)(data, rng, kind, others)
    return data[:MOST_BYTES]


def _place(data: bytes, rng: Random) -> int:
    return rng.randrange(len(data) + 1)


def _span(data: bytes, rng: Random) -> tuple[int, int]:
    begin = _place(data, rng)
    length = rng.choice((1, 2, 4, 16, 64, rng.randrange(1 + len(data))))
    return begin, min(len(data), begin + length)


def _flip(data: bytes, rng: Random, kind: str, others: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8)) if data else 0):
        place = rng.randrange(len(changed))
        changed[place] = rng.choice((changed[place] ^ (1 << rng.randrange(8)), rng.choice(_ODD_BYTES)))
    return bytes(changed)


def _delete(data: bytes, rng: Random, kind: str, others: Sequence[bytes]) -> bytes:
    begin, end = _span(data, rng)
    return data[:begin] + data[end:]


def _double(data: bytes, rng: Random, kind: str, others: Sequence[bytes]) -> bytes:
    begin, end = _span(data, rng)
    return data[:end] + data[begin:end] * min(rng.choice(_REPEATS), 1 + MOST_BYTES // (1 + end - begin)) + data[end:]


def _insert_token(data: bytes, rng: Random, kind: str, others: Sequence[bytes]) -> bytes:
    place, token = _place(data, rng), rng.choice(TOKENS[kind])
    times = rng.choice((1, 1, 1, rng.choice(_REPEATS)))
    return data[:place] + token * min(times, 1 + MOST_BYTES // len(token)) + data[place:]


def _insert_noise(data: bytes, rng: Random, kind: str, others: Sequence[bytes]) -> bytes:
    place = _place(data, rng)
    return data[:place] + rng.randbytes(rng.choice((1, 2, 8, 40))) + data[place:]


def _cut(data: bytes, rng: Random, kind: str, others: Sequence[bytes]) -> bytes:
    return data[: _place(data, rng)] if rng.random() < 0.7 else data[_place(data, rng) :]


def _splice(data: bytes, rng: Random, kind: str, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others) if others else data
    begin, end = _span(other, rng)
    place = _place(data, rng)
    return data[:place] + other[begin:end] + data[rng.choice((place, _place(data, rng))) :]


_DAMAGES: tuple[Callable[[bytes, Random, str, Sequence[bytes]], bytes], ...] = (
    *(_flip, _flip, _delete, _double, _insert_token, _insert_token, _insert_noise, _cut, _splice),
)


def _tree_mutated(data: bytes, rng: Random) -> bytes:
    """Replaces, removes, nests or renames one value of a JSON document, or of one of its lines."""
    lines = data.split(b"\n") if rng.random() < 0.5 else [data]
    place = rng.randrange(len(lines))
    try:
        document = json.loads(lines[place])
        lines[place] = json.dumps(_changed(document, rng), ensure_ascii=rng.random() < 0.5).encode(
            "utf-8", "surrogatepass"
        )
    except (ValueError, RecursionError):
        return _flip(data, rng, "json", ())
    return b"\n".join(lines)


def _changed(value: Any, rng: Random) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        if rng.random() < 0.1:
            return {key: item for key, item in value.items() if key != name}
        if rng.random() < 0.1:
            return {**value, rng.choice(("", "a.b", "\0", "_record", "_seq", name.upper())): value[name]}
        return {**value, name: _changed(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        index = rng.randrange(len(value))
        return [*value[:index], _changed(value[index], rng), *value[index + 1 :]]
    if isinstance(value, str) and value[:1] in "{[" and rng.random() < 0.7:
        return _changed_text(value, rng)
    return rng.choice((rng.choice(ODD_VALUES), rng.choice(ODD_VALUES), [value], nested(value, rng)))


def _changed_text(value: str, rng: Random) -> str:
    try:
        return json.dumps(_changed(json.loads(value), rng))
    except (ValueError, RecursionError):
        return value[: len(value) // 2]


def nested(value: Any, rng: Random) -> Any:
    """Returns the value deep inside arrays or objects."""
    as_list = rng.random() < 0.5
    for _ in range(min(rng.choice(_DEPTHS), 940)):
        value = [value] if as_list else {"a": value}
    return value


def deep_json(rng: Random) -> bytes:
    """Returns an event with a value nested to about the depth limit of parsers."""
    depth = rng.choice(_DEPTHS) + rng.randrange(-9, 10)
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    field = rng.choice((b"device", b"params", b"tags", b"extra", b"name", b"id", b"place"))
    value = opening * depth + rng.choice((b"", b"1", b'"x"') if opening == b"[" else (b"1",)) + closing * depth
    return b'{"name":"login","time":1700000000,"id":"a","' + field + b'":' + value + b"}"
