"""`erase`: deleting the rows of a hundred people from one table, compared with those of one person.

A purge rewrites the files that contain rows of these people. Players of a game play on most days, so the rows of one
person are already in most files; ninety-nine more people add search time but hardly any bytes. Results include bytes
written, files and rows deleted. A second comparison measures the time from a request to the destroyed key, against a
target of one minute.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure, single_result
from benchmarks.scratch_folders import copy_template, scratch_folder
from benchmarks.shredding import seconds_to_shredded

_DAYS, _PEOPLE, _MANY = 20, 2_000, 100
#: People in the vault, and the target for the time until the key of one of them is destroyed.
_VAULT, _SHREDDED_SECONDS = 20_000, 60.0
_KEY = "tables/bench/events"


def run(options: Options) -> list[Result]:
    """Creates a lake once and gives each repetition a copy."""
    rows = max(options.events, _DAYS * _PEOPLE)
    with _template(rows, options) as template:
        hundred, one = _Erase(template, _MANY), _Erase(template, 1)
        sizes = {"rows": rows, "days": _DAYS, "people": _PEOPLE}
        comparison = Comparison(
            metric="hundred_vs_one_seconds",
            ours=Side("hundred_people", hundred),
            other=Side("one_person", one),
            sizes=sizes,
        )
        (result,) = measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)
        written = (result.ours_parts["bytes_written"], result.other_parts["bytes_written"])
        by_bytes = single_result(
            BENCHMARK.name,
            "hundred_vs_one_bytes",
            written,
            other_name="one_person",
            sizes=sizes,
            unit="bytes",
            digits=0,
        )
    return [result, by_bytes, _shredding_seconds(options)]


def _shredding_seconds(options: Options) -> Result:
    """Measures one request in a vault of many people. A part contains the time for a hundred requests in one run."""
    options.progress(f"erase: time from a request to the destroyed key, vault of {_VAULT:,} people")
    with scratch_folder("erase_requests") as root:
        one, many = (
            seconds_to_shredded(root / str(requests), people=_VAULT, requests=requests) for requests in (1, _MANY)
        )
    return single_result(
        BENCHMARK.name,
        "request_to_shredded",
        (one, _SHREDDED_SECONDS),
        other_name="target",
        sizes={"people": _VAULT},
        digits=2,
        parts={"hundred_requests_seconds": round(many, 2)},
    )


def _token(number: int) -> str:
    digest = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=16).digest()
    return "p1_" + base64.b32encode(digest).decode().rstrip("=").lower()


@contextmanager
def _template(rows: int, options: Options) -> Iterator[Path]:
    import pyarrow as pa
    from deltalake import write_deltalake

    tokens = [_token(number) for number in range(_PEOPLE)]
    with scratch_folder("erase") as root:
        options.progress(f"erase: {rows:,} rows of {_PEOPLE:,} people in {_DAYS} days")
        for day in range(_DAYS):
            numbers = range(rows // _DAYS)
            table = pa.table(
                {
                    "event_date": [f"2026-03-{day + 1:02d}"] * len(numbers),
                    "player": [tokens[number % _PEOPLE] for number in numbers],
                    "level": [number % 60 for number in numbers],
                    "raw": [f'{{"level": {number % 60}, "at": {number}}}' for number in numbers],
                }
            )
            write_deltalake(str(root / _KEY), table, mode="append", partition_by=["event_date"])
        yield root


@dataclass(frozen=True, slots=True)
class _Erase:
    """One purge of one table."""

    template: Path
    people: int

    def __call__(self, clock: Clock) -> None:
        from deltaworks.control.objects import open_objects
        from deltaworks.privacy.erasure.purge_table import TablePurger, erasure_step
        from deltaworks.privacy.erasure.token_search import TokenSearch
        from deltaworks.specs.storage import StorageSpec
        from deltaworks.tables.lake import Lake

        with copy_template(self.template) as root:
            storage = StorageSpec(root=f"file://{root}")
            requests = {str(number): TokenSearch([_token(number)]) for number in range(self.people)}
            with clock:
                purger = TablePurger(
                    Lake(storage), open_objects(storage), _KEY, pipeline="bench", table="events", requests=requests
                )
                purge = purger.purge(erasure_step("bench", "events", 1))
            if purge.erased_after or purge.other_rows_after != purge.other_rows_before or not purge.erased_before:
                raise AssertionError(f"the purge failed or changed other rows: {purge}")
            clock.record(bytes_written=purge.bytes_written, files=len(purge.removed_files), rows=purge.erased_before)


BENCHMARK = Benchmark(
    name="erase",
    summary="deleting the rows of a hundred people from a table, against those of one person",
    run=run,
    tiny=TinySize(constants={"_DAYS": 3, "_PEOPLE": 50, "_MANY": 10, "_VAULT": 200}),
)
