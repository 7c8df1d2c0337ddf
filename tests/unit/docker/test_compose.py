"""docker-compose.yaml holds together: services, what they wait for, and the variables Deltaworks reads."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from deltaworks.airflow.names import AIRFLOW_CONNECTION, POOL_RELAYS, POOL_SPARK_JOBS, POOL_STREAMS, SPARK_CONNECTION
from deltaworks.specs.catalog import load_catalog
from deltaworks.specs.sources.objects import FileSourceSpec
from sandbox.servers.landing import queue_url

ROOT = Path(__file__).resolve().parents[3]
COMPOSE: dict[str, Any] = YAML(typ="safe").load((ROOT / "docker-compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
AIRFLOW = {"airflow-init", "airflow-apiserver", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"}
ONE_SHOT = {"airflow-init", "landing-init"}


def variables(name: str) -> dict[str, str]:
    """A file of variables as Docker reads it."""
    lines = (ROOT / "docker" / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def test_the_services_have_airflows_official_names() -> None:
    assert set(SERVICES) == AIRFLOW | {
        "postgres",
        "deadman",
        "spark-master",
        "spark-worker-1",
        "spark-worker-2",
        "moto",
        "s3proxy",
        "landing-init",
    }


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_what_a_service_waits_for_is_there_and_can_be_told(name: str) -> None:
    for needed, how in SERVICES[name].get("depends_on", {}).items():
        condition = how["condition"]

        assert needed in SERVICES
        assert condition == ("service_completed_successfully" if needed in ONE_SHOT else "service_healthy")
        assert needed in ONE_SHOT or "healthcheck" in SERVICES[needed]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_of_the_default_profile_waits_for_none_of_another(name: str) -> None:
    profiles = SERVICES[name].get("profiles", [])

    for needed in SERVICES[name].get("depends_on", {}):
        assert SERVICES[needed].get("profiles", []) in ([], profiles)


@pytest.mark.parametrize("name", sorted(set(SERVICES) - ONE_SHOT))
def test_every_service_that_stays_up_is_checked_and_started_again(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"]
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", sorted(ONE_SHOT))
def test_a_one_shot_service_is_not_started_again(name: str) -> None:
    assert SERVICES[name]["restart"] == "no"


def test_every_volume_that_is_mounted_is_declared_and_used() -> None:
    mounted = {mount.split(":")[0] for service in SERVICES.values() for mount in service.get("volumes", [])}

    assert mounted == set(COMPOSE["volumes"])


def test_no_two_services_publish_one_port() -> None:
    published = [port.split(":")[0] for service in SERVICES.values() for port in service.get("ports", [])]

    assert len(published) == len(set(published))


def test_every_image_is_pinned() -> None:
    for service in SERVICES.values():
        image = re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", service["image"])

        assert re.fullmatch(r"[a-z/]+:\d[\w.]*", image), image


def test_airflow_runs_on_postgres_and_its_parts_find_each_other() -> None:
    for name in AIRFLOW:
        settings = SERVICES[name]["environment"]

        assert settings["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
        assert "@postgres/" in settings["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
        assert settings["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://airflow-apiserver:8080/execution/"


def test_every_airflow_setting_is_one_airflow_knows() -> None:
    from airflow.configuration import conf

    settings = {**SERVICES["airflow-scheduler"]["environment"], **variables("local.env")}
    named = [name.split("__")[1:] for name in settings if name.startswith("AIRFLOW__")]

    unknown = [
        name for name in named if name[1].lower() not in conf.configuration_description[name[0].lower()]["options"]
    ]

    # Options of the simple auth manager are its own.
    assert [name for name in unknown if not name[1].startswith("SIMPLE_AUTH_MANAGER")] == []


def test_a_streams_token_and_heartbeats_outlast_its_run() -> None:
    settings = SERVICES["airflow-scheduler"]["environment"]
    longest = max(spec.stream.max_run_seconds for spec in load_catalog("compose").pipelines.values())

    assert int(settings["AIRFLOW__EXECUTION_API__JWT_EXPIRATION_TIME"]) > longest
    assert int(settings["AIRFLOW__WORKERS__MAX_FAILED_HEARTBEATS"]) >= 10


def test_the_spark_connection_names_the_master_of_the_cluster() -> None:
    settings = SERVICES["airflow-scheduler"]["environment"]

    connection = json.loads(settings[f"AIRFLOW_CONN_{SPARK_CONNECTION.upper()}"])

    master = SERVICES["spark-master"]
    assert connection == {"conn_type": "spark", "host": f"spark://{master['hostname']}", "port": 7077}
    assert "7077" in master["command"]
    for worker in ("spark-worker-1", "spark-worker-2"):
        assert SERVICES[worker]["command"][-1] == f"{connection['host']}:{connection['port']}"
        assert SERVICES[worker]["hostname"] == worker


def test_the_health_check_of_the_local_profile_can_log_in() -> None:
    known = variables("local.env")
    connection = json.loads(known[f"AIRFLOW_CONN_{AIRFLOW_CONNECTION.upper()}"])
    api = SERVICES["airflow-scheduler"]["environment"]["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]

    assert connection["host"] == api.removesuffix("/execution/")
    assert (connection["login"], connection["password"]) == ("admin", known["AIRFLOW_ADMIN_PASSWORD"])


@pytest.mark.parametrize("environment", ["compose", "local", "aws"])
def test_the_project_loads_in_every_environment(environment: str) -> None:
    catalog = load_catalog(environment)

    assert catalog.environment.environment == environment
    sources = [pipeline.source for pipeline in catalog.pipelines.values()]
    of_objects = [source for source in sources if isinstance(source, FileSourceSpec)]
    assert of_objects
    for source in of_objects:
        assert source.bucket == catalog.environment.landing.bucket
        assert source.bucket in catalog.relay(source.relay).buckets


@pytest.mark.parametrize(("environment", "file"), [("compose", "local.env"), ("aws", "aws.env.example")])
def test_every_reference_of_an_environment_has_a_variable(environment: str, file: str) -> None:
    given = variables(file)
    pipelines = load_catalog(environment, only=given["DELTAWORKS_PIPELINES"].split(",")).pipelines
    referenced: set[str] = set()
    texts = [ROOT / "include" / "environments" / f"{environment}.yaml", *(ROOT / "include" / "relays").glob("*.yaml")]
    texts += [ROOT / "include" / "pipelines" / name / "pipeline.yaml" for name in pipelines]
    for path in texts:
        referenced |= set(re.findall(r"env:([A-Z_]+)", path.read_text()))

    assert given["DELTAWORKS_ENVIRONMENT"] == environment
    assert referenced - set(given) == set()


def test_the_local_profile_points_at_its_own_servers() -> None:
    given = variables("local.env")

    for variable, service in (("DELTAWORKS_LAKE_ENDPOINT", "s3proxy"), ("DELTAWORKS_AWS_ENDPOINT", "moto")):
        host, port = given[variable].removeprefix("http://").split(":")
        assert host == service
        assert f"{port}:{port}" in SERVICES[service]["ports"]
        assert "local" in SERVICES[service]["profiles"]
    assert given["DELTAWORKS_LANDING_QUEUE_URL"] == queue_url(given["DELTAWORKS_AWS_ENDPOINT"])


def test_the_fernet_key_of_the_local_profile_is_one() -> None:
    assert len(base64.urlsafe_b64decode(variables("local.env")["AIRFLOW__CORE__FERNET_KEY"])) == 32


def test_the_example_for_aws_holds_no_secret() -> None:
    given = variables("aws.env.example")

    secret = {name: value for name, value in given.items() if re.search(r"KEY|SECRET|PASSWORD", name)}
    assert secret
    assert set(secret.values()) == {""}


def test_the_init_script_makes_every_pool_the_dags_use() -> None:
    script = (ROOT / "docker" / "init.sh").read_text()

    made = set(re.findall(r"^airflow pools set (\w+)", script, re.MULTILINE))

    assert made == {POOL_STREAMS, POOL_RELAYS, POOL_SPARK_JOBS}
    assert re.search(r"^airflow db migrate$", script, re.MULTILINE)
    assert script.count("set -euo pipefail") == 1


@pytest.mark.parametrize("script", ["init.sh", "s3proxy.sh"])
def test_a_script_is_valid_bash(script: str) -> None:
    done = subprocess.run(["bash", "-n", ROOT / "docker" / script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_scripts_of_services_are_in_the_image() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()

    for service in SERVICES.values():
        for word in service.get("command", []) if isinstance(service.get("command"), list) else []:
            if word.startswith("/opt/deltaworks/"):
                assert f"docker/{Path(word).name}" in dockerfile
