"""A job's results are in its task's XCom; maintenance's last task says which step, table and file failed and why."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.airflow.child_process import JobOutput, parse_results
from deltaworks.airflow.maintenance_dags import RecordNightOperator, describe_failure, night_task, round_template
from deltaworks.control.objects import LocalObjects
from deltaworks.control.paths import nights_summary
from deltaworks.control.summaries.base import read_summary
from deltaworks.control.summaries.jobs import NightsSummary
from deltaworks.errors import ConfigError, ContractError, TransientError
from deltaworks.specs.maintenance import MaintenanceSpec

BROKEN = "[DATA_FILE_UNREADABLE] table clicks: part-1.parquet is truncated"


@dataclass
class Instance:
    """A task instance of a run whose steps ended with these states, results and errors."""

    states: dict[str, str]
    left: dict[tuple[str, str], Any] = field(default_factory=dict)
    dag_id: str = "games__maintenance"
    run_id: str = "night"

    def get_task_breadcrumbs(self, **_: str) -> list[dict[str, Any]]:
        return [{"task_id": name, "state": state, "duration": 2.0} for name, state in self.states.items()]

    def xcom_pull(self, *, task_ids: str, key: str) -> Any:
        return self.left.get((task_ids, key))


def ended_run(objects: LocalObjects, monkeypatch: pytest.MonkeyPatch, instance: Instance) -> None:
    """Runs the last task of a run."""
    from deltaworks.airflow import maintenance_dags

    monkeypatch.setattr(maintenance_dags, "set_environment_keys", lambda environment: None)
    monkeypatch.setattr("deltaworks.control.objects.open_objects", lambda lake: objects)
    steps = [SimpleNamespace(task_id=name, operation=name) for name in instance.states]
    gate = SimpleNamespace(task_id="vacuum_gate", operation=None)
    run = SimpleNamespace(
        run_id="night", start_date=datetime(2026, 3, 1, tzinfo=UTC), run_after=None, run_type="manual"
    )
    environment: Any = SimpleNamespace(lake=None)
    context: Any = {
        "ti": instance,
        "dag": SimpleNamespace(topological_sort=lambda: [*steps, gate]),
        "dag_run": run,
    }
    RecordNightOperator(task_id="record_night", pipeline="games", environment=environment).execute(context)


def recorded(objects: LocalObjects) -> Any:
    summary, _ = read_summary(NightsSummary, objects, nights_summary("games"))
    assert summary is not None
    return summary.nights[0]


def test_a_run_of_which_every_step_succeeded_is_recorded_and_succeeds(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = LocalObjects(tmp_path)
    engine = "spark-submit on local[2] (engine spark)"
    results = [{"table": "clicks", "files": 3, "engine": "Spark's executors: 40 listings and deletions"}]
    left = {("vacuum_tables", "engine"): engine, ("vacuum_tables", "results"): results}

    ended_run(objects, monkeypatch, Instance({"vacuum_tables": "success", "rebuild_gold": "skipped"}, left))

    (task,) = recorded(objects).tasks
    assert (task.task, task.engine) == ("vacuum_tables", engine)
    assert task.results[0].engine == "Spark's executors: 40 listings and deletions"


def test_a_failed_step_fails_the_run_after_the_others_and_is_named_with_its_tables(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = LocalObjects(tmp_path)
    results = [{"table": "clicks", "error": BROKEN}, {"table": "views", "files": 4}]
    left = {("optimize_tables", "results"): results, ("optimize_tables", "error"): "the first error alone"}
    states = {"optimize_tables": "failed", "vacuum_tables": "success", "rebuild_gold": "success"}

    with pytest.raises(ContractError) as caught:
        ended_run(objects, monkeypatch, Instance(states, left))

    assert caught.value.condition == "MAINTENANCE_STEPS_FAILED"
    assert "1 of 3 steps of the maintenance of games failed; the others were done." in caught.value.message
    assert f"optimize_tables: clicks: {BROKEN}" in caught.value.message
    assert not caught.value.retryable
    assert recorded(objects).failed == ("optimize_tables",)


def test_the_reason_of_a_step_without_results_is_its_error_and_of_one_that_was_not_approved_that_it_was_not() -> None:
    failed = night_task("rebuild_gold", {"state": "failed"}, None, "spark-submit", "[X] it broke")
    refused = night_task("vacuum_tables", {"state": "upstream_failed"}, None)

    assert describe_failure(failed) == "rebuild_gold: [X] it broke"
    assert describe_failure(refused) == "vacuum_tables: it was not approved"
    assert describe_failure(night_task("a", {"state": "failed"}, None)) == "a: see its log"


def heard(lines: Iterable[str], *, nonce: str = "") -> tuple[list[Any], list[str], Any]:
    """Returns the results, addresses and error that a task takes from a job's output."""
    results: list[Any] = []
    addresses: list[str] = []
    output = JobOutput(on_results=results.append, on_ui_address=addresses.append, **({"nonce": nonce} if nonce else {}))
    results_line = f"DELTAWORKS_RESULTS:{output.nonce} "
    assert list(output.parse_lines(lines)) == [line for line in lines if not line.startswith(results_line)]
    return results, addresses, output.error


