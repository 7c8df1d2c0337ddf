"""Pods and CronJobs get only what they need by valid objects, and the settings file is read like Compose's."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from deltaworks.cli import app
from deltaworks.errors import ConfigError
from deltaworks.kubernetes.manifests import (
    AIRFLOW_SETTINGS,
    AIRFLOW_SETTINGS_MAP,
    manifests,
    read_variables,
    reject_secrets,
    secret_keys,
    to_yaml,
)
from deltaworks.kubernetes.pods import SETTINGS as SETTINGS_MAP
from deltaworks.kubernetes.pods import driver_pod, driver_variables, executor_pod
from deltaworks.specs.base import resolve_text
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment_sections import KubernetesSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.spark_conf import session_conf
from tests.unit.docker.secrets_script import FILES, WEBHOOK_FILE
from tests.unit.kubernetes.conftest import ENVIRONMENT, PIPELINE, SETTINGS, Rendered, write_collector
from tests.unit.kubernetes.schemas import VERSIONS, check, kubernetes_validate
from tests.unit.specs.conftest import RELAY, write_project

ROOT = Path(__file__).resolve().parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
LAKE = {"DELTAWORKS_LAKE_ACCESS_KEY", "DELTAWORKS_LAKE_SECRET_KEY"}
AWS = {"DELTAWORKS_AWS_ACCESS_KEY", "DELTAWORKS_AWS_SECRET_KEY"}
ALERTS = {"CHAT_URL", "CHAT_TOKEN", "DELTAWORKS_ALERTS_WEBHOOK"}


def test_a_process_only_gets_the_secrets_it_refers_to(render: Callable[..., Rendered]) -> None:
    rendered = render()

    assert rendered.secrets("relay-landing") == LAKE | AWS
    assert rendered.secrets("deadman") == LAKE | AWS | ALERTS
    assert rendered.secrets("collector") == LAKE | AWS


def test_settings_are_not_keys_of_the_secret(render: Callable[..., Rendered]) -> None:
    rendered = render()

    assert set(secret_keys(rendered.catalog, SETTINGS)) == LAKE | AWS | {"CHAT_URL", "CHAT_TOKEN", "LINEAGE_KEY"}
    assert rendered.objects["ConfigMap", SETTINGS_MAP]["data"] == SETTINGS


def test_pods_get_the_same_secrets_as_compose_services(render: Callable[..., Rendered]) -> None:
    """But for the channels, which the environment here declares and that of Compose does not."""
    files = [file for file in COMPOSE["services"]["deadman"]["env_file"] if file.startswith("docker/secrets/")]
    names = {name for file in files for name in FILES.get(Path(file).name, ())}
    if f"docker/secrets/{WEBHOOK_FILE}" in files:
        names.add("DELTAWORKS_ALERTS_WEBHOOK")

    assert render().secrets("deadman") - {"CHAT_URL", "CHAT_TOKEN"} == names


def _relay(catalog: Catalog) -> None:
    environment, relay = catalog.environment, catalog.relay("landing")
    environment.lake.deltalake_options()
    environment.landing.boto3_options()
    environment.messaging.boto3_options()
    resolve_text(relay.queue_url or "")


def _deadman(catalog: Catalog) -> None:
    environment = catalog.environment
    environment.lake.boto3_options()
    environment.messaging.boto3_options()
    for channel in environment.alerts.channels:
        resolve_text(channel.url)  # type: ignore[union-attr]
        channel.token.resolve()  # type: ignore[union-attr]


def _collector(catalog: Catalog) -> None:
    for key_path in (catalog.environment.lake, catalog.environment.landing, catalog.environment.messaging):
        key_path.boto3_options()


#: What each process resolves before it does anything.
RESOLVES = {"relay-landing": _relay, "deadman": _deadman, "collector": _collector}


def _variables(container: Mapping[str, Any], objects: Mapping[tuple[str, str], Any]) -> dict[str, str]:
    """The variables of a container: settings by their values, secrets by a stand-in."""
    maps = [source["configMapRef"]["name"] for source in container["envFrom"]]
    variables = {name: value for map_name in maps for name, value in objects["ConfigMap", map_name]["data"].items()}
    return variables | {variable["name"]: "0f3c9a71" for variable in container["env"]}


@pytest.mark.parametrize("deployment", sorted(RESOLVES))
def test_with_the_variables_of_its_container_a_process_resolves_every_reference(
    render: Callable[..., Rendered], monkeypatch: pytest.MonkeyPatch, deployment: str
) -> None:
    rendered = render()
    container = rendered.container(deployment)
    variables = _variables(container, rendered.objects)
    monkeypatch.setattr(os, "environ", dict(variables))

    RESOLVES[deployment](rendered.catalog)

    for secret in (variable["name"] for variable in container["env"]):
        if secret == "DELTAWORKS_ALERTS_WEBHOOK":
            continue  # read where it is set
        monkeypatch.setattr(os, "environ", {name: value for name, value in variables.items() if name != secret})
        with pytest.raises(ConfigError) as caught:
            RESOLVES[deployment](rendered.catalog)
        assert caught.value.condition == "REFERENCE_UNRESOLVED", f"{deployment} does not need {secret}"


def test_a_driver_creates_its_session_with_the_variables_of_its_pod(
    render: Callable[..., Rendered], monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = render()
    environment, spec = rendered.catalog.environment, rendered.catalog.environment.kubernetes
    assert spec is not None
    names = driver_variables(environment, rendered.catalog.pipelines.values())
    template = driver_pod(spec, names)["spec"]["containers"][0]
    monkeypatch.setattr(os, "environ", _variables(template, rendered.objects))

    session_conf(environment)
    assert environment.lineage is not None
    environment.lineage.resolved_transport()

    assert "CHAT_TOKEN" not in names, "a driver notifies nobody"


def test_an_executor_has_no_secret_and_no_token_of_the_cluster(render: Callable[..., Rendered]) -> None:
    spec = render().catalog.environment.kubernetes
    assert spec is not None
    pod = executor_pod(spec)["spec"]

    assert pod["containers"][0]["env"] == []
    assert pod["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] != driver_pod(spec, [])["spec"]["serviceAccountName"]


def test_no_value_of_a_secret_is_rendered(render: Callable[..., Rendered], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAKE | AWS | ALERTS | {"LINEAGE_KEY"}:
        monkeypatch.setenv(name, f"the-value-of-{name}")

    assert "the-value-of-" not in to_yaml(render().objects.values())


@pytest.mark.parametrize("deployment", sorted(RESOLVES))
def test_a_pod_may_do_no_more_than_the_standard_restricted_allows(
    render: Callable[..., Rendered], deployment: str
) -> None:
    pod, container = render().pod(deployment), render().container(deployment)

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"]


def test_a_relay_is_one_pod_whose_successor_starts_after_its_end(render: Callable[..., Rendered]) -> None:
    objects = render().objects
    relay = objects["Deployment", "relay-landing"]["spec"]

    assert (relay["replicas"], relay["strategy"]) == (1, {"type": "Recreate"})
    assert [name for kind, name in objects if kind == "PodDisruptionBudget"] == ["collector"]


def test_a_collector_of_one_pod_has_no_budget_that_would_hold_a_node(render: Callable[..., Rendered]) -> None:
    objects = render(environment=ENVIRONMENT.replace("name: edge", "name: edge, replicas: 1")).objects

    assert not [name for kind, name in objects if kind == "PodDisruptionBudget"]
    assert objects["StatefulSet", "collector"]["spec"]["replicas"] == 1


def test_acknowledged_events_are_on_a_volume_that_outlives_the_pod(render: Callable[..., Rendered]) -> None:
    rendered = render()
    container, owner = rendered.container("collector"), rendered.objects["StatefulSet", "collector"]["spec"]

    (claim,) = owner["volumeClaimTemplates"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["args"][container["args"].index("--spool") + 1] == mounts[claim["metadata"]["name"]]
    assert claim["metadata"]["name"] not in {volume["name"] for volume in rendered.pod("collector")["volumes"]}
    assert owner["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert ("Deployment", "collector") not in rendered.objects


def test_a_collector_is_reached_while_it_is_ready_and_has_time_to_end(render: Callable[..., Rendered]) -> None:
    rendered = render()
    container, service = rendered.container("collector"), rendered.objects["Service", "collector"]["spec"]

    assert container["args"][3:5] == ["collect", "edge"]
    assert {"name": "http", "containerPort": 8090} in container["ports"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "http"}
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    limits = rendered.catalog.collector("edge").limits
    assert rendered.pod("collector")["terminationGracePeriodSeconds"] > limits.drain_seconds + limits.flush_seconds
    assert service["ports"][0]["targetPort"] == "http"
    labels = rendered.objects["StatefulSet", "collector"]["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()
    headless = rendered.objects["StatefulSet", "collector"]["spec"]["serviceName"]
    assert rendered.objects["Service", headless]["spec"]["clusterIP"] == "None"


def test_probes_and_arguments_refer_to_existing_modules(render: Callable[..., Rendered]) -> None:
    rendered = render()

    for deployment in ("relay-landing", "deadman"):
        container = rendered.container(deployment)
        heartbeat_file = container["args"][container["args"].index("--heartbeat-file") + 1]
        for probe in ("startupProbe", "livenessProbe"):
            assert heartbeat_file in container[probe]["exec"]["command"][-1]
        assert heartbeat_file.startswith(container["volumeMounts"][0]["mountPath"])


def test_changed_settings_replace_pods(render: Callable[..., Rendered]) -> None:
    catalog = render().catalog

    def annotation(settings: Mapping[str, str]) -> str:
        deployment = next(item for item in manifests(catalog, settings) if item["kind"] == "Deployment")
        return str(deployment["spec"]["template"]["metadata"]["annotations"]["deltaworks/settings"])

    assert annotation(SETTINGS) == annotation(dict(reversed(SETTINGS.items())))
    assert annotation(SETTINGS) != annotation({**SETTINGS, "QUEUE": "http://aws:5000/other"})


def test_airflows_settings_are_those_of_compose(render: Callable[..., Rendered]) -> None:
    compose = COMPOSE["services"]["airflow-scheduler"]["environment"]
    data = render().objects["ConfigMap", AIRFLOW_SETTINGS_MAP]["data"]

    assert {name: compose[name] for name in AIRFLOW_SETTINGS} == dict(AIRFLOW_SETTINGS)
    remaining = {name for name in compose if name not in data}
    # Addresses and the login of Compose itself.
    assert remaining == {
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE",
    }
    connection = json.loads(data["AIRFLOW_CONN_SPARK_DEFAULT"])
    assert connection["host"].startswith("k8s://https://")
    assert connection["extra"] == {"deploy-mode": "cluster", "namespace": "lakehouse"}


def test_only_tasks_and_drivers_have_api_access(
    render: Callable[..., Rendered],
) -> None:
    objects = render().objects
    roles = {name: item["rules"] for (kind, name), item in objects.items() if kind == "Role"}
    bound = {
        name: [subject["name"] for subject in item["subjects"]]
        for (kind, name), item in objects.items()
        if kind == "RoleBinding"
    }

    assert bound == {"deltaworks-driver": ["deltaworks-driver"], "deltaworks-submitter": ["airflow-scheduler"]}
    rules = [rule for of_role in roles.values() for rule in of_role]
    assert not any("secrets" in rule["resources"] or "*" in rule["verbs"] for rule in rules)
    assert {"pods", "configmaps", "services"} <= set(roles["deltaworks-driver"][0]["resources"])
    assert objects["ServiceAccount", "deltaworks"]["metadata"]["annotations"] == {"role": "deltaworks"}


def test_an_environment_without_kubernetes_is_rejected_with_advice(render: Callable[..., Rendered]) -> None:
    with pytest.raises(ConfigError) as caught:
        _ = render(environment=ENVIRONMENT[: ENVIRONMENT.index("kubernetes:")]).objects

    assert caught.value.condition == "KUBERNETES_UNDECLARED"
    assert "kubernetes: {image:" in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("namespace: lakehouse", "namespace: Lake_House", "kubernetes.namespace"),
        ("name: edge}", "name: edge, replicas: 0}", "kubernetes.collector.replicas"),
        ("image: registry", "imag: registry", "kubernetes.imag: unknown key 'imag'"),
        (
            "lineage:",
            "spark: {protected: true, secret: env:DELTAWORKS_SPARK_SECRET}\nlineage:",
            "spark.secret: on Kubernetes each application generates its own secret: remove it",
        ),
    ],
)
def test_invalid_settings_are_rejected_at_their_keys(
    render: Callable[..., Rendered], old: str, new: str, problem: str
) -> None:
    assert old in ENVIRONMENT

    with pytest.raises(ConfigError) as caught:
        render(environment=ENVIRONMENT.replace(old, new, 1))

    assert caught.value.condition == "SPEC_INVALID"
    assert problem in caught.value.message
    assert "local.yaml:" in caught.value.message


def test_airflow_connections_are_rejected_for_pods(render: Callable[..., Rendered]) -> None:
    keys = "  access_key: env:DELTAWORKS_LAKE_ACCESS_KEY\n  secret_key: env:DELTAWORKS_LAKE_SECRET_KEY\n"

    with pytest.raises(ConfigError) as caught:
        render(environment=ENVIRONMENT.replace(keys, "  aws_conn_id: my_lake\n"))

    assert "lake.aws_conn_id: pods cannot read Airflow connections" in caught.value.message


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ("name: egde", "there is no collector 'egde'; did you mean 'edge'?"),
        ("name: edge, spool_size: 10Gi", "the spool of 'edge' needs up to 10240 MiB: make its volume larger"),
    ],
)
def test_invalid_collector_pods_are_rejected(render: Callable[..., Rendered], declared: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        render(environment=ENVIRONMENT.replace("name: edge", declared))

    assert problem in caught.value.message


def test_the_values_of_airflows_chart_refer_to_rendered_objects() -> None:
    text = (ROOT / "docs" / "how-to/deploy.md").read_text()
    block = text.partition("<!-- values of the chart of Airflow -->\n```yaml\n")[2].partition("```")[0]
    values = yaml.safe_load(block)
    spec = KubernetesSpec(image="x")

    sources = yaml.safe_load(values["extraEnvFrom"])
    assert sources == [
        {"configMapRef": {"name": SETTINGS_MAP}},
        {"configMapRef": {"name": AIRFLOW_SETTINGS_MAP}},
        {"secretRef": {"name": spec.secret}},
    ]
    assert f"FROM apache/airflow:{values['airflowVersion']}-" in (ROOT / "Dockerfile").read_text()
    assert spec.airflow_service_accounts == ("airflow-scheduler",)


VAULT = """\
privacy:
  keys: {kind: kms, key_id: alias/privacy}
  vault: {root: "s3://vault", access_key: env:VAULT_ACCESS_KEY, secret_key: env:VAULT_SECRET_KEY}
