"""What the faults of queues and objects take away is still there to be taken: a seam that moved would prove nothing."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.faults.harness.file_protections import FILE_PROTECTIONS, switch_off


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
