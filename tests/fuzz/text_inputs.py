"""Hypothesis strategies for JSON, CSV, TSV and text lines: mostly valid, partly malformed, in all notations."""

from __future__ import annotations

import csv
import io
import json
from random import Random
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.mutations import ODD_VALUES, deep_json

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.text('{}[]"\\ ,:\n\té', max_size=12)
NAMES = st.sampled_from(["order", "refund", "login", "login", "other", "", "Order", "login "])
TIMES = st.integers(1_600_000_000, 1_700_000_000) | st.sampled_from(
    [0, -1, 253_402_300_799, 253_402_300_800, -2_208_988_800, -2_208_988_801, 1e9, 1.5, "1700000000", 10**18, True]
)
VALUES = st.recursive(
    st.sampled_from(ODD_VALUES) | TEXTS | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
RIGHT_EVENTS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["order", "refund", "login"]),
        "time": st.integers(10**9, 2 * 10**9),
        "id": st.text("ab1", min_size=1),
    },
    optional={"device": st.text("xyz-", max_size=5)},
)
ODD_EVENTS = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES | VALUES,
        "time": TIMES | VALUES,
        "id": st.text(max_size=4) | VALUES,
        "device": TEXTS | VALUES,
        "params": st.fixed_dictionaries({}, optional=dict.fromkeys(["level", "score", "seen", "day", "blob"], VALUES))
        | VALUES,
        "tags": st.lists(TEXTS, max_size=3) | VALUES,
        "weights": st.dictionaries(TEXTS, VALUES, max_size=2) | VALUES,
        "place": st.fixed_dictionaries({}, optional={"x": VALUES, "at": st.lists(VALUES, max_size=2)}) | VALUES,
        "amount": st.decimals(allow_nan=False, allow_infinity=False, places=2).map(str) | VALUES,
        "web": VALUES,
        "extra": VALUES,
    },
)
EVENTS = RIGHT_EVENTS | ODD_EVENTS


def _dumped(value: Any, ascii_only: bool = False) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


WRITTEN = st.builds(_dumped, EVENTS, st.booleans())
DEEP = st.integers(0, 2**32).map(lambda seed: deep_json(Random(seed)))
JUNK = st.sampled_from(
    [
        b"x",
        b"}",
        b"{",
        b'{"a":',
        b'"',
        b"[1,",
        b"\xff\xfe",
        b"nul",
        b'{"name":"login","time":17',
        b"{}",
        b"1",
        b'"t"',
        b"\\",
    ]
)
#: Long repetitions, on which a reader that retries takes quadratic time: prefix, repeated part, suffix.
_SCALE = st.tuples(
    st.sampled_from([b"", b'{"a":"', b'{"a":', b"[", b'"', b"{" * 3, b'{"k":' * 900 + b"["]),
    st.sampled_from(
        [b"}{", b"{}", b"1,", b"{ ", b'{"', b" 1", b'{"a":NaN}', b'{"a":{"b":1}', b"[{", b"\\", b"{},", b'}{"a":"']
    ),
    st.sampled_from([b"", b'"}', b"}", b"]", b'{"a":"', b"}{" * 300, b" 1" * 5_000]),
)
SCALE = st.builds(
    lambda parts, size: parts[0] + parts[1] * (size // len(parts[1])) + parts[2],
    _SCALE,
    st.sampled_from([500, 500, 4_000, 40_000]),
)
JSON_PIECES = st.lists(st.one_of(WRITTEN, WRITTEN, WRITTEN, DEEP, JUNK), max_size=6)
SEPARATORS = st.sampled_from([b"", b"\n", b"\n", b"\r\n", b" ", b",", b"  \t\n\n "])


def json_payloads() -> st.SearchStrategy[bytes]:
    """Generates values on lines, concatenated, in arrays or indented; broken pieces; and long repetitions."""
    pieces = st.builds(lambda separator, pieces: separator.join(pieces), SEPARATORS, JSON_PIECES)
    return st.one_of(
        pieces,
        pieces,
        pieces,
        st.builds(lambda events: b"\n".join(map(_dumped, events)), st.lists(RIGHT_EVENTS, min_size=1, max_size=8)),
        st.builds(
            lambda events, indent: json.dumps(events, indent=indent).encode(),
            st.lists(EVENTS, max_size=5),
            st.sampled_from([None, 2]),
        ),
        st.builds(_cut_line, st.lists(RIGHT_EVENTS, min_size=2, max_size=6), st.integers(0, 5), st.integers(1, 60)),
        SCALE,
    )


def _cut_line(events: list[dict[str, Any]], which: int, length: int) -> bytes:
    lines = [_dumped(event) for event in events]
    lines[which % len(lines)] = lines[which % len(lines)][:length]
    return b"\n".join(lines)


def wrapped_payloads() -> st.SearchStrategy[bytes]:
    """Generates API Gateway requests: `body` holds the event or an array of events, as a string or a value."""
    bodies = st.one_of(
        EVENTS,
        EVENTS.map(json.dumps),
        st.lists(EVENTS, max_size=3),
        st.lists(EVENTS, max_size=3).map(json.dumps),
        DEEP.map(lambda event: event.decode()),
        VALUES,
        st.sampled_from([" [", "\t[1]", "[[]]", '"x"', "{", "[" * 2_000]),
    )
    requests = st.builds(lambda body, method: {"httpMethod": method, "body": body}, bodies, TEXTS).map(_dumped)
    return st.builds(
        lambda separator, pieces: separator.join(pieces), SEPARATORS, st.lists(requests | JUNK, min_size=1, max_size=4)
    )


FIELD_TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=6),
    st.sampled_from(
        ["order", "login", "1700000000", "-5", "9" * 30, "[1]", '{"x":1}', "true", "-", " ", "1e5", "٣", "9" * 5_000]
    ),
)
_RECORD = st.one_of(
    RIGHT_EVENTS.map(lambda event: [event["name"], str(event["time"]), event["id"], event.get("device", "")]),
    st.lists(FIELD_TEXTS, min_size=4, max_size=4),
    st.lists(FIELD_TEXTS, max_size=6),
)
RAW_LINES = st.lists(
    st.sampled_from(
        [
            b"login,1700000000,a,b",
            b'"login",1700000000,a,"b\nc"',
            b'"open',
            b'"x"y,1,2,3',
            b"",
            b" ",
            b"a,b",
            b"\xff,1,2,3",
            b"login,1700000000,\xc3,d",
            b"login\t1700000000\ta\tb",
            b"#Fields: name time id device",
            b"#x",
            b"\0",
            b'login,1700000000,"a""b",',
        ]
    )
)


