"""Keys of the lake from Airflow's connections: they reach jobs by environment variables only."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.airflow.aws_connections import set_environment_keys
from deltaworks.airflow.operators import ProcessOperator, SparkJobOperator
from deltaworks.errors import ConfigError
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.storage import StorageSpec
from tests.dags.test_operators import CLUSTER_EXTRA, connect, spark_submit

__all__ = ["connect", "spark_submit"]
ACCESS, SECRET, TOKEN = "AKIAOFTHELAKE0000001", "the-secret-key-of-the-lake/1", "the-token-of-the-lake/1"
KEYS = {"login": ACCESS, "password": SECRET, "conn_type": "aws"}
PREFIX = "DELTAWORKS_CONNECTION_MY_LAKE_"
#: A job that keeps digests of the keys it has, and every command line of the machine as it is just then.
JOB = """
import glob, hashlib, json, os
names = [name for name in os.environ if name.startswith("DELTAWORKS_CONNECTION_")]
digests = {name: hashlib.sha256(os.environ[name].encode()).hexdigest() for name in names}
lines = []
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        lines.append(open(path, "rb").read().replace(b"\\0", b" ").decode(errors="replace"))
    except OSError:
        pass
json.dump({"digests": digests, "lines": lines}, open(os.environ["RECORD"], "w"))
print("the job ran as", " ".join(names))
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The variables of this test's own: a task's process ends with its task."""
    before = dict(os.environ)
    yield
    for name in set(os.environ) - set(before):
        if name.startswith(PREFIX):
            del os.environ[name]


@pytest.fixture
def output(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Any:
    """All log and console output of any level and process."""
    caplog.set_level(logging.DEBUG)

    def read() -> str:
        output = capfd.readouterr()
        return caplog.text + output.out + output.err

    return read


@pytest.fixture
def job_at(tmp_path: Path, connect: Any, spark_submit: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job as a module and as a spark-submit program, and the path of its record."""
    connect("local[2]")
    monkeypatch.setenv("RECORD", str(tmp_path / "record.json"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    spark_submit(JOB)
    (tmp_path / "some_job.py").write_text(JOB)
    return tmp_path / "record.json"


@pytest.fixture
def my_lake(monkeypatch: pytest.MonkeyPatch) -> Any:
    def declare(**connection: Any) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_MY_LAKE", json.dumps(connection))

    return declare


def environment(**place: Any) -> EnvironmentSpec:
    """The project's environment with its landing bucket reached by the connection."""
    landing = StorageSpec.model_validate({"root": "s3://landing", "aws_conn_id": "my_lake"} | place)
    declared = load_catalog().environment
    spark = declared.spark.model_copy(update={"protected": False})
    return declared.model_copy(update={"landing": landing, "spark": spark})


def spark_job(declared: EnvironmentSpec) -> SparkJobOperator:
    share = declared.shares.of("gold")
    return SparkJobOperator(task_id="t", job="rebuild_gold", pipeline="games", environment=declared, share=share)


def recorded_run(record: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record.read_text())
    return found


def assert_no_key(text: str) -> bool:
    return not any(key in text for key in (ACCESS, SECRET, TOKEN))


@pytest.mark.parametrize("kind", ["process", "spark"])
def test_a_job_has_the_keys_and_no_command_line_log_field_or_xcom_does(
    project: Path, job_at: Path, my_lake: Any, output: Any, kind: str
) -> None:
    my_lake(**KEYS, extra={"aws_session_token": TOKEN, "region_name": "us-east-1"})
    declared = environment()
    pushed: dict[str, Any] = {}
    process = ProcessOperator(task_id="t", module="some_job", environment=declared)
    operator: Any = process if kind == "process" else spark_job(declared)

    ti = SimpleNamespace(xcom_push=lambda *, key, value: pushed.update({key: value}))
    operator.execute({"params": {}, "ti": ti})

    found = recorded_run(job_at)
    expected = {"ACCESS_KEY": ACCESS, "SECRET_KEY": SECRET, "SESSION_TOKEN": TOKEN}
    assert found["digests"] == {
        f"{PREFIX}{name}": hashlib.sha256(value.encode()).hexdigest() for name, value in expected.items()
    }
    assert any("some_job" in line or "rebuild_gold" in line for line in found["lines"])
    assert [line for line in found["lines"] if not assert_no_key(line)] == []
    log = output()
    assert "the job ran as" in log
    assert assert_no_key(log)
    assert assert_no_key(str({name: getattr(operator, name, None) for name in operator.template_fields}))
    assert assert_no_key(str(vars(operator)))
    assert assert_no_key(str(pushed))


def test_every_client_gets_keys_and_token_and_so_does_a_worker(project: Path, my_lake: Any) -> None:
    my_lake(**KEYS, extra={"aws_session_token": TOKEN})
    declared = environment()

    set_environment_keys(declared)

    storage = declared.landing
    assert storage.boto3_options() == {
        "region_name": "us-east-1",
        "aws_access_key_id": ACCESS,
        "aws_secret_access_key": SECRET,
        "aws_session_token": TOKEN,
    }
    assert {ACCESS, SECRET, TOKEN} <= set(storage.deltalake_options().values())
    assert {ACCESS, SECRET, TOKEN} <= set(storage.arrow_options().values())
    assert {ACCESS, SECRET, TOKEN} <= set(storage.spark_conf().values())


def test_a_missing_connection_names_the_command_to_create_it(project: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        spark_job(environment()).execute({"params": {}, "ti": None})  # type: ignore[typeddict-item]

    assert (caught.value.condition, caught.value.retryable) == ("AWS_CONNECTION_MISSING", False)
    assert "airflow connections add my_lake --conn-json" in caught.value.hint


@pytest.mark.parametrize(
    ("connection", "problem", "hint"),
    [
        ({"conn_type": "http", "login": ACCESS, "password": SECRET}, "is of the type 'http'", "type aws"),
        ({"conn_type": "aws"}, "has no keys", "Write both"),
        ({"conn_type": "aws", "login": ACCESS}, "has no keys", "Write both"),
        (KEYS | {"extra": {"role_arn": "arn:aws:iam::1:role/lake"}}, "has role_arn", "give the machines that role"),
        (KEYS | {"extra": {"profile_name": "lake"}}, "has profile_name", "Give it keys that last"),
        (KEYS | {"extra": {"region_name": "eu-west-1"}}, "the environment region us-east-1", "region: eu-west-1"),
        (KEYS | {"extra": {"endpoint_url": "http://s3.example"}}, "endpoint of AWS", "endpoint: http://s3.example"),
    ],
)
def test_an_invalid_connection_names_the_problem(
    project: Path, my_lake: Any, connection: dict[str, Any], problem: str, hint: str
) -> None:
    my_lake(**connection)

    with pytest.raises(ConfigError) as caught:
        set_environment_keys(environment())

    assert caught.value.condition == "AWS_CONNECTION_INVALID"
    assert problem in caught.value.message
    assert hint in caught.value.hint
    assert assert_no_key(str(caught.value))
    assert not any(name.startswith(PREFIX) for name in os.environ)


@pytest.mark.parametrize("host", list(CLUSTER_EXTRA))
def test_a_driver_in_cluster_mode_gets_no_keys_on_the_command_line(
    project: Path, connect: Any, my_lake: Any, spark_submit: Any, host: str
) -> None:
    connect(host, CLUSTER_EXTRA[host])
    my_lake(**KEYS)
    record = spark_submit("")

    with pytest.raises(ConfigError, match=r"AWS_CONNECTION_INVALID.*cluster mode"):
        spark_job(environment()).execute({"params": {}, "ti": None})  # type: ignore[typeddict-item]

    assert not record.exists()


def test_variables_that_are_set_are_kept_without_reading_a_connection(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{PREFIX}ACCESS_KEY", "mine")

    set_environment_keys(environment())

    assert os.environ[f"{PREFIX}ACCESS_KEY"] == "mine"


def test_an_environment_without_connections_reads_none(project: Path) -> None:
    before = dict(os.environ)

    set_environment_keys(load_catalog().environment)

    assert dict(os.environ) == before
