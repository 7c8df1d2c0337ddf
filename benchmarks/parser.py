"""`parser`: the CPU time to parse events by columns, against parsing them by rows.

Deltaworks: events are decoded into columns per event type (`deltaworks.events.parse`). Baseline: the same
parser restricted to its row path, which it uses for events that cannot be decoded by columns. Both parse the same
objects in one process and must return the same number of rows.

- `columnar_vs_rows`: events without faults.
- `columnar_vs_rows_faulty`: with the generator's usual faults, one event in two hundred in quarantine.

Measures CPU seconds of one thread, without Python's cyclic garbage collector, as in a task. Decompression is not
measured.
"""

from __future__ import annotations

import gc
import gzip
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Run, Side, TinySize, measure

if TYPE_CHECKING:
    from benchmarks.games_files import GamesFiles
    from deltaworks.events.chunks import Payload
    from deltaworks.specs.pipeline import PipelineSpec

#: More events than this do not change the result.
_MAX_EVENTS = 100_000


class _CpuClock(Clock):
    """Measures the CPU time of the process instead of wall clock time."""

    def __enter__(self) -> Clock:
        gc.collect()
        gc.disable()
        self._started = time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._started
        gc.enable()


def run(options: Options) -> list[Result]:
    """Measures without faults and with them."""
    import pyarrow as pa

    from benchmarks import games_files, sides
    from generator.settings import FaultRates

    pa.set_cpu_count(1)
    spec = sides.games_spec()
    none = FaultRates(
        **dict.fromkeys(("malformed", "without_time", "unknown_name", "type_mismatch", "missing_required"), 0.0)
    )
    results = []
    for metric, faults in (("columnar_vs_rows", none), ("columnar_vs_rows_faulty", None)):
        events = min(options.events, _MAX_EVENTS)
        files = games_files.games_files(events, progress=options.progress, faults=faults)
        payloads = _payloads(files)
        comparison = Comparison(
            metric=metric,
            ours=Side(f"{metric}_columns", _side(spec, payloads, files.events + files.quarantined, by_columns=True)),
            other=Side(f"{metric}_rows", _side(spec, payloads, files.events + files.quarantined, by_columns=False)),
            sizes=files.sizes(),
        )
        results += measure(BENCHMARK.name, [comparison], repeats=options.repeats, progress=options.progress)
    return results


def _payloads(files: GamesFiles) -> list[Payload]:
    from benchmarks.games_files import landed_objects
    from deltaworks.events.chunks import Payload

    return [
        Payload(seq, path.name, gzip.decompress(path.read_bytes()))
        for seq, path in enumerate(landed_objects(files.landed), 1)
    ]


def _side(spec: PipelineSpec, payloads: Sequence[Payload], events: int, *, by_columns: bool) -> Run:
    """Creates a side that parses all payloads. Raises if an event is lost."""
    from deltaworks.events.chunks import BatchMetadata
    from deltaworks.events.parse import Parser

    stamp = BatchMetadata(1, 1_717_200_000_000_000, "benchmark")

    def parse(clock: Clock) -> None:
        parser = Parser(spec, columnar_from_bytes=0 if by_columns else None)
        cpu, rows = _CpuClock(), 0
        with cpu:
            for name, part in parser.parse(payloads, stamp):
                rows += part.num_rows if name in ("events", "quarantine") else 0
        if rows != events:
            raise RuntimeError(f"parsing returned {rows} of {events} events")
        clock.seconds = cpu.seconds
        clock.record(microseconds_an_event=cpu.seconds / rows * 1e6, events_by_columns=parser.columnar_count)

    return parse


BENCHMARK = Benchmark(
    name="parser",
    summary="CPU time to parse events by columns, against parsing the same events by rows",
    run=run,
    tiny=TinySize(),
)
