"""The driver of a group with fake runs: members are started, ended, parked, retried and reloaded."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.control import backoff, paths
from deltaworks.control.backoff import RestartBackoff
from deltaworks.control.health.heartbeat import StopFlag, group_stop_flag, read_heartbeat
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.engine import group_run
from deltaworks.engine.driver_host import SharedDriver
from deltaworks.engine.group_run import STABLE_SECONDS, GroupMembers, GroupResult, GroupRun
from deltaworks.engine.runner import RunResult, StreamParts
from deltaworks.errors import ConcurrencyError, ContractError, DeltaworksError, TransientError
from deltaworks.operations.stream_parts import STREAM_PARTS
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from tests.unit.specs.test_airflow import project
from tests.waiting import eventually

HELD = ConcurrencyError("LEASE_HELD", "another process runs it")
POISON = ContractError("RULE_FAILED", "an event is odd")
UNREACHABLE = TransientError("STORAGE_UNREACHABLE", "nobody answers")


@dataclass
class FakeRuns:
    """Fake runs of pipelines: raise the configured error, or continue until ended."""

    errors: dict[str, DeltaworksError] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    starts: list[str] = field(default_factory=list)

    def make(
        self,
        spark: Any,
        catalog: Catalog,
        pipeline: str,
        *,
        parts: StreamParts,
        available_now: bool,
        host: SharedDriver,
    ) -> Any:
        assert parts is STREAM_PARTS
        catalog.pipeline(pipeline)
        flag = StopFlag(open_objects(catalog.environment.lake), paths.pipeline_control(pipeline, "stop.json"))
        return SimpleNamespace(run=partial(self.work, pipeline, host, flag, available_now), batches=1)

    def work(self, pipeline: str, host: SharedDriver, flag: StopFlag, available_now: bool) -> RunResult:
        self.starts.append(pipeline)
        if pipeline in self.errors:
            raise self.errors[pipeline]
        self.running.add(pipeline)
        try:
            reason = "available now" if available_now else None
            while reason is None:
                threading.Event().wait(0.01)
                reason = host.stop_reason() or ("stop flag" if flag.read() is not None else None)
        finally:
            self.running.discard(pipeline)
        return RunResult(ended_by=reason, batches=1, rows=5, seconds=0.0)


@dataclass
class Harness:
    """A project with pipelines of the group `small`, and a session whose application can be ended."""

    root: Path
    pretended: FakeRuns
    is_stopped: bool = False
    results: list[GroupResult | BaseException] = field(default_factory=list)

    @property
    def objects(self) -> ObjectStore:
        return open_objects(load_catalog("local", root=self.root, skip_invalid=True).environment.lake)

    def backoff(self, pipeline: str) -> RestartBackoff:
        return RestartBackoff(self.objects, paths.pipeline_control(pipeline, "failures.json"))

    def condition(self, pipeline: str) -> str:
        beat = read_heartbeat(self.objects, paths.pipeline_control(pipeline, "heartbeat.json"))
        return str((beat.error or {}).get("condition")) if beat is not None else ""

    def make(self, **options: Any) -> GroupRun:
        load = partial(load_catalog, "local", root=self.root, skip_invalid=True)
        context = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: self.is_stopped))
        session: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jsc=context), newSession=lambda: session)
        return GroupRun(session, "small", load(), load=load, parts=STREAM_PARTS, **options)

    @contextmanager
    def running(self, **options: Any) -> Iterator[None]:
        group = self.make(**options)

        def work() -> None:
            try:
                self.results.append(group.run())
            except BaseException as error:
                self.results.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            group_stop_flag(self.objects, "small").set(by="tests", reason="the test is over")
            thread.join(60)
            assert not thread.is_alive()

    def runs(self, *pipelines: str) -> Callable[[], bool]:
        return lambda: self.pretended.running == set(pipelines)


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    for module, name, value in (
        (backoff, "FIRST_WAIT_SECONDS", 0.01),
        (backoff, "MAX_WAIT_SECONDS", 0.05),
        (group_run, "POLL_SECONDS", 0.01),
        (group_run, "UPDATE_SECONDS", 0.02),
        (group_run, "STOP_FLAG_DELAY_SECONDS", 0.1),
        (group_run, "STABLE_SECONDS", 0.0),
        (group_run, "_OTHER_OWNER_WAIT_SECONDS", 0.02),
    ):
        monkeypatch.setattr(module, name, value)
    pretended = FakeRuns()
    monkeypatch.setattr(group_run, "IngestRun", pretended.make)
    return Harness(declared(tmp_path, "a", "b", "c"), pretended)


def ended_by(harness: Harness) -> str:
    """Returns why the group's only run ended, without an error."""
    (result,) = harness.results
    assert isinstance(result, GroupResult), result
    return result.ended_by


def declared(root: Path, *members: str, **others: str) -> Path:
    """Declares these members of the group, and others with their group; files change atomically."""
    settings = "stream_groups: {small: {non_outage_failures: 3}, other: {}}\n"
    written = project(root / "written", settings, **dict.fromkeys(members, "stream_group: small"), **others)
    environment = written / "include" / "environments" / "local.yaml"
    environment.write_text(environment.read_text().replace("file:///lake", f"file://{root}/lake"))
    for file in sorted(written.rglob("*.yaml")):
        place = root / file.relative_to(written)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)
    return root


