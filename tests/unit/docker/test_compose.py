"""docker-compose.yaml is consistent: services, their dependencies and their variables."""

from __future__ import annotations

import ast
import base64
import importlib
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deltaworks.airflow.names import AIRFLOW_CONNECTION, SPARK_CONNECTION
from deltaworks.cli import services
from deltaworks.specs.checks.project import check_project
from deltaworks.specs.project import load_catalog
from deltaworks.specs.sources import FileSourceSpec
from deltaworks.specs.weak_secrets import secret_weakness
from deltaworks.testing import present
from sandbox.servers.landing import queue_url
from tests.processes import run_process
from tests.unit.docker.secrets_script import FILES, WEBHOOK_FILE, make_secrets

ROOT = Path(__file__).resolve().parents[3]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
AIRFLOW = {"airflow-init", "airflow-apiserver", "airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"}
ONE_SHOT = {"airflow-init", "landing-init", "keyring-init"}
SETTINGS = "${DELTAWORKS_ENV_FILE:-docker/local.env}"
LOOPBACK = "${DELTAWORKS_BIND:-127.0.0.1}:"
#: What each service needs, and no other secret.
SECRETS = {
    "postgres": {"postgres"},
    "airflow-init": {"airflow", "airflow-admin", "alerts"},
    "airflow-apiserver": {"airflow", "airflow-tokens", "airflow-logs", "lake", "alerts"},
    "airflow-scheduler": {
        "airflow",
        "airflow-tokens",
        "airflow-logs",
        "airflow-login",
        "spark",
        "lake",
        "landing",
        "alerts",
    },
    "airflow-dag-processor": {"airflow", "lake", "landing", "alerts"},
    "airflow-triggerer": {"airflow", "airflow-logs", "lake"},
    "deadman": {"lake", "landing", "alerts"},
    "metrics": {"lake"},
    "keyring-init": set(),
    "collector": {"lake", "landing", "write-keys"},
    "spark-master": {"spark"},
    "spark-worker-1": {"spark"},
    "spark-worker-2": {"spark"},
    "moto": {"lake", "landing"},
    "kafka": set(),
    "s3proxy": {"lake"},
    "landing-init": {"lake", "landing"},
}