"""
PRIVATE = """\
privacy:
  namespace: shop_customers
  fields: [{path: email, action: vault, as: email}]
"""


def with_vault(render: Callable[..., Rendered]) -> Rendered:
    environment = ENVIRONMENT.replace(
        "service_account_annotations: {role: deltaworks}",
        "service_account_annotations: {role: deltaworks}\n  vault_account_annotations: {role: vault}",
    )
    return render(environment=environment + VAULT, pipeline=PIPELINE.replace("tables:\n", PRIVATE + "tables:\n", 1))


def test_vault_jobs_have_an_exclusive_service_account(render: Callable[..., Rendered]) -> None:
    objects = with_vault(render).objects
    jobs = {name: item for (kind, name), item in objects.items() if kind == "CronJob"}

    assert set(jobs) == {f"vault-{verb}-shop-customers" for verb in ("ingest", "maintain", "erase")}
    for job in jobs.values():
        pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        assert (pod["serviceAccountName"], pod["restartPolicy"]) == ("deltaworks-vault", "Never")
        assert job["spec"]["concurrencyPolicy"] == "Forbid"
        (container,) = pod["containers"]
        assert container["args"][-3:] == ["--namespace", "shop_customers", '--options={"dry_run":false}']
        assert {"VAULT_ACCESS_KEY", "VAULT_SECRET_KEY"} <= {variable["name"] for variable in container["env"]}
    account = objects["ServiceAccount", "deltaworks-vault"]
    assert account["metadata"]["annotations"] == {"role": "vault"}
    assert objects["ServiceAccount", "deltaworks"]["metadata"]["annotations"] == {"role": "deltaworks"}
    others = [item for (kind, _), item in objects.items() if kind in ("Deployment", "StatefulSet")]
    assert all(item["spec"]["template"]["spec"]["serviceAccountName"] != "deltaworks-vault" for item in others)


def test_without_a_vault_there_is_neither_a_job_nor_its_account(render: Callable[..., Rendered]) -> None:
    objects = render().objects

    assert not [name for kind, name in objects if kind == "CronJob" or name == "deltaworks-vault"]


KINDS = {
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ConfigMap",
    "Deployment",
    "StatefulSet",
    "Service",
    "PodDisruptionBudget",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_by_its_schema(render: Callable[..., Rendered], version: str) -> None:
    objects = render().objects

    for item in objects.values():
        check(item, version)
    assert {kind for kind, _ in objects} == KINDS


@pytest.mark.parametrize("version", VERSIONS)
def test_spark_pods_are_valid_by_their_schema(render: Callable[..., Rendered], version: str) -> None:
    spec = render().catalog.environment.kubernetes
    assert spec is not None

    check(driver_pod(spec, ["LINEAGE_KEY"]), version)
    check(executor_pod(spec), version)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shipped_environment_is_rendered_with_its_example(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = read_variables(ROOT / "docker" / "kubernetes.env.example")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    objects = manifests(load_catalog(root=ROOT), settings)

    for item in objects:
        check(item, version)
    assert {"relay-landing", "relay-partners", "deadman"} == {
        item["metadata"]["name"] for item in objects if item["kind"] == "Deployment"
    }


def test_printed_manifests_parse_to_the_rendered_ones(render: Callable[..., Rendered]) -> None:
    rendered = list(render().objects.values())

    assert list(yaml.safe_load_all(to_yaml(rendered))) == rendered


Break = Callable[[dict[str, Any]], Any]
#: A field with a wrong name, of a wrong type, with a value there is not, and one that is missing.
BREAKS: dict[str, Break] = {
    "relpicas": lambda item: item["spec"].update(relpicas=2),
    "replicas": lambda item: item["spec"].update(replicas="2"),
    "readOnly": lambda item: _container(item)["volumeMounts"][0].update(readOnly="yes"),
    "livenessProbe": lambda item: _container(item)["livenessProbe"].update(period=5),
    "selector": lambda item: item["spec"].pop("selector"),
}


def _container(item: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = item["spec"]["template"]["spec"]["containers"][0]
    return container


@pytest.mark.parametrize("name", sorted(BREAKS))
def test_a_schema_violation_is_detected(render: Callable[..., Rendered], name: str) -> None:
    item = copy.deepcopy(render().objects["Deployment", "relay-landing"])
    check(item, VERSIONS[-1])

    BREAKS[name](item)

    with pytest.raises(kubernetes_validate.ValidationError):
        check(item, VERSIONS[-1])


def written(folder: Path, text: str) -> Path:
    path = folder / "settings.env"
    path.write_text(text)
    return path


def test_a_file_is_read_as_docker_reads_it(tmp_path: Path) -> None:
    path = written(tmp_path, "# A=comment\n\nNAME=value\nURL=https://x/?a=b\nQUOTED='kept'\nEMPTY=\n")

    assert read_variables(path) == {"NAME": "value", "URL": "https://x/?a=b", "QUOTED": "'kept'", "EMPTY": ""}


@pytest.mark.parametrize("line", ["export NAME=value", "NAME", "1NAME=x", "NA ME=x"])
def test_an_invalid_line_is_rejected_with_its_number(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_variables(written(tmp_path, f"A=1\n{line}\n"))

    assert caught.value.condition == "KUBERNETES_SETTINGS_INVALID"
    assert "settings.env:2 is not of the form NAME=value" in caught.value.message


def test_a_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_variables(tmp_path / "nowhere.env")


@pytest.mark.parametrize(
    "name",
    ["DELTAWORKS_LAKE_ACCESS_KEY", "CHAT_TOKEN", "AIRFLOW__CORE__FERNET_KEY", "AIRFLOW_CONN_X", "DB_PASSWORD"],
)
def test_a_secret_is_refused_and_not_shown(render: Callable[..., Rendered], tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        reject_secrets({name: "hunter2", "AWS_REGION": "eu-central-1"}, tmp_path / "settings.env", render().catalog)

    assert f"contains {name}: secrets must not be in a ConfigMap" in caught.value.message
    assert "hunter2" not in str(caught.value)


def test_a_secret_is_detected_by_its_use(render: Callable[..., Rendered], tmp_path: Path) -> None:
    environment = ENVIRONMENT.replace("env:DELTAWORKS_LAKE_SECRET_KEY", "env:INNOCENT")

    with pytest.raises(ConfigError, match="INNOCENT"):
        reject_secrets({"INNOCENT": "x"}, tmp_path, render(environment=environment).catalog)


@pytest.fixture
def restored_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a command sets is gone after the test."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.mark.usefixtures("restored_environment")
def test_the_command_prints_manifests_and_says_what_the_secret_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = RELAY.replace("http://localhost/queue", "env:QUEUE")
    write_collector(write_project(tmp_path, environment=ENVIRONMENT, pipeline=PIPELINE, relay=relay))
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path))
    settings = written(tmp_path, "DELTAWORKS_ENVIRONMENT=local\nQUEUE=http://queue\n")

    done = CliRunner().invoke(app, ["deploy", "kubernetes", "--settings", str(settings)])

    assert done.exit_code == 0, done.output
    objects = list(yaml.safe_load_all(done.stdout))
    assert {"relay-landing", "deadman", "collector"} <= {item["metadata"]["name"] for item in objects}
    assert "Secret deltaworks in namespace lakehouse needs: CHAT_TOKEN, CHAT_URL, " in done.stderr
    assert "QUEUE" not in done.stderr
