"""`deltaworks models`: training runs, and one of them with its metrics."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from deltaworks.cli import models
from deltaworks.control.records.model import ModelRun
from deltaworks.errors import ConfigError
from deltaworks.gold.pinned_inputs import record_failed, record_refreshed
from tests.commands import invoke
from tests.unit.gold.test_model_tables import home, run, shop

RECORDED = Path(__file__).resolve().parents[1] / "control" / "records" / "recorded" / "model_run.json"
run_models = partial(invoke, "models", columns=300)


def test_training_runs_are_listed_with_their_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = shop(tmp_path)
    monkeypatch.setattr(models, "catalog", lambda: catalog)

    assert json.loads(run_models("list", "shop", "--json").stdout)[0]["outcome"] == "never trained"
    home(catalog).models.add(ModelRun.decode(RECORDED.read_bytes(), key="k"))
    home(catalog).models.add(run(day=0, published=False))

    first, second = json.loads(run_models("list", "shop", "slow", "--json").stdout)

    assert (first["model"], first["outcome"], first["gains"], first["algorithm"]) == (
        "slow/1",
        "PUBLISHED",
        "0.125",
        "logistic",
    )
    assert (second["model"], second["outcome"]) == ("slow/2", "NO_GAIN")


def test_one_training_run_is_shown_with_versions_folds_and_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = shop(tmp_path)
    monkeypatch.setattr(models, "catalog", lambda: catalog)
    home(catalog).models.add(ModelRun.decode(RECORDED.read_bytes(), key="k"))

    shown = run_models("show", "shop", "slow", "1")

    assert shown.exit_code == 0, shown.output
    for text in (
        "slow/1",
        "PUBLISHED",
        "hours",
        "12",
        "seasonal",
        "0.125 over seasonal",
        "gain of trend",
        "Calibration",
    ):
        assert text in shown.output
    assert isinstance(run_models("show", "shop", "slow", "7").exception, ConfigError)
    assert isinstance(run_models("show", "shop", "slo").exception, ConfigError)


def test_gold_tables_are_listed_with_their_state_and_the_error_of_their_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = shop(tmp_path)
    monkeypatch.setattr(models, "catalog", lambda: catalog)
    run_gold = partial(invoke, "gold", "list", "shop")
    tables = [table.name for table in catalog.pipeline("shop").gold.tables]

    assert {row["table"]: row["state"] for row in json.loads(run_gold("--json").stdout)} == dict.fromkeys(
        tables, "never built"
    )
    record_failed(home(catalog), tables[0], ConfigError("GOLD_SQL_INVALID", "It is torn.", hint="Fix line 3."))
    record_refreshed(home(catalog), tables[1])

    first, second, *_ = json.loads(run_gold("--json").stdout)
    assert (first["state"], first["error"], first["next_step"]) == (
        "failing",
        "[GOLD_SQL_INVALID] It is torn.",
        "Fix line 3.",
    )
    assert first["since"]
    assert (second["state"], second["error"], second["since"]) == ("built", "", None)
    assert second["up_to_date"]
    shown = run_gold(columns=80).output
    assert "GOLD_SQL_INVALID" in shown
    assert max(map(len, shown.splitlines())) <= 80
