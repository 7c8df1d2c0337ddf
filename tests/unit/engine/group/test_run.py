"""The driver of a group, with runs that only pretend to: who is started, ended, parked, waited for, and read again."""

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
from deltaworks.control.health.groups import group_stop_flag
from deltaworks.control.health.heartbeat import read_heartbeat
from deltaworks.control.health.stop import StopFlag
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.engine.driver_host import SharedDriver
from deltaworks.engine.group import group_members, member, run
from deltaworks.engine.group.run import GroupResult, GroupRun
from deltaworks.engine.runner import RunResult
from deltaworks.errors import ConcurrencyError, ContractError, DeltaworksError, TransientError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from tests.unit.specs.test_groups import project
from tests.waiting import eventually

HELD = ConcurrencyError("LEASE_HELD", "another process runs it")
POISON = ContractError("RULE_FAILED", "an event is odd")
AWAY = TransientError("STORAGE_UNREACHABLE", "nobody answers")


@dataclass
class Pretended:
    """What runs of pipelines do: raise the error that is set for them, or go on until they are to end."""

    errors: dict[str, DeltaworksError] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    starts: list[str] = field(default_factory=list)

    def make(self, spark: Any, catalog: Catalog, pipeline: str, *, available_now: bool, host: SharedDriver) -> Any:
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
class Stage:
    """A project of pipelines of the group `small`, and a session whose application can be ended."""

    root: Path
    pretended: Pretended
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
        return GroupRun(session, "small", load(), load=load, **options)

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
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    for module, name, value in (
        (backoff, "FIRST_WAIT_SECONDS", 0.01),
        (backoff, "MAX_WAIT_SECONDS", 0.05),
        (run, "POLL_SECONDS", 0.01),
        (run, "UPDATE_SECONDS", 0.02),
        (run, "STOP_FLAG_DELAY_SECONDS", 0.1),
        (group_members, "STABLE_SECONDS", 0.0),
        (member, "_OTHER_OWNER_WAIT_SECONDS", 0.02),
    ):
        monkeypatch.setattr(module, name, value)
    pretended = Pretended()
    monkeypatch.setattr(member, "IngestRun", pretended.make)
    return Stage(declared(tmp_path, "a", "b", "c"), pretended)


def ended_by(stage: Stage) -> str:
    """Why the one run of the group ended, which it did without an error."""
    (result,) = stage.results
    assert isinstance(result, GroupResult), result
    return result.ended_by


def declared(root: Path, *members: str, **others: str) -> Path:
    """Declare these members of the group, and others as they say; a file changes at once, never half."""
    settings = "stream_groups: {small: {non_outage_failures: 3}, other: {}}\n"
    written = project(root / "written", settings, **dict.fromkeys(members, "stream_group: small"), **others)
    environment = written / "include" / "environments" / "local.yaml"
    environment.write_text(environment.read_text().replace("file:///lake", f"file://{root}/lake"))
    for file in sorted(written.rglob("*.yaml")):
        place = root / file.relative_to(written)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)
    return root


def test_every_member_runs_and_all_end_by_the_flag_of_the_group(stage: Stage) -> None:
    with stage.running():
        eventually(stage.runs("a", "b", "c"), "all run")

    (result,) = stage.results
    assert isinstance(result, GroupResult)
    assert (result.ended_by, result.rows) == ("stop flag", 15)
    assert sorted(stage.pretended.starts) == ["a", "b", "c"]


def test_a_poisoned_member_is_parked_after_as_many_failures_as_declared_until_it_is_started(stage: Stage) -> None:
    stage.pretended.errors["b"] = POISON
    with stage.running():
        eventually(lambda: stage.condition("b") == "STREAM_PARKED", "b is parked")
        assert stage.runs("a", "c")()
        assert stage.pretended.starts.count("b") == 3
        assert stage.backoff("b").read().parked_condition == "RULE_FAILED"

        del stage.pretended.errors["b"]
        stage.backoff("b").reset()
        eventually(stage.runs("a", "b", "c"), "b is back")


def test_a_parked_member_stays_so_when_the_driver_is_another(stage: Stage) -> None:
    stage.pretended.errors["b"] = POISON
    with stage.running():
        eventually(lambda: stage.condition("b") == "STREAM_PARKED", "b is parked")
    group_stop_flag(stage.objects, "small").clear()
    del stage.pretended.errors["b"]
    with stage.running():
        eventually(stage.runs("a", "c"), "the others run")

    assert stage.pretended.starts.count("b") == 3
    assert stage.condition("b") == "STREAM_PARKED"


