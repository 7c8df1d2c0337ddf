"""Generated games events on disk, made once: as they land, and as a plain Spark reader needs them.

Three forms of the same pieces, each gzipped and in the same number of files:

- `landed`: as Firehose delivers them, JSON objects one behind the other with nothing between.
- `lines`: one piece a line, nothing else changed. Spark's JSON reader finds only the first object of a line.
- `unwrapped`: one event a line, taken out of the string under `body` beforehand. A piece that holds no event is
  kept as it is.
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

#: An object of 5,000 events or an hour: a few hundred objects of a few hundred KB each for a million events.
_EVENTS_PER_FILE = 5_000
_BUFFER_SECONDS = 3_600
_GZIP_LEVEL = 6


def bench_folder() -> Path:
    """Where benchmarks keep their data; ignored by git."""
    folder = project_root() / ".deltaworks" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True, slots=True, kw_only=True)
class GamesFiles:
    """The files and how much they hold. `bytes` are uncompressed, of the landed form."""

    landed: Path
    lines: Path
    unwrapped: Path
    events: int
    quarantined: int
    files: int
    bytes: int
    compressed_bytes: int

    def sizes(self) -> dict[str, int]:
        """What a figure says about its data."""
        return {
            "events": self.events,
            "quarantined": self.quarantined,
            "files": self.files,
            "bytes": self.bytes,
            "compressed_bytes": self.compressed_bytes,
        }


def games_files(events: int, *, progress: Callable[[str], None], faults: FaultRates | None = None) -> GamesFiles:
    """About `events` events in all three forms, with the generator's usual faults or these; made once and kept."""
    settings = GamesSettings(
        target_events=events,
        events_per_file=_EVENTS_PER_FILE,
        buffer_seconds=_BUFFER_SECONDS,
        rates=faults or FaultRates(),
    )
    digest = hashlib.sha256(json.dumps(settings.as_mapping(), sort_keys=True).encode()).hexdigest()[:8]
    folder = bench_folder() / f"games-{events}-{digest}"

    def make() -> dict[str, int]:
        progress(f"generating {events:,} events once (about a minute a million)")
        return _generate(settings, folder)

    return cached_files(folder, make)


def cached_files(folder: Path, make: Callable[[], Mapping[str, int]]) -> GamesFiles:
    """The files in `folder`, made on first use; `make` puts them there and says how much they hold."""
    record = folder / "record.json"
    if not record.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        # The record is written last: a folder without it was interrupted and is made again.
        record.write_text(json.dumps(make()))
    fields = json.loads(record.read_text())
    return GamesFiles(landed=folder / "landed", lines=folder / "lines", unwrapped=folder / "unwrapped", **fields)


def repeat_files(files: GamesFiles, times: int) -> GamesFiles:
    """The same events `times` over, in as many more files: links, so that they take no room."""
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
    """The landed objects in order of delivery: their names begin with the time."""
    return sorted(folder.rglob("*.gz"), key=lambda path: path.name)


def write_lines(path: Path, pieces: list[bytes]) -> None:
    """A gzipped file of one piece a line."""
    one_per_line = b"\n".join(piece.replace(b"\n", b" ") for piece in pieces)
    path.write_bytes(gzip.compress(one_per_line, _GZIP_LEVEL, mtime=0))


def _event(piece: bytes) -> bytes:
    try:
        body = orjson.loads(piece)["body"]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        return piece
    return body.encode() if isinstance(body, str) else piece
