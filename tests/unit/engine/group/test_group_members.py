"""A group's declarations are reloaded once a change is stable, and only then."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from deltaworks.engine.group import run
from deltaworks.engine.group.run import STABLE_SECONDS, GroupMembers
from deltaworks.specs.project import load_catalog
from tests.unit.specs.test_groups import project

OF_GROUP = "stream_group: small"


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(run, "time", clock)
    return clock


def members(group: GroupMembers) -> list[str]:
    group.reload_if_changed()
    return sorted(group.group.members)


def make(root: Path) -> GroupMembers:
    load = partial(load_catalog, "local", root=root, skip_invalid=True)
    return GroupMembers("small", load(), load=load)


def test_a_file_that_is_half_written_makes_no_member_leave(tmp_path: Path, clock: Clock) -> None:
    group = make(project(tmp_path, a=OF_GROUP, b=OF_GROUP))
    file = tmp_path / "include" / "pipelines" / "a" / "pipeline.yaml"
    whole = file.read_text()

    file.write_text(whole.removesuffix(f"{OF_GROUP}\n"))  # sound, and of no group
    assert members(group) == ["a", "b"]
    clock.now += STABLE_SECONDS / 2
    file.write_text(whole + "# changed\n")
    assert members(group) == ["a", "b"]
    clock.now += STABLE_SECONDS

    assert group.reload_if_changed() is True
    assert members(group) == ["a", "b"]
    assert group.reload_if_changed() is False, "it is read once"


def test_members_that_leave_and_join_are_seen_once_the_files_are_stable(tmp_path: Path, clock: Clock) -> None:
    group = make(project(tmp_path, a=OF_GROUP, b=""))

    project(tmp_path, a="", b=OF_GROUP)

    assert members(group) == ["a"]
    clock.now += STABLE_SECONDS
    assert members(group) == ["b"]


def test_a_pipeline_declared_while_the_driver_starts_is_a_member(tmp_path: Path, clock: Clock) -> None:
    load = partial(load_catalog, "local", root=project(tmp_path, a=OF_GROUP), skip_invalid=True)
    loaded_early = load()
    project(tmp_path, b=OF_GROUP)

    group = GroupMembers("small", loaded_early, load=load)

    assert members(group) == ["a", "b"]
    assert group.reload_if_changed() is False
