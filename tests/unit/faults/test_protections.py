"""What the fault suites take away is still there to be taken: a seam that moved would make a fault prove nothing."""

from __future__ import annotations

import inspect
import os
import sys
from typing import Any

import pytest

from deltaworks.specs.catalog import PROJECT_ROOT
from tests.faults.harness.file_protections import FILE_PROTECTIONS, switch_off
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


class Replacing:
    """Passes `setattr` on to pytest's patch, and keeps what was there before."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._before: list[tuple[Any, str, Any]] = []

    def setattr(self, target: Any, name: str, value: Any) -> None:
        self._before.append((target, name, inspect.getattr_static(target, name)))
        self._patch.setattr(target, name, value)

    def replaced(self) -> list[bool]:
        """Of each attribute that was set, whether it is another now."""
        return [inspect.getattr_static(target, name) is not before for target, name, before in self._before]


@pytest.mark.parametrize("name", FILE_PROTECTIONS)
def test_a_protection_can_be_switched_off_and_comes_back(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        replacing = Replacing(patch)
        switch_off(replacing, [name])  # type: ignore[arg-type]

        assert replacing.replaced(), "nothing was taken away"
        assert all(replacing.replaced())

    assert not any(replacing.replaced())
