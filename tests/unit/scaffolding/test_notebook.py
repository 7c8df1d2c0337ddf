"""The notebooks run as they stand over a lake, hold no outputs, and connect as `deltaworks notebook` writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deltaworks.fixtures.run import FixtureLake
from deltaworks.fixtures.spec import load_fixtures
from deltaworks.scaffolding.other_tools import connection_cell
from deltaworks.specs.catalog import PROJECT_ROOT
from tests.commands import invoke
from tests.unit.pipelines.shipped_lake import ShippedLake

NOTEBOOKS = sorted((PROJECT_ROOT / "notebooks").glob("*.ipynb"))


def code_of(path: Path) -> list[str]:
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_cells(path: Path) -> dict[str, Any]:
    """Runs the cells of a notebook in order; returns its variables."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(code_of(path), start=1):
        exec(compile(source, f"{path.name}:{number}", "exec"), variables)
    return variables


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a project with the events of shipped tests in its lake."""
    folder = tmp_path_factory.mktemp("notebooks")
    catalog = ShippedLake(folder, "cdn_logs", "games", "video_qos").catalog
    for pipeline, name in (("games", "kpis"), ("video_qos", "views")):
        (fixture,) = (one for one in load_fixtures(catalog, pipeline) if one.name == name)
        spec = catalog.pipeline(pipeline)
        models = {model.name for model in spec.models}
        gold = [table.name for table in spec.gold.tables if not models & {*table.reads}]
        FixtureLake(catalog, folder / "lake", fixture).outcome(gold, [])
    return catalog.root


@pytest.fixture
def lake(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes that project the one of this process."""
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(project))
    monkeypatch.setenv("DELTAWORKS_HOME", str(project / "home"))
    return project


def test_the_notebooks_show_what_has_landed(lake: Path) -> None:
    shown = {path.stem: run_cells(path) for path in NOTEBOOKS}

    games, video, features = (shown[name] for name in ("games_kpis", "video_quality", "reproducible_features"))
    assert games["by_date"]["users"].tolist() == [2, 1, 1]
    assert games["by_date"]["bookings"].tolist() == [5.5, 0, 0]
    assert games["by_country"]["country"].tolist() == ["NL", "??"]
    assert games["retention"]["day_1"].tolist() == [0.5]
    assert str(games["newest"]["newest_event_at"][0]).startswith("2026-03-03 10:01")
    assert video["delivery"][["edge", "views", "requests"]].to_numpy().tolist() == [["AMS", 1, 2]]
    assert video["errors"]["error_class"].tolist() == ["drm"]
    assert video["startup"]["startup_ms_p50"][0] == pytest.approx(1500, rel=0.024)
    assert len(features["rows"]) == len(features["train"]) + len(features["test"]) > 0


def test_the_repository_holds_no_outputs() -> None:
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        document = json.loads(path.read_text())
        cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
        assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
        assert [cell["outputs"] for cell in cells] == [[]] * len(cells), path
        assert {cell["execution_count"] for cell in cells} == {None}, path
        assert len({cell["id"] for cell in document["cells"]}) == len(document["cells"])


@pytest.mark.parametrize(
    ("name", "pipelines"),
    [
        ("games_kpis", ["games"]),
        ("video_quality", ["video_qos", "cdn_logs"]),
        ("reproducible_features", ["games"]),
    ],
)
def test_notebooks_connect_as_the_command_writes_it(name: str, pipelines: list[str]) -> None:
    assert code_of(PROJECT_ROOT / "notebooks" / f"{name}.ipynb")[0] == connection_cell(pipelines)


def test_the_command_writes_a_notebook_that_runs(lake: Path) -> None:
    file = lake / "mine.ipynb"

    done = invoke("notebook", str(file), "--pipelines", "games")

    assert done.exit_code == 0, done.output
    assert "games.daily_active_users" in run_cells(file)["tables"]
    assert invoke("notebook", "--pipelines", "games").stdout.strip() == connection_cell(["games"])
    assert invoke("notebook", str(file)).exit_code == 2, "an existing file is not replaced"
    assert invoke("notebook", "--pipelines", "gamez").exception is not None
