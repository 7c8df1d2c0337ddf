"""A job with a Kubernetes connection is submitted as pods of the environment's cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deltaworks.airflow.child_process import error_of
from deltaworks.airflow.operators import SparkJobHook, SparkJobOperator
from deltaworks.kubernetes.manifests import connection
from deltaworks.specs.environment import EnvironmentSpec, LineageSpec
from deltaworks.specs.environment_sections import KubernetesSpec
from deltaworks.specs.project import load_catalog
from tests.dags.airflow_project import run_python, write_project
from tests.dags.test_operators import FakeTaskInstance, conf_of, option

CLUSTER = KubernetesSpec(image="registry.example.com/deltaworks:1", namespace="lakehouse")


@pytest.fixture(autouse=True)
def _provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's provider for Kubernetes, which only the image for pods contains."""
    place = "airflow.providers.apache.spark.hooks.spark_submit.kube_client"
    monkeypatch.setattr(place, object(), raising=False)


def environment(**changes: Any) -> EnvironmentSpec:
    return load_catalog().environment.model_copy(update={"kubernetes": CLUSTER, **changes})


def command(monkeypatch: pytest.MonkeyPatch, of: EnvironmentSpec, **options: Any) -> list[str]:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection(CLUSTER))
    share = of.shares.of("gold")
    operator = SparkJobOperator(
        task_id="t", job="rebuild_gold", environment=of, share=share, **{"pipeline": "games", **options}
    )
    hooks: list[SparkJobHook] = []
    monkeypatch.setattr(SparkJobOperator, "execute_resumable", lambda self, context: hooks.append(self._get_hook()))
    operator.execute({"params": {}, "ti": FakeTaskInstance(pushed={})})  # type: ignore[typeddict-item]
    return hooks[0]._build_spark_submit_command(operator.application)


def template(submitted: list[str], role: str) -> dict[str, Any]:
    pod: dict[str, Any] = json.loads(Path(conf_of(submitted)[f"spark.kubernetes.{role}.podTemplateFile"]).read_text())
    return pod["spec"]


def test_a_driver_pod_has_image_account_and_job(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = command(monkeypatch, environment())
    conf = conf_of(submitted)

    assert option(submitted, "--master") == "k8s://https://kubernetes.default.svc:443"
    assert option(submitted, "--deploy-mode") == "cluster"
    assert conf["spark.kubernetes.namespace"] == "lakehouse"
    assert conf["spark.kubernetes.container.image"] == "registry.example.com/deltaworks:1"
    assert conf["spark.kubernetes.authenticate.driver.serviceAccountName"] == "deltaworks-driver"
    # The file has the same path in the image; a path without a scheme would be uploaded.
    assert submitted[-3] == f"local://{project / 'spark_jobs' / 'rebuild_gold.py'}"


def test_a_driver_gets_the_variables_of_its_pipeline_and_an_executor_none(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = {"type": "http", "url": "http://lineage", "auth": {"apiKey": "env:LINEAGE_KEY"}}
    of = environment(lineage=LineageSpec(transport=transport))

    submitted = command(monkeypatch, of)

    (driver,) = template(submitted, "driver")["containers"]
    (executor,) = template(submitted, "executor")["containers"]
    assert [variable["name"] for variable in driver["env"]] == ["LINEAGE_KEY"]
    assert executor["env"] == []
    assert conf_of(submitted)["spark.kubernetes.driver.podTemplateContainerName"] == driver["name"]
    assert conf_of(submitted)["spark.kubernetes.executor.podTemplateContainerName"] == executor["name"]


def test_the_driver_of_a_job_of_the_lake_gets_its_own_variables_alone(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = command(monkeypatch, environment(), pipeline="", variables={"CONNECT_TOKEN"})

    (driver,) = template(submitted, "driver")["containers"]
    assert [variable["name"] for variable in driver["env"]] == ["CONNECT_TOKEN"]
    assert submitted[-1].endswith("rebuild_gold.py")


def test_settings_of_the_environment_take_precedence(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = environment()
    spark = of.spark.model_copy(update={"conf": {"spark.kubernetes.container.image": "mine:2"}})

    submitted = command(monkeypatch, of.model_copy(update={"spark": spark}))

    assert conf_of(submitted)["spark.kubernetes.container.image"] == "mine:2"


def test_a_connection_to_an_undeclared_cluster_is_unchanged(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted = command(monkeypatch, environment(kubernetes=None))

    assert not [name for name in conf_of(submitted) if "podTemplate" in name or "serviceAccount" in name]


@pytest.mark.parametrize(("code", "retryable"), [(10, False), (11, False), (21, True), (1, True)])
def test_the_exit_code_of_a_pod_decides_whether_a_job_is_retried(code: int, retryable: bool) -> None:
    """The driver's last line is in its pod's log; the provider's exception contains the exit code."""
    text = f"Spark application spark-1 failed (phase=Failed exit_code={code} reason=Error)"

    error = error_of(RuntimeError(text))

    assert (error is None or error.retryable) is retryable


def test_a_relay_pod_has_no_relay_dag_but_a_clean_dag(tmp_path: Path) -> None:
    project = write_project(tmp_path)
    listed = "import json; from airflow.dag_processing.dagbag import DagBag; print(json.dumps(sorted(DagBag().dags)))"
    before = set(run_python(listed, project))
    environment = project / "include" / "environments" / "local.yaml"
    environment.write_text(environment.read_text() + "\nkubernetes: {image: deltaworks:1}\n")

    after = set(run_python(listed, project))

    assert before - after == {"landing__relay"}
    assert "landing__clean" in after
