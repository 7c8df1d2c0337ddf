"""When programs of the embedded stack count as healthy."""

from __future__ import annotations

import pytest

from sandbox.stack.secrets import StackSecrets
from sandbox.stack.stack_programs import DEADMAN, HealthChecks
from sandbox.stack.supervisor import ProgramState


@pytest.mark.parametrize(
    ("state", "pid", "is_healthy"),
    [("RUNNING", 7, True), ("STARTING", 7, False), ("BACKOFF", None, False), ("FATAL", None, False)],
)
def test_the_dead_mans_switch_is_healthy_only_after_it_has_outlived_its_start(
    state: str, pid: int | None, is_healthy: bool
) -> None:
    keys = StackSecrets(*"abcdefgh")
    states = {DEADMAN: ProgramState(DEADMAN, state, pid, 1.0, "")}

    assert HealthChecks(ports={}, keys=keys).healthy_programs(states, [DEADMAN]) == {DEADMAN: is_healthy}
