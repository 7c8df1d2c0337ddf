"""What the faults of queues and objects take away is still there to be taken: a seam that moved would prove nothing."""

from __future__ import annotations

import pytest

from tests.faults.harness.file_protections import FILE_PROTECTIONS, switch_off


@pytest.mark.parametrize("name", FILE_PROTECTIONS)
def test_a_protection_can_be_switched_off_and_comes_back(name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        switch_off(patch, [name])
