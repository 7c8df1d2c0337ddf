"""With Airflow's OpenLineage provider, a job's lineage has the task's run as parent."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from deltaworks.airflow.operators import PARENT_VARIABLE, ProcessOperator, set_job_environment
from deltaworks.specs.environment import EnvironmentSpec, LineageSpec
from deltaworks.specs.project import load_catalog

PARENT = "airflow/games__gold.rebuild_gold/0198c3a0-0000-7000-8000-000000000001"
JOB = """
import json, os
results = json.dumps([{"parent": os.environ.get("OPENLINEAGE_PARENT_ID")}])
print(f"DELTAWORKS_RESULTS:{os.environ['DELTAWORKS_LINE_NONCE']} {results}")
"""


@pytest.fixture(autouse=True)
def _no_parent() -> Any:
    os.environ.pop(PARENT_VARIABLE, None)
    yield
    os.environ.pop(PARENT_VARIABLE, None)


def environment(*, lineage: bool = True) -> EnvironmentSpec:
    spec = LineageSpec(transport={"type": "console"}) if lineage else None
    return load_catalog().environment.model_copy(update={"lineage": spec})


def install_provider(patch: pytest.MonkeyPatch, *, disabled: bool = False) -> None:
    """Installs modules with the documented interface of the provider."""
    root = "airflow.providers.openlineage"
    modules = {name: ModuleType(name) for name in (root, f"{root}.conf", f"{root}.plugins", f"{root}.plugins.macros")}
    modules[root].__spec__ = importlib.machinery.ModuleSpec(root, None, is_package=True)
    modules[f"{root}.conf"].is_disabled = lambda: disabled  # type: ignore[attr-defined]
    modules[f"{root}.plugins.macros"].lineage_parent_id = lambda ti: f"airflow/{ti.name}"  # type: ignore[attr-defined]
    for name, module in modules.items():
        patch.setitem(sys.modules, name, module)


def context() -> Any:
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(
        name=PARENT.partition("/")[2], xcom_push=lambda *, key, value: pushed.update({key: value}), pushed=pushed
    )
    return {"ti": ti, "params": {}}


def test_a_job_finds_its_task_in_its_environment(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_provider(monkeypatch)
    (tmp_path / "some_job.py").write_text(JOB)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    run = context()

    ProcessOperator(task_id="t", module="some_job", environment=environment()).execute(run)

    assert json.dumps(run["ti"].pushed["results"]) == json.dumps([{"parent": PARENT}])


@pytest.mark.parametrize("case", ["no provider", "disabled", "no lineage", "broken"])
def test_without_the_provider_or_lineage_there_is_no_parent(
    project: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    if case != "no provider":
        install_provider(monkeypatch, disabled=case == "disabled")
    if case == "broken":
        monkeypatch.delattr(sys.modules["airflow.providers.openlineage.plugins.macros"], "lineage_parent_id")

    set_job_environment(environment(lineage=case != "no lineage"), context())

    assert PARENT_VARIABLE not in os.environ
