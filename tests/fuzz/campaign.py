"""One run of the fuzzer: fuzzes the targets in turns until the time is over, then prints a table.

Failing inputs are saved with the command that replays them. Inputs that crashed their process are shrunk in new
processes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.cases import Case, replay_command
from tests.fuzz.process import Died, JudgingProcess
from tests.fuzz.shrinking import shrunk

_SLICE_SECONDS = 20.0
_LEAST_SECONDS = 0.2
_PROGRESS_SECONDS = 10.0
_EXAMPLES_OF_A_KIND = 3


@dataclass(slots=True)
class Tally:
    """Totals of one target. `repeated` counts inputs that failed like an earlier one."""

    inputs: int = 0
    events: int = 0
    quarantined: int = 0
    failures: int = 0
    repeated: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Campaign:
    """One run. `failures` are the saved inputs by signature; `lines` is the printed output."""

    targets: Sequence[str]
    seed: int
    seconds: float
    folder: Path
    module: str = "tests.fuzz.child"
    #: Turns of each variant of each target, as an alternative to a time.
    passes: int | None = None
    is_quiet: bool = False
    #: Every attempt to shrink a crashing input costs the start of a process.
    shrinking_seconds: float = 30.0
    tallies: dict[str, Tally] = field(default_factory=dict)
    failures: dict[str, list[Path]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    _began: float = 0.0
    _shown_at: float = 0.0

    def run(self) -> int:
        """Fuzzes until the time is over; returns 1 after any failure, else 0."""
        self._began = self._shown_at = time.monotonic()
        self.tallies = {name: Tally() for name in self.targets}
        rng = Random(self.seed)
        length = min(_SLICE_SECONDS, self.seconds / len(self.targets))
        turns = cycle(self.targets) if self.passes is None else iter(self.targets)
        with JudgingProcess(self.folder / "work", module=self.module) as process:
            for name in turns:
                left = self._began + self.seconds - time.monotonic()
                if left <= _LEAST_SECONDS and self.passes is None:
                    break
                self._slice(process, name, rng.getrandbits(32), min(length, left))
        self._say(self.table())
        return int(bool(self.failures))

    def _slice(self, process: JudgingProcess, name: str, seed: int, seconds: float) -> None:
        """Fuzzes one target for its time; starts a new process after each crash."""
        until = time.monotonic() + seconds
        while not self._lived(process, name, seed, max(_LEAST_SECONDS, until - time.monotonic())):
            seed += 1
            if self.passes is not None or until - time.monotonic() <= _LEAST_SECONDS:
                return

    def _lived(self, process: JudgingProcess, name: str, seed: int, seconds: float) -> bool:
        """Fuzzes one target; returns whether the judging process survived."""
        tally, before = self.tallies[name], Tally()
        began, lived = time.monotonic(), True
        request = {"target": name, "seed": seed, "seconds": seconds, "seen": list(self.failures), "passes": self.passes}
        try:
            for answer in process.ask(request):
                if "failure" in answer:
                    case = Case.decode(answer["case"].encode("latin-1"))
                    self._note(case, answer["failure"], answer["detail"])
                else:
                    before = self._add(tally, before, answer)
                self._show(name)
        except Died as died:
            lived = False
            tally.inputs += 1
            if died.case is None:
                # The slow reader itself exceeded the limits; that is no failure of the product.
                self._say(f"{name}: the slow reading {died.how}; the input is passed over")
            else:
                self._crashed(died)
        tally.seconds += time.monotonic() - began
        return lived

    @staticmethod
    def _add(tally: Tally, before: Tally, answer: dict[str, Any]) -> Tally:
        for figure in ("inputs", "events", "quarantined", "repeated"):
            setattr(tally, figure, getattr(tally, figure) + answer[figure] - getattr(before, figure))
            setattr(before, figure, answer[figure])
        tally.peak_bytes = max(tally.peak_bytes, answer["peak"])
        return before

    def _crashed(self, died: Died) -> None:
        case = died.case
        assert case is not None
        signature = f"{case.target}: the process {died.how}"
        if len(self.failures.get(signature, ())) < _EXAMPLES_OF_A_KIND:
            with JudgingProcess(self.folder / "shrinking", module=self.module) as process:

                def fails(data: bytes) -> bool:
                    smaller = Case(case.target, case.variant, data)
                    how = outcome(process, smaller)[0]
                    return how == signature

                data = shrunk(case.data, fails, seconds=self.shrinking_seconds)
            self._note(Case(case.target, case.variant, data), signature, died.how)
        else:
            self.tallies[case.target].repeated += 1

    def _note(self, case: Case, signature: str, detail: str) -> None:
        path = case.save(self.folder, note=signature)
        self.failures.setdefault(signature, []).append(path)
        self.tallies[case.target].failures += 1
        seconds = time.monotonic() - self._began
        self._say(
            f"FAILED after {seconds:.0f} s: {signature}\n  {case.variant}, {len(case.data)} bytes: {detail[:300]}"
        )
        self._say(f"  {replay_command(path)}")

    def _show(self, name: str) -> None:
        now = time.monotonic()
        if now - self._shown_at < _PROGRESS_SECONDS:
            return
        self._shown_at = now
        inputs = sum(tally.inputs for tally in self.tallies.values())
        rate = inputs / max(0.001, now - self._began)
        self._say(
            f"{now - self._began:5.0f} s  {name:12} {inputs} inputs, {rate:.0f} a second, {len(self.failures)} failures"
        )

    def _say(self, line: str) -> None:
        self.lines.append(line)
        if not self.is_quiet:
            print(line, flush=True)

    def table(self) -> str:
        """Returns the totals of each target."""
        heads = ("target", "inputs", "events", "quarantined", "failures", "repeated", "peak MiB", "inputs/s")
        rows = [heads] + [
            (
                name,
                *(
                    str(figure)
                    for figure in (tally.inputs, tally.events, tally.quarantined, tally.failures, tally.repeated)
                ),
                str(tally.peak_bytes >> 20),
                f"{tally.inputs / max(tally.seconds, 0.001):.0f}",
            )
            for name, tally in self.tallies.items()
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
        lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
        verdict = f"{len(self.failures)} kinds of failure" if self.failures else "nothing failed"
        return "\n".join([*lines, f"seed {self.seed}, {self.seconds:.0f} s: {verdict}"])


def outcome(process: JudgingProcess, case: Case) -> tuple[str, str]:
    """Returns the failure's signature and detail; empty without a failure."""
    try:
        answers = list(process.ask({"case": case.encode().decode("latin-1")}))
    except Died as died:
        return (f"{case.target}: the process {died.how}", died.how) if died.case else ("", "")
    return next(((a["failure"], a["detail"]) for a in answers if "failure" in a), ("", ""))


def replay(files: Sequence[tuple[Path, Case]], folder: Path, *, module: str = "tests.fuzz.child") -> dict[Path, str]:
    """Judges saved inputs again; returns the problems of those that still fail."""
    wrong = {}
    with JudgingProcess(folder, module=module) as process:
        for path, case in files:
            signature, detail = outcome(process, case)
            if signature:
                wrong[path] = f"{signature}: {detail}"
                print(f"{path.name}: {wrong[path]}", file=sys.stderr)
    return wrong
