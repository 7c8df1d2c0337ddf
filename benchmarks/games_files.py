"""Generated game events on disk: as they land, and in the forms that a plain Spark reader needs. Created on first use.

There are three forms of the same pieces, gzipped and in the same number of files:

- `landed`: JSON objects concatenated without separators, as Firehose delivers them.
- `lines`: one piece per line, otherwise unchanged. Spark's JSON reader reads only the first object of a line.
- `unwrapped`: one event per line, extracted from the string under `body` beforehand. A piece without an event is kept
  unchanged.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from deltaworks.events.formats.json import read_events
from deltaworks.specs.catalog import project_root
from generator.games import write_files
from generator.settings import FaultRates, GamesSettings

#: An object closes after 5,000 events or one hour: a few hundred objects of a few hundred KB for a million events.
_EVENTS_PER_FILE = 5_000
_BUFFER_SECONDS = 3_600
_GZIP_LEVEL = 6


def bench_folder() -> Path:
    """Returns the folder for the benchmarks' data, which git ignores."""
    folder = project_root() / ".deltaworks" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class GamesFiles:
    """Paths of the data as landed objects, as lines and as unwrapped lines, and its size. `bytes` is the uncompressed
    size of the landed objects.
    """

    landed: Path
    lines: Path
    unwrapped: Path
    events: int
    quarantined: int
    files: int
    bytes: int
    compressed_bytes: int

    def sizes(self) -> dict[str, int]:
        """Returns the sizes that a result reports about its data."""
        return {
            "events": self.events,
            "quarantined": self.quarantined,
            "files": self.files,
            "bytes": self.bytes,
            "compressed_bytes": self.compressed_bytes,
        }


def games_files(events: int, *, progress: Callable[[str], None], faults: FaultRates | None = None) -> GamesFiles:
    """Returns about `events` events in all three forms, created on first use. `faults` defaults to the generator's
    rates.
    """
    settings = GamesSettings(
        target_events=events,
        events_per_file=_EVENTS_PER_FILE,
        buffer_seconds=_BUFFER_SECONDS,
        rates=faults or FaultRates(),
    )
    digest = hashlib.sha256(json.dumps(settings.as_mapping(), sort_keys=True).encode()).hexdigest()[:8]
    folder = bench_folder() / f"games-{events}-{digest}"

    def make() -> dict[str, int]:
        progress(f"generating {events:,} events, first use only (about a minute per million)")
        return _generate(settings, folder)

    return cached_files(folder, make)


def cached_files(folder: Path, make: Callable[[], Mapping[str, int]]) -> GamesFiles:
    """Returns the files in `folder`, created on first use. `make` writes them and returns their sizes."""
    record = folder / "record.json"
    if not record.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        # The record is written last: a folder without it was interrupted and is created again.
        record.write_text(json.dumps(make()))
    fields = json.loads(record.read_text())
    return GamesFiles(landed=folder / "landed", lines=folder / "lines", unwrapped=folder / "unwrapped", **fields)


def repeat_files(files: GamesFiles, times: int) -> GamesFiles:
    """Returns the same events `times` times, in as many more files. The copies are hard links and use no disk space."""
    if times == 1:
        return files
    folder = files.landed.parent / f"times-{times}"

    def link() -> dict[str, int]:
        for form in (files.landed, files.lines, files.unwrapped):
            for path in landed_objects(form):
                beside = folder / form.name / path.relative_to(form).parent
                beside.mkdir(parents=True, exist_ok=True)
                for copy in range(times):
                    (beside / f"{copy:03d}-{path.name}").hardlink_to(path)
        return {name: number * times for name, number in files.sizes().items()}

    return cached_files(folder, link)


def _generate(settings: GamesSettings, folder: Path) -> dict[str, int]:
    truth = write_files(settings, folder / "landed")
    paths = landed_objects(folder / "landed")
    for form in ("lines", "unwrapped"):
        (folder / form).mkdir()
    raw_bytes = 0
    for number, path in enumerate(paths):
        payload = gzip.decompress(path.read_bytes())
        raw_bytes += len(payload)
        pieces = [raw for _, raw in read_events(payload)]
        name = f"{number:06d}.json.gz"
        write_lines(folder / "lines" / name, pieces)
        write_lines(folder / "unwrapped" / name, [_event(piece) for piece in pieces])
    return {
        "events": truth.accepted_rows,
        "quarantined": truth.quarantined_rows,
        "files": len(paths),
        "bytes": raw_bytes,
        "compressed_bytes": sum(path.stat().st_size for path in paths),
    }


def landed_objects(folder: Path) -> list[Path]:
    """Returns the landed objects in order of delivery, which is the order of their names."""
    return sorted(folder.rglob("*.gz"), key=lambda path: path.name)


def write_lines(path: Path, pieces: list[bytes]) -> None:
    """Writes a gzipped file with one piece per line."""
    one_per_line = b"\n".join(piece.replace(b"\n", b" ") for piece in pieces)
    path.write_bytes(gzip.compress(one_per_line, _GZIP_LEVEL, mtime=0))


def _event(piece: bytes) -> bytes:
    try:
        body = orjson.loads(piece)["body"]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return piece
    return body.encode() if isinstance(body, str) else piece
