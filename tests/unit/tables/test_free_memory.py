"""Memory available to a merge in the driver."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from deltaworks.tables.free_memory import free_memory_bytes


@pytest.fixture
def container(tmp_path: Path) -> Path:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 500000\ninactive_file 300000\nactive_file 100000\n")
    return tmp_path


def test_unused_and_droppable_memory_within_a_containers_limit_is_free(container: Path) -> None:
    assert free_memory_bytes(container) == 400_000


def test_a_container_over_its_limit_leaves_nothing(container: Path) -> None:
    (container / "memory.current").write_text("1500000\n")
    assert free_memory_bytes(container) == 0


@pytest.mark.parametrize("limit", ["max", None])
def test_without_a_limit_the_machine_decides(
    container: Path, limit: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit is None:
        (container / "memory.max").unlink()
    else:
        (container / "memory.max").write_text(f"{limit}\n")
    total = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: total._replace(available=12_345))
    assert free_memory_bytes(container) == 12_345
