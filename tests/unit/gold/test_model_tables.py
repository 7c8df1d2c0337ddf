"""Tables of published models, and alerts from their newest scores, without a JVM."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from deltaworks.alerts.raising import alerts
from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.records.model import ModelRun, PublishedModel
from deltaworks.gold.build import update_prediction_alerts
from deltaworks.gold.model_tables import refresh_external_inputs
from deltaworks.gold.pinned_inputs import pin_inputs
from deltaworks.gold.plan import changes_by_row_diff
from deltaworks.models.training import find_differences
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake
from deltaworks.testing import present
from tests.records import record_of
from tests.unit.specs.test_models import project

AT = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
MODEL = PublishedModel(algorithm="logistic", columns=("orders",), inputs=("orders",), expression="x0", threshold=0.5)


def shop(folder: Path) -> Catalog:
    root = project(folder)
    environment = root / "include" / "environments" / "local.yaml"
    environment.write_text(environment.read_text().replace("file:///lake", f"file://{folder}/lake"))
    return load_catalog("local", root=root)


def home(catalog: Catalog) -> PipelineHome:
    return PipelineHome.open(catalog.environment.lake, "shop")


def run(*, day: int, published: bool = True) -> ModelRun:
    return record_of(
        ModelRun,
        pipeline="shop",
        name="slow",
        outcome="published" if published else "no_gain",
        until=(AT + dt.timedelta(days=day)).isoformat(),
        model=MODEL if published else None,
    )


def test_training_numbers_have_no_gaps_and_none_is_overwritten(tmp_path: Path) -> None:
    runs = home(shop(tmp_path)).models

    made = [runs.add(run(day=day)) for day in range(3)]

    assert [one.number for one in made] == [1, 2, 3] == runs.numbers("slow")
    assert [one.label for one in runs.all("slow")] == ["slow/1", "slow/2", "slow/3"]
    assert not runs._records.create(paths.model_runs("shop", "slow", 2), run(day=9))
    assert runs.read("slow", 9) is None


def test_a_model_table_has_published_models_and_is_only_replaced_on_changes(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    runs = home(catalog).models
    runs.add(run(day=0))
    runs.add(run(day=7, published=False))

    (first,) = refresh_external_inputs(catalog, "shop")
    (again,) = refresh_external_inputs(catalog, "shop")
    runs.add(run(day=14))
    (later,) = refresh_external_inputs(catalog, "shop")

    assert (first.rows, first.replaced, again.replaced, again.version) == (1, True, False, first.version)
    assert (later.rows, later.replaced) == (2, True)
    table = present(Lake(catalog.environment.lake).rows(paths.table("shop", "slow")))
    assert [row["model"] for row in table.to_pylist()] == ["slow/1", "slow/3"]
    # A new model changes scores from its date only.
    (pinned,) = pin_inputs(Lake(catalog.environment.lake), catalog.pipeline("shop"), ["slow"]).values()
    changes = changes_by_row_diff(
        Lake(catalog.environment.lake), pinned.key, column=pinned.diff_column, before=first.version, after=later.version
    )
    assert changes.partition_values("valid_from_date") == {"2026-03-15"}


def test_a_withdrawn_model_is_removed_from_the_table(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    runs = home(catalog).models
    runs.add(run(day=0))
    runs.add(run(day=7))
    refresh_external_inputs(catalog, "shop")

    home(catalog).objects.delete(paths.model_runs("shop", "slow", 2))

    assert refresh_external_inputs(catalog, "shop")[0].rows == 1


def score(minutes: float, shop_name: str, value: float) -> dict[str, Any]:
    at = AT - dt.timedelta(minutes=minutes)
    return {
        "event_date": at.date(), "hour": at, "shop": shop_name, "model": "slow/1", "score": value, "threshold": 0.5,
    }  # fmt: skip


def warnings(catalog: Catalog, *scores: dict[str, Any]) -> list[tuple[bool, str, str]]:
    uri = catalog.environment.lake.uri(paths.table("shop", "scores")).removeprefix("file://")
    write_deltalake(uri, pa.Table.from_pylist(list(scores)), mode="overwrite", partition_by=["event_date"])
    update_prediction_alerts(catalog, "shop", tables=["scores"], now=AT)
    stored = alerts(home(catalog).objects)
    return [(alert.state.is_open, str(alert.state.severity), alert.summary) for alert in stored]


def test_only_the_newest_scores_raise_alerts(tmp_path: Path) -> None:
    catalog = shop(tmp_path)

    assert warnings(catalog, score(90, "old", 0.9), score(-5, "to come", 0.9), score(1, "low", 0.4)) == []
    # The newest row of an entity counts.
    assert warnings(catalog, score(20, "better", 0.9), score(5, "better", 0.1)) == []
    ((is_open, severity, summary),) = warnings(catalog, score(5, "a", 0.6), score(5, "b", 0.8), score(5, "c", 0.1))
    assert (is_open, severity) == (True, "warning")
    assert "slow/1 expects" in summary
    assert "within 60 minutes for b 0.80, a 0.60." in summary
    ((is_open, _, _),) = warnings(catalog, score(5, "a", 0.1))
    assert not is_open


def test_a_build_of_other_tables_changes_no_alert(tmp_path: Path) -> None:
    catalog = shop(tmp_path)

    update_prediction_alerts(catalog, "shop", tables=["hours"], now=AT)

    assert list(alerts(home(catalog).objects)) == []


def test_metrics_differ_only_beyond_the_tolerance() -> None:
    before = {"outcome": "published", "folds": [{"area": 0.5, "alarms": 3, "calibration": [[1, 0.25, 0.5]]}]}
    same = {"outcome": "published", "folds": [{"area": 0.50000001, "alarms": 3, "calibration": [[1, 0.25, 0.5]]}]}
    other = {"outcome": "no_gain", "folds": [{"area": 0.6, "alarms": 3, "calibration": []}]}

    assert list(find_differences(before, same)) == []
    assert list(find_differences(before, other)) == [
        "outcome was published and is no_gain",
        "folds[0].area was 0.5 and is 0.6",
        "folds[0].calibration was [[1, 0.25, 0.5]] and is []",
    ]
