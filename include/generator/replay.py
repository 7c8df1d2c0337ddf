"""Replays a file of JSON lines as gzipped objects, in the order of its lines."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import BinaryIO, cast

from deltaworks.errors import ConfigError
from generator.delivery import Delivery

_GZIP_MAGIC = b"\x1f\x8b"


def replay_lines(
    path: Path,
    *,
    lines_per_object: int = 500,
    prefix: str = "edits/",
    start: datetime = datetime(2015, 9, 12, tzinfo=UTC),
    seconds_apart: float = 60.0,
) -> Iterator[Delivery]:
    """Splits the file's lines into gzipped objects of JSON lines. Skips blank lines and does not parse the others.

    Args:
        start: simulated landing time of the first object; each later one lands `seconds_apart` later.
            Keys contain the landing time (`<prefix>YYYY/MM/DD/HH/...`), not event times.

    Raises:
        ConfigError: EVENTS_MISSING, EVENTS_EMPTY, or EVENTS_NOT_LINES for a file that is one JSON array.
    """
    if lines_per_object < 1:
        raise ConfigError("GENERATOR_SETTING_INVALID", "lines_per_object must be 1 or more.")
    with _open_lines(path) as stream:
        lines = (line for line in (raw.rstrip(b"\r\n") for raw in stream) if line.strip())
        number = -1
        while chunk := list(islice(lines, lines_per_object)):
            number += 1
            if number == 0 and chunk[0].lstrip().startswith(b"["):
                raise ConfigError(
                    "EVENTS_NOT_LINES", f"{path} begins with `[`: it is one JSON array, not one event per line."
                )
            landed_at = start + timedelta(seconds=number * seconds_apart)
            key = f"{prefix}{landed_at:%Y/%m/%d/%H}/{_stem(path)}-{landed_at:%Y-%m-%d-%H-%M-%S}-{number:06d}.json.gz"
            body = gzip.compress(b"\n".join(chunk) + b"\n", 6, mtime=0)
            yield Delivery(key=key, body=body, events=len(chunk), delivered_at=landed_at)
    if number < 0:
        raise ConfigError("EVENTS_EMPTY", f"{path} holds no events.")


def _open_lines(path: Path) -> BinaryIO:
    try:
        with path.open("rb") as stream:
            is_gzip = stream.read(2) == _GZIP_MAGIC
        return cast(BinaryIO, gzip.open(path, "rb")) if is_gzip else path.open("rb")
    except OSError as error:
        raise ConfigError("EVENTS_MISSING", f"Cannot read {path}: {error.strerror}.") from error


def _stem(path: Path) -> str:
    return path.name.split(".")[0] or "events"