def test_only_the_results_line_is_parsed() -> None:
    prefix = "DELTAWORKS_RESULTS:abc "
    lines = (
        "table  files",
        '[{"files": 9}]',
        f'{prefix}[{{"table": "events", "files_after": 3}}]',
        f"{prefix}[{{broken",
    )
    more = (f"{prefix}[1, 2]", f"{prefix}[]", f"{prefix}{{}}", f"{prefix}null")

    assert heard([f"{line}\n" for line in (*lines, *more)], nonce="abc")[0] == [[{"table": "events", "files_after": 3}]]


MARKERS = st.sampled_from(["DELTAWORKS_ERROR", "DELTAWORKS_UI", "DELTAWORKS_RESULTS", "[{", "deltaworks.errors."])
BREAKS = st.sampled_from(
    ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\n  ", "\x1b[2K", "\b"]
)
DATA = st.lists(
    st.one_of(MARKERS, BREAKS, st.sampled_from([":", " ", "https://evil.example", '{"a":1}', "x"])), max_size=8
)


@given(parts=DATA)
def test_data_of_a_producer_are_neither_lines_nor_obeyed(parts: list[str]) -> None:
    key = "".join(parts)
    error = TransientError("OBJECT_UNREADABLE", f"{key} cannot be read", items=[key], hint=f"send {key} again")

    assert all(len(text.splitlines()) <= 1 for text in (error.summary, *error.items, error.hint))
    assert len(str(error).splitlines()) == 2, "the item has its own line"
    assert len(error.as_line().splitlines()) == 1
    # Whatever another program prints of the data.
    assert heard([f"{line}\n" for line in f"{key}\n{error}".splitlines()]) == ([], [], None)


def test_an_error_survives_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    output = JobOutput()
    for name, value in output.variables.items():
        monkeypatch.setenv(name, value)
    error = ConfigError("SPEC_INVALID", "2 errors in shop.yaml:", items=["a: b", "c\nd: e"], hint="Mend it.")

    output.parse_line(error.as_line() + "\n")

    assert output.error is not None
    assert output.error.as_record() == error.as_record()
    assert output.error.items == ("a: b", "c d: e")


def test_results_that_are_too_long_are_truncated_and_marked() -> None:
    records = [{"table": f"t{number}", "reason": "x" * 1_000} for number in range(100)]

    kept = parse_results(json.dumps(records))

    assert kept[-1] == {"omitted": 100 - (len(kept) - 1)}
    assert kept[:-1] == records[: len(kept) - 1]
    assert len(json.dumps(kept)) < 50_000


def test_the_second_round_runs_on_its_weekday_or_by_form() -> None:
    import datetime as dt

    from jinja2 import Template

    def rendered(day: int, chosen: str | None = None, upkeep: MaintenanceSpec | None = None) -> str:
        run = SimpleNamespace(run_after=dt.datetime(2026, 11, day, 3, 30, tzinfo=dt.UTC))
        template = Template(round_template(upkeep or MaintenanceSpec()))
        return template.render(params=SimpleNamespace(round=chosen), dag_run=run)

    assert [rendered(day) for day in (21, 22, 23)] == ["daily", "weekly", "daily"]
    assert rendered(23, "weekly") == "weekly"
    assert rendered(22, "daily") == "daily"
    assert rendered(22, upkeep=MaintenanceSpec(weekly_day=None)) == "daily"
