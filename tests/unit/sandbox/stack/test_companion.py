"""A running stack gets what newly declared pipelines need, without another `up` or `down`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deltaworks.errors import ConcurrencyError
from sandbox.stack.companion import Needs, NeedsWatch
from sandbox.stack.home import StackHome
from sandbox.stack.supervisor import Program, Supervisor, wait_until

NOTHING: Needs = ((), (), None)
KAFKA: Needs = (("orders",), (), None)
COLLECTOR: Needs = (("orders",), (), "edge")
SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


class Declarations:
    """Declarations that a test changes, and the calls they lead to."""

    def __init__(self) -> None:
        self.needs, self.state, self.reads = NOTHING, 0, 0
        self.supplied: list[Needs] = []
        self.busy = False
        self.watch = NeedsWatch(lambda: self.state, self.read, self.supply)

    def read(self) -> Needs:
        self.reads += 1
        return self.needs

    def supply(self) -> None:
        if self.busy:
            raise ConcurrencyError("STACK_BUSY", "another command runs")
        self.supplied.append(self.needs)

    def declare(self, needs: Needs) -> bool:
        self.needs, self.state = needs, self.state + 1
        return self.watch.check()


def test_each_new_need_is_supplied_once() -> None:
    declared = Declarations()
    assert not declared.watch.check(), "the start of the stack supplied the first ones"

    assert declared.declare(KAFKA)
    assert not declared.watch.check()
    assert not declared.declare(KAFKA), "another edit needs nothing new"
    assert declared.declare(COLLECTOR)
    assert declared.declare(NOTHING)

    assert declared.supplied == [KAFKA, COLLECTOR, NOTHING]


def test_unchanged_declarations_are_not_read_again() -> None:
    declared = Declarations()
    for _ in range(5):
        declared.watch.check()

    assert declared.reads == 1


def test_a_busy_stack_is_supplied_later() -> None:
    declared = Declarations()
    declared.watch.check()
    declared.busy = True
    assert not declared.declare(KAFKA)
    declared.busy = False

    assert declared.watch.check()
    assert declared.supplied == [KAFKA]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StackHome]:
    # The path of a socket is limited to about 100 characters.
    found = StackHome.at(tmp_path / "s")
    found.create()
    yield found
    Supervisor(found).shutdown(seconds=20)


def test_a_program_is_added_to_a_running_supervisor_and_others_keep_running(home: StackHome) -> None:
    first, second = Program("first", SLEEP), Program("second", SLEEP)
    supervisor = Supervisor(home)
    supervisor.launch([first], environment={})
    supervisor.start("first")
    assert wait_until(lambda: supervisor.programs()["first"].state == "RUNNING", seconds=20)
    pid = supervisor.programs()["first"].pid

    for _ in range(2):
        supervisor.add([first, second], ["second"])
    supervisor.start("second")

    assert wait_until(lambda: supervisor.programs()["second"].state == "RUNNING", seconds=20)
    assert supervisor.programs()["first"].pid == pid