def variables(name: str) -> dict[str, str]:
    """A file of variables as Docker reads it."""
    lines = (ROOT / "docker" / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All variables that are made at the first start."""
    folder = tmp_path_factory.mktemp("docker") / "secrets"
    make_secrets(folder)
    lines = [line for path in folder.iterdir() for line in path.read_text().splitlines()]
    return dict(line.split("=", 1) for line in lines)


#: Airflow writes its configuration below its home, Spark's workers and Kafka theirs beside their programs.
WRITABLE = {name for name in SERVICES if name in AIRFLOW or name.startswith("spark-")} | {"postgres", "kafka"}
#: Whose entry point starts as root, and what it needs before it gives that up.
ROOT_CAPABILITIES = {"postgres": {"CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"}}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_has_no_privileges_and_a_limit_of_memory(name: str) -> None:
    service = SERVICES[name]

    assert service["cap_drop"] == ["ALL"]
    assert set(service.get("cap_add", ())) == ROOT_CAPABILITIES.get(name, set())
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"\d+[mg]|\$\{\w+:-\d+[mg]\}", service["mem_limit"])
    assert not service.keys() & {"privileged", "pid", "network_mode", "devices", "userns_mode", "ipc"}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_writes_only_to_its_volumes_and_tmp(name: str) -> None:
    service = SERVICES[name]

    assert bool(service.get("read_only")) == (name not in WRITABLE)
    assert service.get("tmpfs", []) == ([] if name in WRITABLE else ["/tmp"])
    for volume in service.get("volumes", ()):
        assert not volume.startswith(("/", ".", "~")), "a folder of the host"


def test_limits_of_memory_hold_what_the_processes_are_given() -> None:
    def gib(text: str) -> float:
        number = present(re.search(r"(\d+)([mg])", text.partition(":-")[2] or text))
        return int(number[1]) / (1 if number[2] == "g" else 1024)

    command = SERVICES["spark-worker-1"]["command"]
    assert gib(SERVICES["spark-worker-1"]["mem_limit"]) >= 2 * gib(command[command.index("--memory") + 1])
    assert gib(SERVICES["kafka"]["mem_limit"]) >= 2 * gib(SERVICES["kafka"]["environment"]["KAFKA_HEAP_OPTS"])
    assert gib(SERVICES["s3proxy"]["mem_limit"]) >= 2 * 0.25


def test_the_services_have_airflows_official_names() -> None:
    assert set(SERVICES) == AIRFLOW | {
        "postgres",
        "deadman",
        "metrics",
        "keyring-init",
        "collector",
        "spark-master",
        "spark-worker-1",
        "spark-worker-2",
        "moto",
        "s3proxy",
        "kafka",
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

    for needed, how in SERVICES[name].get("depends_on", {}).items():
        is_off = SERVICES[needed].get("profiles", []) not in ([], profiles)
        assert is_off is (how.get("required") is False)


def test_what_watches_and_reads_the_lake_waits_for_the_one_of_the_local_profile() -> None:
    for name in ("deadman", "metrics", "airflow-scheduler"):
        assert SERVICES[name]["depends_on"]["landing-init"]["condition"] == "service_completed_successfully"


def test_figures_are_served_where_their_health_check_and_their_port_are() -> None:
    service = SERVICES["metrics"]
    words = service["command"][service["command"].index("metrics") :]
    port = words[words.index("--port") + 1]

    assert words[words.index("--host") + 1] == "0.0.0.0", "else nobody beside the container reaches them"
    assert service["ports"] == [f"{LOOPBACK}{port}:{port}"]
    assert service["healthcheck"]["test"][-1] == f"http://localhost:{port}/metrics"
    assert int(port) == services.PORT


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


def test_what_a_collector_acknowledged_is_on_a_volume_and_it_has_time_to_end() -> None:
    service = SERVICES["collector"]
    mount, _ = service["volumes"]
    spool = service["command"][service["command"].index("--spool") + 1]

    assert mount == f"collector-spool:{spool}"
    assert f"{spool} " in (ROOT / "Dockerfile").read_text(), "else the volume would be root's"
    assert int(service["stop_grace_period"].removesuffix("s")) > 30


def test_what_the_landing_side_and_the_broker_took_is_on_volumes() -> None:
    moto, kafka = SERVICES["moto"], SERVICES["kafka"]
    journal = Path(moto["command"][moto["command"].index("--journal") + 1])

    assert moto["volumes"] == [f"landing:{journal.parent}"]
    assert f"{journal.parent} " in (ROOT / "Dockerfile").read_text(), "else the volume would be root's"
    assert moto["command"][moto["command"].index("--store") + 1] == variables("local.env")["DELTAWORKS_LAKE_ENDPOINT"]
    (volume,) = kafka["volumes"]
    assert kafka["environment"]["KAFKA_LOG_DIRS"].startswith(f"{volume.partition(':')[2]}/")


#: The volumes with keys of personal data, and who has which.
KEYRINGS = {
    "airflow-scheduler": {"keyring"},
    "collector": {"keyring-writers"},
    "keyring-init": {"keyring", "keyring-writers"},
}


def keyrings(name: str) -> dict[str, str]:
    """The mounted volumes with keys, by name."""
    mounts = (item.partition(":") for item in SERVICES[name].get("volumes", []))
    return {volume: folder for volume, _, folder in mounts if volume.startswith("keyring")}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_has_the_keys_of_personal_data_it_needs_and_no_other(name: str) -> None:
    assert set(keyrings(name)) == KEYRINGS.get(name, set())


def test_no_service_has_the_keyring_by_another_way() -> None:
    assert not [mount for mount in COMPOSE["x-airflow"]["volumes"] if "keyring" in mount]
    for name, service in SERVICES.items():
        assert "keyring" not in json.dumps(service.get("environment", {})), name
        assert not {"volumes_from", "secrets", "configs"} & service.keys(), name


@pytest.mark.parametrize("name", sorted(KEYRINGS))
def test_a_keyring_is_mounted_where_its_user_looks_for_it(name: str) -> None:
    folder = Path(variables("local.env")["DELTAWORKS_KEYRING"])

    assert folder.parent in {Path(mounted) for mounted in keyrings(name).values()}
    for mounted in keyrings(name).values():
        assert f"{mounted} " in (ROOT / "Dockerfile").read_text(), "else the volume would be root's"


def test_keys_are_created_before_anybody_who_needs_them_starts() -> None:
    service = SERVICES["keyring-init"]
    folder = Path(variables("local.env")["DELTAWORKS_KEYRING"]).name
    written = Path(service["command"][service["command"].index("--writers") + 1])

    assert written == Path(keyrings("keyring-init")["keyring-writers"]) / folder
    for name in set(KEYRINGS) - {"keyring-init"}:
        assert SERVICES[name]["depends_on"]["keyring-init"]["condition"] == "service_completed_successfully"


def test_the_command_that_creates_the_keys_works_with_the_settings_of_its_service(tmp_path: Path) -> None:
    command = ["python", *SERVICES["keyring-init"]["command"][1:-1], str(tmp_path / "writers")]
    settings = {
        **variables("local.env"),
        "DELTAWORKS_KEYRING": str(tmp_path / "keys"),
        "DELTAWORKS_HOME": str(tmp_path),
    }

    variables_of_it = {**settings, "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "include")}
    run_process(command, check=True, cwd=ROOT, env=variables_of_it)

    writers = {path.name for path in (tmp_path / "writers").iterdir()}
    namespaces = set(load_catalog("compose").namespaces)
    assert namespaces
    assert writers == {
        ".writers",
        *(f"{name}.{key}" for name in namespaces for key in ("token.key", "seal.pub", "unreadable.pub")),
    }


def test_without_a_keyring_the_command_creates_nothing_and_does_not_fail(tmp_path: Path) -> None:
    command = ["python", *SERVICES["keyring-init"]["command"][1:-1], str(tmp_path / "writers")]
    example = variables("aws.env.example")
    settings = {"DELTAWORKS_ENVIRONMENT": "aws", "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "include")}
    settings["DELTAWORKS_HOME"] = str(tmp_path)

    done = run_process(command, check=True, cwd=ROOT, env={**example, **settings})

    assert "declares no keyring" in done.stdout
    assert not (tmp_path / "writers").exists()


def test_no_two_services_publish_one_port() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    numbers = [port.removeprefix(LOOPBACK).split(":")[0] for port in published]

    assert len(numbers) == len(set(numbers))


def test_ports_are_published_on_this_machine_alone_unless_one_variable_says_otherwise() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]

    assert published
    assert all(port.startswith(LOOPBACK) for port in published), published
    assert "`DELTAWORKS_BIND`" in (ROOT / "docs" / "how-to/deploy.md").read_text()


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_is_given_the_secrets_it_needs_and_no_other(name: str) -> None:
    files = [file for file in SERVICES[name].get("env_file", []) if file != SETTINGS]

    assert files == [f"docker/secrets/{file}.env" for file in FILES_IN_ORDER if file in SECRETS[name]]


FILES_IN_ORDER = [
    "postgres",
    "airflow",
    "airflow-tokens",
    "airflow-logs",
    "airflow-admin",
    "airflow-login",
    "spark",
    "lake",
    "landing",
    "write-keys",
    "alerts",
]


def test_every_file_of_secrets_is_one_that_is_made() -> None:
    assert {f"{name}.env" for name in FILES_IN_ORDER} == {*FILES, WEBHOOK_FILE}
    assert set.union(*SECRETS.values()) == set(FILES_IN_ORDER)


@pytest.mark.parametrize("name", ["moto", "kafka", "s3proxy", "spark-master", "spark-worker-1", "spark-worker-2"])
def test_what_parses_bytes_of_producers_holds_no_secret_of_airflow(name: str) -> None:
    service = SERVICES[name]

    assert not any("airflow" in file or "postgres" in file for file in service.get("env_file", []))
    assert not any(variable.startswith("AIRFLOW") for variable in service.get("environment", {}))
    assert not any("airflow" in mount for mount in service.get("volumes", []))


def test_no_secret_is_in_a_committed_file() -> None:
    texts = [
        (ROOT / "docker-compose.yaml").read_text(),
        *(path.read_text() for path in (ROOT / "docker").glob("*.env")),
    ]
    names = {name for makers in FILES.values() for name in makers}

    for text in texts:
        assert not re.search(rf"^\s*({'|'.join(sorted(names))})\s*[:=]", text, re.MULTILINE)
        assert not re.search(r"(?i)(password|secret_key|jwt_secret)\s*[:=]\s*\w", text)
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"docker/secrets/", "docker/aws.env", "docker/kubernetes.env"} <= set(ignored)


def test_the_password_file_of_the_login_is_where_it_is_read_and_nowhere_else() -> None:
    mounting = {
        name for name, service in SERVICES.items() if any("auth:" in mount for mount in service.get("volumes", []))
    }

    assert mounting == {"airflow-init", "airflow-apiserver"}


def test_every_image_is_pinned() -> None:
    for service in SERVICES.values():
        image = re.sub(r"^\$\{\w+:-(.*)\}(-local)?$", r"\1", service["image"])

        assert re.fullmatch(r"[a-z/]+:\d[\w.]*(@sha256:[0-9a-f]{64})?", image), image


def test_only_what_stands_for_aws_is_built_from_the_stage_with_the_sandbox() -> None:
    built = {name: service["build"]["target"] for name, service in SERVICES.items() if "build" in service}

    assert {name for name, target in built.items() if target == "local"} == {"moto", "landing-init"}
    assert {name for name, target in built.items() if target == "product"} == set(SERVICES) - {
        "moto",
        "landing-init",
        "postgres",
        "kafka",
    }


def test_airflow_runs_on_postgres_and_its_parts_find_each_other() -> None:
    for name in AIRFLOW:
        settings = SERVICES[name]["environment"]

        assert settings["AIRFLOW__CORE__EXECUTOR"] == "deltaworks.airflow.executor.LocalExecutor"
        assert "docker/secrets/airflow.env" in SERVICES[name]["env_file"]
        assert settings["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://airflow-apiserver:8080/execution/"


def test_every_airflow_setting_is_one_airflow_knows() -> None:
    from airflow.configuration import conf

    made = {name: "" for makers in FILES.values() for name in makers}
    settings = {**SERVICES["airflow-scheduler"]["environment"], **variables("local.env"), **made}
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
    assert master["command"][:3] == ["bash", "/opt/deltaworks/spark.sh", "master"]
    for worker in ("spark-worker-1", "spark-worker-2"):
        assert SERVICES[worker]["command"][-1] == f"{connection['host']}:{connection['port']}"
        assert SERVICES[worker]["command"][:3] == ["bash", "/opt/deltaworks/spark.sh", "worker"]
        assert SERVICES[worker]["hostname"] == worker


def test_the_health_check_of_the_local_profile_can_log_in(secrets: dict[str, str]) -> None:
    connection = json.loads(secrets[f"AIRFLOW_CONN_{AIRFLOW_CONNECTION.upper()}"])
    api = SERVICES["airflow-scheduler"]["environment"]["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]

    assert connection["host"] == api.removesuffix("/execution/")
    assert (connection["login"], connection["password"]) == ("admin", secrets["AIRFLOW_ADMIN_PASSWORD"])


def test_airflow_and_its_database_have_one_password(secrets: dict[str, str]) -> None:
    login = f"//airflow:{secrets['POSTGRES_PASSWORD']}@postgres/airflow"

    assert secrets["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].endswith(login)


@pytest.mark.parametrize("environment", ["compose", "local", "aws", "kubernetes"])
def test_the_project_loads_in_every_environment(environment: str) -> None:
    catalog = load_catalog(environment)

    assert catalog.environment.environment == environment
    sources = [pipeline.source for pipeline in catalog.pipelines.values()]
    of_objects = [source for source in sources if isinstance(source, FileSourceSpec)]
    assert of_objects
    for source in of_objects:
        is_announced = catalog.relay(source.relay).queue_url is not None
        assert (source.bucket == catalog.environment.landing.bucket) == is_announced
        assert source.bucket in catalog.relay(source.relay).buckets


@pytest.mark.parametrize(
    ("environment", "file"),
    [("compose", "local.env"), ("aws", "aws.env.example"), ("kubernetes", "kubernetes.env.example")],
)
def test_every_reference_of_an_environment_has_a_variable(environment: str, file: str) -> None:
    given = variables(file)
    only = [name for name in given["DELTAWORKS_PIPELINES"].split(",") if name]
    pipelines = load_catalog(environment, only=only or None).pipelines
    referenced: set[str] = set()
    texts = [ROOT / "include" / "environments" / f"{environment}.yaml", *(ROOT / "include" / "relays").glob("*.yaml")]
    texts += [ROOT / "include" / "pipelines" / name / "pipeline.yaml" for name in pipelines]
    for path in texts:
        referenced |= set(re.findall(r"env:([A-Z_]+)", path.read_text()))

    made = {name for makers in FILES.values() for name in makers}

    assert given["DELTAWORKS_ENVIRONMENT"] == environment
    assert referenced - set(given) - made == set()


def test_the_local_profile_points_at_its_own_servers() -> None:
    given = variables("local.env")

    for variable, service in (("DELTAWORKS_LAKE_ENDPOINT", "s3proxy"), ("DELTAWORKS_AWS_ENDPOINT", "moto")):
        host, port = given[variable].removeprefix("http://").split(":")
        assert host == service
        assert f"{LOOPBACK}{port}:{port}" in SERVICES[service]["ports"]
        assert "local" in SERVICES[service]["profiles"]
    advertised = SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"PLAINTEXT://{given['DELTAWORKS_KAFKA_BOOTSTRAP']}," in advertised
    assert SERVICES["kafka"]["ports"] == [f"{LOOPBACK}{advertised.rpartition(':')[2]}:{advertised.rpartition(':')[2]}"]
    assert given["DELTAWORKS_LANDING_QUEUE_URL"] == queue_url(given["DELTAWORKS_AWS_ENDPOINT"])


def test_the_fernet_key_that_is_made_is_one(secrets: dict[str, str]) -> None:
    assert len(base64.urlsafe_b64decode(secrets["AIRFLOW__CORE__FERNET_KEY"])) == 32


def test_simple_auth_is_allowed_by_the_local_profile_alone() -> None:
    assert variables("local.env")["DELTAWORKS_ALLOW_SIMPLE_AUTH"] == "true"
    assert "DELTAWORKS_ALLOW_SIMPLE_AUTH" not in variables("aws.env.example")


def test_the_example_for_aws_asks_for_no_secret() -> None:
    # Containers that run executors read it, too.
    assert not [name for name in variables("aws.env.example") if re.search(r"KEY|SECRET|PASSWORD", name)]


def test_no_secret_that_is_made_is_weak(secrets: dict[str, str]) -> None:
    assert {name: secret_weakness(value) for name, value in secrets.items() if secret_weakness(value)} == {}


@pytest.mark.parametrize("name", ["compose", "aws"])
def test_the_declared_cluster_is_that_of_the_containers(name: str) -> None:
    cluster = load_catalog(name, root=ROOT, only=()).environment.shares.cluster
    workers = [service["command"] for service in SERVICES.values() if "worker" in service.get("command", ())]

    def default(command: list[str], option: str) -> str:
        return re.sub(r"^\$\{\w+:-(\w+)\}$", r"\1", command[command.index(option) + 1])

    assert cluster is not None
    assert len(workers) == cluster.workers
    for command in workers:
        assert default(command, "--cores") == str(cluster.worker_cores)
        assert default(command, "--memory") == cluster.worker_memory


@pytest.mark.parametrize("name", ["compose", "aws"])
def test_every_stream_and_a_job_of_each_class_fit_the_containers_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTAWORKS_PIPELINES", "")

    assert [remark for remark in check_project(name, root=ROOT).warnings if "shares" in remark.key] == []


def test_the_init_script_makes_every_pool_the_dags_use() -> None:
    script = (ROOT / "docker" / "init.sh").read_text()

    printed = present(re.search(r'^python -m deltaworks.cli pipelines pools > "(\S+)"$', script, re.MULTILINE))
    assert f'airflow pools import "{printed[1]}"' in script
    assert re.search(r"^airflow db migrate$", script, re.MULTILINE)
    assert script.count("set -euo pipefail") == 1
    assert script.index("python -m deltaworks.airflow.deployment") < script.index("airflow db migrate")


@pytest.mark.parametrize(
    ("script", "variable"),
    [
        ("s3proxy.sh", "DELTAWORKS_LAKE_SECRET_KEY"),
        ("init.sh", "AIRFLOW_ADMIN_PASSWORD"),
        ("spark.sh", "DELTAWORKS_SPARK_SECRET"),
    ],
)
def test_a_service_without_its_secret_says_who_makes_it(script: str, variable: str) -> None:
    others = {"DELTAWORKS_LAKE_ACCESS_KEY": "lake", "PATH": os.environ["PATH"]}

    ran = run_process(["bash", ROOT / "docker" / script, "master"], env={**others, variable: ""})

    assert ran.returncode != 0
    assert f"{variable}: is blank: make secrets" in ran.stderr


@pytest.mark.parametrize("script", ["init.sh", "s3proxy.sh", "spark.sh"])
def test_a_script_is_valid_bash(script: str) -> None:
    done = subprocess.run(["bash", "-n", ROOT / "docker" / script], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


def test_the_scripts_of_services_are_in_the_image() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()

    commands = [service["command"] for service in SERVICES.values() if isinstance(service.get("command"), list)]
    scripts = {
        Path(word).name for command in commands for word in command if re.match(r"/opt/deltaworks/\S+\.sh$", word)
    }

    assert scripts
    assert [script for script in sorted(scripts) if f"docker/{script}" not in dockerfile] == []


def test_the_python_in_a_script_imports_what_is_there() -> None:
    script = (ROOT / "docker" / "init.sh").read_text()
    blocks = re.findall(r"^python - <<'PYTHON'\n(.*?)^PYTHON$", script, re.MULTILINE | re.DOTALL)

    imports = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]

    assert len(blocks) == script.count("<<'PYTHON'")
    names = [(str(node.module), alias.name) for node in imports for alias in node.names]
    assert ("deltaworks.specs.project", "load_catalog") in names
    assert [(module, name) for module, name in names if not hasattr(importlib.import_module(module), name)] == []