@pytest.mark.parametrize("error", [HELD, AWAY], ids=lambda error: error.condition)
def test_a_member_that_is_held_elsewhere_or_whose_servers_are_away_waits_and_is_never_parked(
    stage: Stage, error: DeltaworksError
) -> None:
    stage.pretended.errors["b"] = error
    with stage.running():
        eventually(lambda: stage.pretended.starts.count("b") > 5, "b is tried again and again")
        assert stage.runs("a", "c")()
        del stage.pretended.errors["b"]
        eventually(stage.runs("a", "b", "c"), "b runs once it can")
    assert not stage.backoff("b").read().parked_condition


def test_a_member_that_is_stopped_is_left_alone_until_it_is_started(stage: Stage) -> None:
    flag = StopFlag(stage.objects, paths.pipeline_control("a", "stop.json"))
    with stage.running():
        eventually(stage.runs("a", "b", "c"), "all run")
        flag.set(by="tests", reason="to see the others go on")
        eventually(stage.runs("b", "c"), "a is stopped")
        assert stage.pretended.starts.count("a") == 1, "it is left alone"
        flag.clear()
        eventually(stage.runs("a", "b", "c"), "a is back")

    assert Counter(stage.pretended.starts) == {"a": 2, "b": 1, "c": 1}
    assert ended_by(stage) == "stop flag"


def test_a_driver_ends_where_every_member_is_stopped(stage: Stage) -> None:
    for name in ("a", "b", "c"):
        StopFlag(stage.objects, paths.pipeline_control(name, "stop.json")).set(by="tests", reason="all of them")
    with stage.running():
        eventually(lambda: bool(stage.results), "it has ended by itself")

    (result,) = stage.results
    assert isinstance(result, GroupResult)
    assert result.ended_by == "every member is stopped"
    assert not stage.pretended.starts


def test_declarations_are_read_again_one_joins_one_leaves_and_a_wrong_one_waits(stage: Stage) -> None:
    declared(stage.root, "a", c="stream_group: other", b="stream_group: small\nunknown: 1")
    with stage.running():
        eventually(stage.runs("a"), "a alone")
        declared(stage.root, "a", "b", "c")
        eventually(stage.runs("a", "b", "c"), "b was mended, c joined")
        declared(stage.root, "b", a="", c="stream_group: small\nunknown: 1")
        eventually(stage.runs("b", "c"), "a left; c goes on as it was declared when it started")

    assert Counter(stage.pretended.starts) == {"a": 1, "b": 1, "c": 1}, "nobody was started again for it"
    assert ended_by(stage) == "stop flag"


def test_an_environment_that_cannot_be_read_any_more_ends_nothing(stage: Stage) -> None:
    with stage.running():
        eventually(stage.runs("a", "b", "c"), "all run")
        file = stage.root / "include" / "environments" / "local.yaml"
        before = file.read_text()
        file.write_text("environment: [")
        threading.Event().wait(0.2)
        assert stage.runs("a", "b", "c")()
        file.write_text(before)

    assert Counter(stage.pretended.starts) == {"a": 1, "b": 1, "c": 1}
    assert ended_by(stage) == "stop flag"


def test_the_end_of_the_application_ends_the_driver_and_is_no_failure_of_any_member(stage: Stage) -> None:
    with stage.running():
        eventually(stage.runs("a", "b", "c"), "all run")
        stage.is_stopped = True
        eventually(lambda: bool(stage.results), "the driver has ended")

    (error,) = stage.results
    assert isinstance(error, TransientError)
    assert error.condition == "SPARK_APPLICATION_ENDED"
    assert all(stage.backoff(name).read().non_outage_failures == 0 for name in ("a", "b", "c"))


def test_a_run_over_what_is_there_ends_with_the_last_member(stage: Stage) -> None:
    result = stage.make(available_now=True).run()

    assert (result.ended_by, result.rows) == ("available now", 15)


def test_the_time_of_the_group_ends_all(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deltaworks.specs.groups.StreamGroup.max_run_seconds", 0.2)

    result = stage.make().run()

    assert result.ended_by == "max_run_seconds"
    assert not stage.pretended.running
