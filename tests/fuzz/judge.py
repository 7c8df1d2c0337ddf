"""Judges one input: runs the product on it twice, then the slow reader, and describes the difference.

An exception that leaves the product is a problem, described by its place in the code, so that similar failures share a
signature.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fuzz import registry
from tests.fuzz.cases import Case, Failure, Verdict

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

PRODUCT, READER, BETWEEN = b"p", b"r", b"-"
#: CPU limit for reading one input once; an input has at most 128 KiB, or 4 MiB decompressed.
MOST_CPU_SECONDS = 4.0
_FOLDERS = ("deltaworks", "generator", "collector")


def judge(case: Case, *, at: Callable[[bytes], None] = lambda _: None, target: Target | None = None) -> Verdict:
    """Returns the problem in the product's reading of one input.

    Args:
        at: called with the next phase (`PRODUCT`, `READER`) or after the last one (`BETWEEN`), for the parent process.
    """
    target = target or registry.target(case.target)
    at(PRODUCT)
    began = time.process_time()
    try:
        observed = target.observe(case)
        seconds = time.process_time() - began
        again = target.observe(case)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in a Rust library is not an Exception
        return Verdict(problems=(f"raised {_described(error)}",))
    finally:
        at(BETWEEN)
    events, quarantined = target.counts(observed)
    if seconds > MOST_CPU_SECONDS:
        return Verdict(events, quarantined, (f"took {seconds:.1f} s of CPU",))
    if observed.differs(again):
        return Verdict(events, quarantined, ("read twice, it comes to other rows",))
    at(READER)
    try:
        return Verdict(events, quarantined, tuple(target.problems(case, observed)))
    finally:
        at(BETWEEN)


def failure(case: Case, verdict: Verdict) -> Failure | None:
    """Returns the verdict as a failure, or None."""
    if not verdict.problems:
        return None
    return Failure(case, f"{case.target}: {_without_values(verdict.problems[0])}", "; ".join(verdict.problems))


def _without_values(problem: str) -> str:
    """Removes values from a problem's text, so that problems of one kind are equal."""
    head = problem.split("\n", maxsplit=1)[0]
    if not head.startswith("raised "):
        head = re.sub(r"['\"{\[(<].*", "", head)
    return re.sub(r"\d+(\.\d+)?", "N", head.partition(": ")[0]).strip()


def _described(error: BaseException) -> str:
    """Returns an error's type, the product line that raised it, and its text."""
    ours = [
        f"{Path(frame.filename).stem}.{frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if any(f"/include/{folder}/" in frame.filename for folder in _FOLDERS)
    ]
    return f"{type(error).__name__} in {ours[-1] if ours else 'the test'}: {str(error)[:200]}"
