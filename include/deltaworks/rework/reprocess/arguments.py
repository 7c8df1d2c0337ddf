"""The arguments of a reprocess, alike on the command line, in the job and in the form of its DAG."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

from deltaworks.errors import ConfigError
from deltaworks.rework.reprocess.plan import ReprocessRequest
from deltaworks.rework.reprocess.selection import Selection


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of the job's arguments."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--pipeline", required=True)
    made.add_argument("--id", default="", help="goes on with this reprocess, or begins it under this name")
    made.add_argument("--run", default="", help="the Airflow run that this is; gives the id, the same for every try")
    made.add_argument("--batches", default="", help="the first and the last batch, such as 10-20")
    made.add_argument("--files", default="", help="keys or patterns of keys with commas between them")
    made.add_argument("--events", default="", help="a time of events, such as 2026-01-01..2026-01-02 (excluded)")
    made.add_argument("--from-start", action="store_true")
    made.add_argument("--tables", default="", help="names with commas between them; by default all, and quarantine")
    made.add_argument("--shadow", action="store_true", help="into new tables beside the present ones")
    made.add_argument("--allow-missing", action="store_true", help="leave the rows of objects that are gone")
    made.add_argument("--exact", action="store_true", help="count by reading all objects")
    made.add_argument("--no-dry-run", dest="dry_run", action="store_false", help="do it, instead of counting")
    return made


def request(given: Mapping[str, object]) -> ReprocessRequest | None:
    """What the arguments ask for; None where they select nothing, to go on with what was planned.

    Raises:
        ConfigError: REPROCESS_SELECTION.
    """
    chosen = [given.get(name) for name in ("batches", "files", "events", "from_start")]
    if not any(chosen):
        return None
    batches, files, events = (str(given.get(name) or "") for name in ("batches", "files", "events"))
    return ReprocessRequest(
        selection=Selection(
            batches=_batches(batches) if batches else None,
            files=_files(files) if files else (),
            events=_events(events) if events else None,
            from_start=bool(given.get("from_start")),
        ),
        tables=tuple(name for name in str(given.get("tables") or "").split(",") if name),
        shadow=bool(given.get("shadow")),
        allow_missing=bool(given.get("allow_missing")),
    )


def _batches(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    if found is None:
        raise _wrong(f"{text!r} names no batches.", "Write the first and the last, such as 10-20.")
    first = int(found[1])
    return first, int(found[2]) if found[2] else first


def _files(text: str) -> tuple[str, ...]:
    """Keys and patterns; `@path` is a file with one on each line."""
    if not text.startswith("@"):
        return tuple(part for part in text.split(",") if part)
    try:
        lines = Path(text[1:]).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise _wrong(f"Cannot read {text[1:]}: {error.strerror}.", "Name a file with one key on each line.") from error
    return tuple(line.strip() for line in lines if line.strip())


def _events(text: str) -> tuple[str, str]:
    start, separator, end = text.partition("..")
    if not separator or not start or not end:
        raise _wrong(f"{text!r} is no time of events.", "Write its start and its end, such as 2026-01-01..2026-01-02.")
    return start, end


def _wrong(message: str, hint: str) -> ConfigError:
    return ConfigError("REPROCESS_SELECTION", message, hint=hint)
