"""Gold that reads gold of another pipeline runs after it, by Airflow's assets, with its schedule and backfills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dags.airflow_project import PIPELINE, run_python, write_project

LOOK = """
import json
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

found = {}
for dag_id in ("games__gold", "board__gold", "report__gold"):
    dag = DagSerialization.from_dict(DagSerialization.to_dict(DagBag().dags[dag_id]))
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


def _declare(root: Path, name: str, *, schedule: str) -> None:
    folder = root / "include" / "pipelines" / name
    (folder / "gold").mkdir(parents=True)
    (folder / "gold" / "events_per_hour.sql").write_text("select event_date, n from games__events_per_hour")
    text = PIPELINE.format(name=name).replace("reads: [events]", "reads: [games.events_per_hour]")
    (folder / "pipeline.yaml").write_text(text.replace('  schedule: "*/15 * * * *"\n', schedule))


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = write_project(tmp_path_factory.mktemp("project"))
    _declare(root, "board", schedule="")
    _declare(root, "report", schedule='  schedule: "*/15 * * * *"\n')
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
