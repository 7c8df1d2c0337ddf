"""What the fault suite takes away is still there to be taken: a seam that moved would make a fault prove nothing."""

from __future__ import annotations

import os
import sys

from deltaworks.specs.catalog import PROJECT_ROOT
from tests.faults.harness.protections import PROTECTIONS
from tests.processes import run_process

PROGRAM = """
import sys
from tests.faults.harness import injection, protections
protections.before_job(["guard"])
protections.switch_off(sys.argv[1:])
protections.shift_clock(3600)
injection.install(lambda point: None)
print("done")
"""


def test_every_protection_can_be_switched_off_and_every_point_be_added() -> None:
    path = os.pathsep.join([str(PROJECT_ROOT / "include"), str(PROJECT_ROOT)])

    done = run_process([sys.executable, "-c", PROGRAM, *PROTECTIONS], env={**os.environ, "PYTHONPATH": path})

    assert done.stdout.strip() == "done", done.stderr
