"""The judging process, with limits on memory and CPU, so that a crash, bomb or stall only ends this process.

`python -m tests.fuzz.child --folder F` reads requests from standard input, one JSON line each, and answers each with
JSON lines; the last one has `done`. The current input is in `F/current`, where the parent reads it after a crash.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from tests.fuzz import registry
from tests.fuzz.cases import Case, Failure, Verdict
from tests.fuzz.judge import BETWEEN, PRODUCT, failure, judge
from tests.fuzz.mutations import mutated
from tests.fuzz.shrinking import shrunk

CURRENT = "current"
#: Memory that one input may add, and the address space limit of the process.
MOST_RESIDENT_BYTES = 512 << 20
MOST_ADDRESSED_BYTES = 1 << 30
#: CPU limit after which the kernel ends the process.
MOST_CPU_SECONDS = 20
_EXAMPLES_A_ROUND = 100
_SHRINKING_SECONDS = 6.0
_ENDLESS_SECONDS = 1e9
_PAGE = resource.getpagesize()


class Bench:
    """Judges inputs one after another under limits, and stores the current one for the parent."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._current = os.open(folder / CURRENT, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        self.most_grown_bytes = 0

    def judge(self, case: Case) -> Verdict:
        """Returns the verdict. The memory limit includes memory that the product used and released again."""
        content = case.encode()
        os.ftruncate(self._current, 0)
        os.pwrite(self._current, PRODUCT + content, 0)
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + MOST_CPU_SECONDS + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        before, peak = _memory()[1], 0
        # A process's rusage starts with its parent's peak.
        Path("/proc/self/clear_refs").write_text("5")

        def at(phase: bytes) -> None:
            nonlocal peak
            os.pwrite(self._current, phase, 0)
            # The limits exclude the generation of inputs and the slow reader.
            most = _memory()[0] + MOST_ADDRESSED_BYTES if phase == PRODUCT else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
            if phase == BETWEEN and not peak:
                peak = _peak_bytes()

        verdict = judge(case, at=at)
        grown = peak - before
        self.most_grown_bytes = max(self.most_grown_bytes, grown)
        if grown > MOST_RESIDENT_BYTES:
            problem = f"took {grown >> 20} MiB of memory"
            verdict = Verdict(verdict.events, verdict.quarantined, (problem, *verdict.problems))
        return verdict


def _memory() -> tuple[int, int]:
    """Returns the process's address space and resident memory, in bytes."""
    addressed, resident, *_ = Path("/proc/self/statm").read_text().split()
    return int(addressed) * _PAGE, int(resident) * _PAGE


