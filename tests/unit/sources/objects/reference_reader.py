"""A slow and simple reader of complete files in plain Python, to compare landed objects with."""

from __future__ import annotations

import csv
import gzip
import io
import json
from typing import Any


def json_events(data: bytes) -> list[Any]:
    """Every value of a text of JSON values, elements of arrays one by one."""
    text, events, position = data.decode("utf-8-sig"), [], 0
    while True:
        while position < len(text) and text[position] in " \t\r\n":
            position += 1
        if position == len(text):
            return events
        value, position = json.JSONDecoder().raw_decode(text, position)
        events += value if isinstance(value, list) else [value]


def csv_events(data: bytes) -> list[dict[str, str]]:
    """Every record by the names of the first one."""
    return list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))


def lines(data: bytes) -> list[str]:
    """Every line that is not blank."""
    return [line for line in data.decode("utf-8-sig").replace("\r\n", "\n").split("\n") if line.strip()]


def field_lines(data: bytes) -> list[dict[str, str]]:
    """Every line of fields by the names of the `#Fields` line before it."""
    events, names = [], []
    for line in lines(data):
        if line.startswith("#Fields:"):
            names = line.removeprefix("#Fields:").split()
        elif not line.startswith("#"):
            events.append(dict(zip(names, line.split("\t"), strict=True)))
    return events


def content(stored: bytes) -> bytes:
    """What an object holds."""
    return gzip.decompress(stored)
