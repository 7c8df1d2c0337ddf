"""Runs a judging process; returns its answers, or the input it crashed on and how."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.fuzz.cases import Case

ROOT = Path(__file__).resolve().parents[2]
#: Seconds without output after which a process counts as stalled; its CPU limit is far lower.
SILENT_SECONDS = 300.0
CURRENT = "current"


class Died(Exception):
    """Raised when the process has ended. `case` is its current input; None if it was not running the product."""

    def __init__(self, how: str, case: Case | None) -> None:
        super().__init__(how)
        self.how = how
        self.case = case


class JudgingProcess:
    """One process of `tests.fuzz.child`, started on first use and again after a crash."""

    def __init__(
        self, folder: Path, *, module: str = "tests.fuzz.child", silent_seconds: float = SILENT_SECONDS
    ) -> None:
        self._folder = folder
        self._module = module
        self._silent_seconds = silent_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Returns the answers to a request.

        Raises:
            Died: the process has ended, or was killed because it produced no output for too long.
        """
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._died("") from None
        while True:
            answer = self._line(process)
            if "done" in answer:
                return
            yield answer

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / CURRENT).unlink(missing_ok=True)
            paths = os.pathsep.join([str(ROOT / "include"), str(ROOT), os.environ.get("PYTHONPATH", "")])
            self._rest = b""
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, "--folder", str(self._folder)],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": paths,
                    "ARROW_IO_THREADS": "2",
                    "OMP_NUM_THREADS": "1",
                    "MALLOC_ARENA_MAX": "2",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(self._folder / "errors.log").open("wb"),
            )
        return self._process

    def _line(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdout is not None
        until = time.monotonic() + self._silent_seconds
        while b"\n" not in self._rest:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
            part = os.read(process.stdout.fileno(), 1 << 20) if ready else b""
            if not part:
                raise self._died("" if ready else f"said nothing for {self._silent_seconds:.0f} s")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _died(self, how: str) -> Died:
        process = self._process
        assert process is not None
        if how:
            process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None
        return Died(how or _described(code), self._current())

    def _current(self) -> Case | None:
        content = (self._folder / CURRENT).read_bytes() if (self._folder / CURRENT).exists() else b""
        return Case.decode(content[1:]) if content[:1] == b"p" else None


def _described(code: int) -> str:
    if code == -signal.SIGXCPU:
        return "was ended for its CPU"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with {code}"
