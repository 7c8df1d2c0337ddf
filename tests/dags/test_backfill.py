"""Gold is backfilled by date with Airflow's own backfill, and runs after the gold of other pipelines that it reads."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from tests.dags.airflow_project import PIPELINE, run_python, write_project

BACKFILL = """
import datetime as dt, json
from airflow.dag_processing.dagbag import DagBag
from airflow.models.backfill import _get_info_list, _validate_backfill_params, ReprocessBehavior
from airflow.models.dagrun import DagRun
from airflow.utils.types import DagRunType
from airflow.serialization.serialized_objects import DagSerialization

dag = DagSerialization.from_dict(DagSerialization.to_dict(DagBag().dags["games__gold"]))
utc = dt.UTC

def runs(start, end):
    infos = _get_info_list(from_date=start, to_date=end, reverse=False, dag=dag)
    return [
        [info.logical_date.isoformat(), info.data_interval.end.isoformat(), DagRun.generate_run_id(
            run_type=DagRunType.BACKFILL_JOB, logical_date=info.logical_date, run_after=info.run_after)]
        for info in infos
    ]

_validate_backfill_params(
    dag, False, dt.datetime(2026, 1, 1, tzinfo=utc), dt.datetime(2026, 1, 3, tzinfo=utc), ReprocessBehavior.NONE
)
from airflow.sdk import DAG
from deltaworks.airflow.names import cron_timetable
from deltaworks.airflow.scheduled_dags import _gold_timetable

def first_run(timetable):
    new = DAG("new", schedule=timetable, catchup=False)
    return str(DagSerialization.from_dict(DagSerialization.to_dict(new)).next_dagrun_info(
        last_automated_run_info=None).logical_date)

now = dt.datetime.now(utc)
soon = now + dt.timedelta(days=2)
print(json.dumps({
    "three": runs(dt.datetime(2026, 1, 1, tzinfo=utc), dt.datetime(2026, 1, 3, tzinfo=utc)),
    "to_the_end_of_a_date": runs(dt.datetime(2026, 1, 1, tzinfo=utc), dt.datetime(2026, 1, 1, 23, 59, tzinfo=utc)),
    "unfinished": runs(soon - dt.timedelta(days=3), soon),
    "now": now.isoformat(),
    "first": [first_run(make("* * * * *")) for make in (cron_timetable, _gold_timetable)],
    "next": str(dag.next_dagrun_info(last_automated_run_info=None).logical_date),
}))
"""


@pytest.fixture(scope="module")
def passed_options(sample_project: Path) -> Any:
    return run_python(BACKFILL, sample_project)


def test_a_backfill_creates_one_run_per_date(passed_options: Any) -> None:
    assert [logical[:10] for logical, *_ in passed_options["three"]] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert len(passed_options["to_the_end_of_a_date"]) == 1


def test_a_backfilled_date_has_a_logical_date_that_no_scheduled_run_has(passed_options: Any) -> None:
    assert {dt.datetime.fromisoformat(logical).second for logical, *_ in passed_options["three"]} == {1}


def test_the_id_of_a_backfill_run_names_its_own_date(passed_options: Any) -> None:
    ids = [run_id for *_, run_id in passed_options["three"]]

    assert [run_id.removeprefix("backfill__")[:10] for run_id in ids] == ["2026-01-01", "2026-01-02", "2026-01-03"]


def test_an_incomplete_date_is_not_backfilled(passed_options: Any) -> None:
    ends = [dt.datetime.fromisoformat(end) for _, end, _ in passed_options["unfinished"]]

    assert len(ends) == 1
    assert ends[0] < dt.datetime.now(dt.UTC)


def test_scheduled_runs_follow_the_cron_expression(passed_options: Any) -> None:
    following = dt.datetime.fromisoformat(passed_options["next"])

    assert (following.minute % 15, following.second) == (0, 0)
    assert following > dt.datetime.fromisoformat(passed_options["now"])


@pytest.mark.parametrize(
    ("run_type", "dates", "built"),
    [
        ("backfill", None, "2026-01-02"),
        ("scheduled", None, ""),
        ("manual", "2026-01-05", "2026-01-05"),
    ],
)
def test_only_a_backfill_run_builds_its_own_date(run_type: str, dates: str | None, built: str) -> None:
    from types import SimpleNamespace

    from jinja2 import Environment

    from deltaworks.airflow.scheduled_dags import DATES_TEMPLATE

    rendered = (
        Environment(autoescape=False)
        .from_string(DATES_TEMPLATE)
        .render(ds="2026-01-02", dag_run=SimpleNamespace(run_type=run_type), params={"dates": dates})
    )

    assert rendered == built


def test_a_new_dag_does_not_run_for_past_schedules(passed_options: Any) -> None:
    for first in passed_options["first"]:
        assert dt.datetime.fromisoformat(first) > dt.datetime.fromisoformat(passed_options["now"])


LOOK = """
import json
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

found, bag = {}, DagBag()
for dag_id in ("games__gold", "board__gold", "report__gold"):
    dag = DagSerialization.from_dict(DagSerialization.to_dict(bag.dags[dag_id]))
    timetable = dag.timetable
    task = dag.task_dict["rebuild_gold"]
    found[dag_id] = {
        "timetable": type(timetable).__name__,
        "assets": sorted(key.name for key, _ in timetable.asset_condition.iter_assets()),
        "follows": dag.next_dagrun_info(last_automated_run_info=None) is not None,
        "types": sorted(dag.allowed_run_types or []),
    }
print(json.dumps(found))
"""


def _declare(root: Path, name: str, *, lag: str) -> None:
    folder = root / "include" / "pipelines" / name
    (folder / "gold").mkdir(parents=True)
    (folder / "gold" / "events_per_hour.sql").write_text("select event_date, n from games__events_per_hour")
    text = PIPELINE.format(name=name).replace("reads: [events]", "reads: [games.events_per_hour]")
    (folder / "pipeline.yaml").write_text(text.replace("  lag: 15m\n", lag))


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = write_project(tmp_path_factory.mktemp("project"))
    _declare(root, "board", lag="")
    _declare(root, "report", lag="  lag: 15m\n")
    return run_python(LOOK, root)


def test_gold_without_external_inputs_follows_only_its_schedule(dags: Any) -> None:
    assert dags["games__gold"]["timetable"] == "GoldTimetable"
    assert dags["games__gold"]["assets"] == []


def test_gold_that_reads_gold_of_another_pipeline_follows_its_assets(dags: Any) -> None:
    assert dags["board__gold"]["assets"] == ["gold.games.events_per_hour"]
    assert dags["board__gold"]["timetable"] == "AssetTriggeredTimetable"
    assert "asset_triggered" in dags["board__gold"]["types"]


def test_gold_with_a_schedule_follows_both(dags: Any) -> None:
    report = dags["report__gold"]

    assert report["timetable"] == "AssetOrTimeSchedule"
    assert report["assets"] == ["gold.games.events_per_hour"]
    assert report["follows"]
    assert {"asset_triggered", "backfill", "scheduled"} <= {*report["types"]}