def test_every_member_runs_and_the_groups_stop_flag_ends_all(harness: Harness) -> None:
    with harness.running():
        eventually(harness.runs("a", "b", "c"), "all run")

    (result,) = harness.results
    assert isinstance(result, GroupResult)
    assert (result.ended_by, result.rows) == ("stop flag", 15)
    assert sorted(harness.pretended.starts) == ["a", "b", "c"]


def test_a_failing_member_is_parked_after_the_declared_number_of_failures_until_it_is_started(harness: Harness) -> None:
    harness.pretended.errors["b"] = POISON
    with harness.running():
        eventually(lambda: harness.condition("b") == "STREAM_PARKED", "b is parked")
        assert harness.runs("a", "c")()
        assert harness.pretended.starts.count("b") == 3
        assert harness.backoff("b").read().parked_condition == "RULE_FAILED"

        del harness.pretended.errors["b"]
        harness.backoff("b").reset()
        eventually(harness.runs("a", "b", "c"), "b is back")


def test_a_parked_member_stays_parked_in_another_driver(harness: Harness) -> None:
    harness.pretended.errors["b"] = POISON
    with harness.running():
        eventually(lambda: harness.condition("b") == "STREAM_PARKED", "b is parked")
    group_stop_flag(harness.objects, "small").clear()
    del harness.pretended.errors["b"]
    with harness.running():
        eventually(harness.runs("a", "c"), "the others run")

    assert harness.pretended.starts.count("b") == 3
    assert harness.condition("b") == "STREAM_PARKED"


@pytest.mark.parametrize("error", [HELD, UNREACHABLE], ids=lambda error: error.condition)
def test_a_member_with_another_owner_or_an_unreachable_storage_waits_and_is_never_parked(
    harness: Harness, error: DeltaworksError
) -> None:
    harness.pretended.errors["b"] = error
    with harness.running():
        eventually(lambda: harness.pretended.starts.count("b") > 5, "b is tried again and again")
        assert harness.runs("a", "c")()
        del harness.pretended.errors["b"]
        eventually(harness.runs("a", "b", "c"), "b runs once it can")
    assert not harness.backoff("b").read().parked_condition


def test_a_member_that_is_stopped_is_left_alone_until_it_is_started(harness: Harness) -> None:
    flag = StopFlag(harness.objects, paths.pipeline_control("a", "stop.json"))
    with harness.running():
        eventually(harness.runs("a", "b", "c"), "all run")
        flag.set(by="tests", reason="to see the others go on")
        eventually(harness.runs("b", "c"), "a is stopped")
        assert harness.pretended.starts.count("a") == 1, "it is left alone"
        flag.clear()
        eventually(harness.runs("a", "b", "c"), "a is back")

    assert Counter(harness.pretended.starts) == {"a": 2, "b": 1, "c": 1}
    assert ended_by(harness) == "stop flag"


def test_a_driver_ends_where_every_member_is_stopped(harness: Harness) -> None:
    for name in ("a", "b", "c"):
        StopFlag(harness.objects, paths.pipeline_control(name, "stop.json")).set(by="tests", reason="all of them")
    with harness.running():
        eventually(lambda: bool(harness.results), "it has ended by itself")

    (result,) = harness.results
    assert isinstance(result, GroupResult)
    assert result.ended_by == "every member is stopped"
    assert not harness.pretended.starts


def test_changed_declarations_add_and_remove_members_and_an_invalid_one_waits(harness: Harness) -> None:
    declared(harness.root, "a", c="stream_group: other", b="stream_group: small\nunknown: 1")
    with harness.running():
        eventually(harness.runs("a"), "a alone")
        declared(harness.root, "a", "b", "c")
        eventually(harness.runs("a", "b", "c"), "b was mended, c joined")
        declared(harness.root, "b", a="", c="stream_group: small\nunknown: 1")
        eventually(harness.runs("b", "c"), "a left; c goes on as it was declared when it started")

    assert Counter(harness.pretended.starts) == {"a": 1, "b": 1, "c": 1}, "nobody was started again for it"
    assert ended_by(harness) == "stop flag"


def test_an_unreadable_environment_ends_no_member(harness: Harness) -> None:
    with harness.running():
        eventually(harness.runs("a", "b", "c"), "all run")
        file = harness.root / "include" / "environments" / "local.yaml"
        before = file.read_text()
        file.write_text("environment: [")
        threading.Event().wait(0.2)
        assert harness.runs("a", "b", "c")()
        file.write_text(before)

    assert Counter(harness.pretended.starts) == {"a": 1, "b": 1, "c": 1}
    assert ended_by(harness) == "stop flag"


def test_the_end_of_the_application_ends_the_driver_and_counts_as_no_members_failure(harness: Harness) -> None:
    with harness.running():
        eventually(harness.runs("a", "b", "c"), "all run")
        harness.is_stopped = True
        eventually(lambda: bool(harness.results), "the driver has ended")

    (error,) = harness.results
    assert isinstance(error, TransientError)
    assert error.condition == "SPARK_APPLICATION_ENDED"
    assert all(harness.backoff(name).read().non_outage_failures == 0 for name in ("a", "b", "c"))


def test_a_run_over_available_data_ends_with_the_last_member(harness: Harness) -> None:
    result = harness.make(available_now=True).run()

    assert (result.ended_by, result.rows) == ("available now", 15)


def test_the_groups_time_limit_ends_all_members(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltaworks.specs.groups.StreamGroup.max_run_seconds", 0.2)

    result = harness.make().run()

    assert result.ended_by == "max_run_seconds"
    assert not harness.pretended.running


OF_GROUP = "stream_group: small"


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(group_run, "time", clock)
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
