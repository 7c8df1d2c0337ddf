"""A job's results are in its task's XCom, truncated to a size for Airflow's database."""

from __future__ import annotations

import json
from types import SimpleNamespace

from deltaworks.airflow.child_process import JobOutput, parse_results
from deltaworks.airflow.maintenance_dags import round_template
from deltaworks.specs.maintenance import MaintenanceSpec


def test_only_the_results_line_is_parsed() -> None:
    heard: list[list[object]] = []
    output = JobOutput(on_results=heard.append)

    for line in ("table  files\n", '[{"table": "events", "files_after": 3}]\n', "[{broken\n", "[1, 2]\n", "[]\n"):
        output.parse_line(line)

    assert heard == [[{"table": "events", "files_after": 3}]]


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