def _peak_bytes() -> int:
    """Returns the peak of resident memory since the last reset."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


class Hunt:
    """Generates inputs for one target, alternating between Hypothesis and damaged real objects, until the time is over.

    Args:
        passes: number of turns of each variant, without a time limit; None: until `seconds` are over.
    """

    def __init__(
        self, bench: Bench, target: str, *, seed: int, seconds: float, seen: frozenset[str], passes: int | None
    ) -> None:
        self._bench = bench
        self._target = registry.target(target)
        self._rng = Random(f"{target}/{seed}")
        self._until = time.monotonic() + (seconds if passes is None else _ENDLESS_SECONDS)
        self._passes = passes
        self._seen = set(seen)
        self._reported_at = 0.0
        self.inputs = self.events = self.quarantined = self.repeated = 0

    def run(self) -> Iterator[dict[str, Any]]:
        """Yields progress and failures as lines for the parent process."""
        variants = list(self._target.variants())
        passes = 0
        while time.monotonic() < self._until and passes != self._passes:
            passes += 1
            self._rng.shuffle(variants)
            for variant in variants:
                yield from self._made(variant)
                yield from self._damaged(variant)
                if time.monotonic() >= self._until:
                    break
        yield self._progress()

    def _progress(self) -> dict[str, Any]:
        return {
            "inputs": self.inputs,
            "events": self.events,
            "quarantined": self.quarantined,
            "repeated": self.repeated,
            "peak": self._bench.most_grown_bytes,
        }

    def _judge(self, case: Case) -> Failure | None:
        verdict = self._bench.judge(case)
        self.inputs += 1
        self.events += verdict.events
        self.quarantined += verdict.quarantined
        return failure(case, verdict)

    def _made(self, variant: str) -> Iterator[dict[str, Any]]:
        """Judges a round of generated inputs; yields Hypothesis' smallest example of each new kind of failure."""
        smallest: list[Failure] = []
        until = self._until

        def examine(data: bytes) -> None:
            if time.monotonic() > until:
                return
            failed = self._judge(Case(self._target.name, variant, data))
            if failed is None:
                return
            if failed.signature in self._seen and not smallest:
                self.repeated += 1
                return
            if smallest and failed.signature != smallest[-1].signature:
                return
            smallest.append(failed)
            raise AssertionError(failed.signature)

        def shrinking(data: bytes) -> None:
            nonlocal until
            try:
                examine(data)
            except AssertionError:
                until = min(until, time.monotonic() + _SHRINKING_SECONDS) if len(smallest) == 1 else until
                raise

        run = settings(
            max_examples=_EXAMPLES_A_ROUND,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,
        )(seed(self._rng.getrandbits(63))(given(self._target.inputs(variant))(shrinking)))
        try:
            run()
        except BaseException as error:  # Hypothesis raises this for a failure, or for one that does not reproduce
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError) or not smallest:
                raise
        if smallest:
            yield self._reported(min(smallest, key=lambda failed: len(failed.case.data)))
        yield from self._due_progress()

    def _damaged(self, variant: str) -> Iterator[dict[str, Any]]:
        """Judges a round of damaged real objects."""
        from tests.fuzz.seeds import seeds

        objects = seeds(self._target.name, variant)
        for _ in range(_EXAMPLES_A_ROUND if objects else 0):
            if time.monotonic() >= self._until:
                return
            data = mutated(self._rng.choice(objects), self._rng, kind=self._target.kind, others=objects)
            failed = self._judge(Case(self._target.name, variant, data))
            if failed is not None and failed.signature in self._seen:
                self.repeated += 1
            elif failed is not None:
                yield self._reported(failed)
            yield from self._due_progress()

    def _reported(self, failed: Failure) -> dict[str, Any]:
        self._seen.add(failed.signature)

        def fails(data: bytes) -> bool:
            case = Case(failed.case.target, failed.case.variant, data)
            again = failure(case, self._bench.judge(case))
            return again is not None and again.signature == failed.signature

        data = shrunk(failed.case.data, fails, seconds=_SHRINKING_SECONDS)
        case = Case(failed.case.target, failed.case.variant, data)
        last = failure(case, self._bench.judge(case)) or failed
        return {"failure": last.signature, "detail": last.detail, "case": last.case.encode().decode("latin-1")}

    def _due_progress(self) -> Iterator[dict[str, Any]]:
        if time.monotonic() - self._reported_at > 0.5:
            self._reported_at = time.monotonic()
            yield self._progress()


def _answers(bench: Bench, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "case" in request:
        case = Case.decode(request["case"].encode("latin-1"))
        failed = failure(case, verdict := bench.judge(case))
        yield {"events": verdict.events, "quarantined": verdict.quarantined} | (
            {"failure": failed.signature, "detail": failed.detail} if failed else {}
        )
        return
    hunt = Hunt(
        bench,
        request["target"],
        seed=request["seed"],
        seconds=request["seconds"],
        seen=frozenset(request["seen"]),
        passes=request["passes"],
    )
    yield from hunt.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    # Standard output is reserved for answers; other output must not mix with them.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    bench = Bench(options.folder)
    for line in sys.stdin:
        for answer in _answers(bench, json.loads(line)):
            print(json.dumps(answer), file=answers, flush=True)
        print(json.dumps({"done": True}), file=answers, flush=True)


if __name__ == "__main__":
    main()