def csv_payloads(delimiter: str, quote: str, header: bool) -> st.SearchStrategy[bytes]:
    """Generates CSV as writers produce it, and lines that no writer produces."""
    heads = st.sampled_from(
        [
            b"name,time,id,device",
            b"name,time,id,device",
            b" name , time,id,device",
            b"name,time,id",
            b"a,a",
            b"name,time,id,\xff",
            b"name,time,id,device,params",
            b'"name","time"',
            b"name,,id",
            b"name,time,id,amount,tags,place",
        ]
    )
    head = heads.map(lambda text: text.replace(b",", delimiter.encode()) + b"\n") if header else st.just(b"")

    def written(records: list[list[str]], end: str, quoting: Any) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.writer(text, delimiter=delimiter, quotechar=quote, lineterminator=end, quoting=quoting)
        for record in records:
            try:
                writer.writerow(record)
            except csv.Error:
                continue
        return text.getvalue().encode("utf-8", "surrogatepass")

    bodies = st.one_of(
        st.builds(
            written,
            st.lists(_RECORD, max_size=6),
            st.sampled_from(["\n", "\r\n", "\r"]),
            st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
        ),
        st.builds(
            lambda lines, end: end.join(lines).replace(b",", delimiter.encode()),
            RAW_LINES,
            st.sampled_from([b"\n", b"\r\n", b"\r"]),
        ),
        st.sampled_from([b'"' + b"a\n" * 2_500, b'"\n' * 2_000, b"," * 20_000, b'""' * 9_000]),
    )
    return st.builds(lambda first, body: first + body, head, bodies)


def line_payloads(fields: bytes) -> st.SearchStrategy[bytes]:
    """Generates tab-separated lines after `#Fields:` or other comment lines."""
    head = st.sampled_from(
        [
            fields,
            fields,
            b"",
            b"#Version: 1.0\n" + fields,
            b"#Fields:\n",
            b"#Fields: name name\n",
            b"#Fields: date time name id\n",
        ]
    )
    lines = st.lists(
        _RECORD.map(lambda record: "\t".join(record).encode("utf-8", "surrogatepass"))
        | st.sampled_from([b"", b"#", b" ", b"\x1c", fields.strip()])
        | RAW_LINES.map(b"\n".join)
    )
    return st.builds(lambda first, rest, end: first + end.join(rest), head, lines, st.sampled_from([b"\n", b"\r\n"]))
