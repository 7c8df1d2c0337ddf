"""Judges one input: runs the product on it twice, then the slow reading, and says what is wrong.

Whatever leaves the product is a problem, described by where it was raised, so that two inputs that fail alike have one
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
#: CPU that reading one input once may take; an input is at most 128 KiB, or grows to at most 4 MiB.
MOST_CPU_SECONDS = 4.0
_FOLDERS = ("deltaworks", "generator", "collector")


def judge(case: Case, *, at: Callable[[bytes], None] = lambda _: None, target: Target | None = None) -> Verdict:
    """What is wrong with the product's reading of one input.

    Args:
        at: called with what runs next (`PRODUCT`, `READER`) or has ended (`BETWEEN`), for whoever watches the process.
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
    except BaseException as error:  # a panic of a Rust library is no Exception
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
    """The verdict as a failure, if it is one."""
    if not verdict.problems:
        return None
    return Failure(case, f"{case.target}: {_without_values(verdict.problems[0])}", "; ".join(verdict.problems))


def _without_values(problem: str) -> str:
    """What is the same in problems of one kind."""
    head = problem.split("\n", maxsplit=1)[0]
    if not head.startswith("raised "):
        head = re.sub(r"['\"{\[(<].*", "", head)
    return re.sub(r"\d+(\.\d+)?", "N", head.partition(": ")[0]).strip()


def _described(error: BaseException) -> str:
    """Type, the place of ours where it was raised, and the text of an error."""
    ours = [
        f"{Path(frame.filename).stem}.{frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if any(f"/include/{folder}/" in frame.filename for folder in _FOLDERS)
    ]
    return f"{type(error).__name__} in {ours[-1] if ours else 'the test'}: {str(error)[:200]}"
