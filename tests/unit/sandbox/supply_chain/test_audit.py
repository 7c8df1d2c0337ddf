"""The audit of locked packages counts only answers; the Lambda's zip is reproducible and complete."""

from __future__ import annotations

import json
import stat
import sys
import zipfile
from pathlib import Path

import pytest

from deltaworks.errors import ContractError, TransientError
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.testing import write_project
from sandbox.supply_chain.audit import LOCKS, audit, main, read_report
from sandbox.supply_chain.lambda_package import package
from tests.processes import run_process

CLEAN = {"name": "attrs", "version": "25.4.0", "vulns": []}
VULNERABLE = {"name": "jinja2", "version": "2.4.1", "vulns": [{"id": "PYSEC-2014-8"}, {"id": "PYSEC-2019-217"}]}
UNANSWERED = {"name": "requests", "skip_reason": "Dependency not found on PyPI and could not be audited"}


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of what pip-audit reports by lock; without a file it fails."""
    program = tmp_path / "uv"
    program.write_text(
        "#!/bin/sh\n"
        'while [ $# -gt 0 ]; do case "$1" in --requirement) lock=$2 ;; --output) out=$2 ;; esac; shift; done\n'
        f'cp "{tmp_path}/$(basename "$lock").json" "$out" || {{ echo "no service" >&2; exit 1; }}\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("DELTAWORKS_PROJECT", "/checkout")
    return tmp_path


def report(*packages: object) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_packages_without_vulnerabilities_pass(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for lock in LOCKS:
        (reports / f"{lock}.json").write_text(report(CLEAN))

    assert main([]) == 0
    assert "1 packages audited, no known vulnerability" in capsys.readouterr().out


def test_a_package_that_the_service_knows_nothing_about_is_not_audited() -> None:
    result = read_report("requirements.lock", json.loads(report(CLEAN, UNANSWERED)))

    with pytest.raises(TransientError, match=r"1 of 2 packages \(requests\)") as raised:
        result.raise_unless_clean()

    assert raised.value.condition == "AUDIT_UNANSWERED"


def test_vulnerabilities_are_named_with_package_version_and_id() -> None:
    result = read_report("requirements.lock", json.loads(report(CLEAN, VULNERABLE, UNANSWERED)))

    with pytest.raises(ContractError, match="PYSEC-2019-217") as raised:
        result.raise_unless_clean()

    assert raised.value.condition == "PACKAGE_VULNERABLE"
    assert "jinja2 2.4.1" in raised.value.message


def test_an_audit_without_a_report_says_why(reports: Path) -> None:
    with pytest.raises(TransientError, match="no service") as raised:
        audit(Path("/checkout"), "requirements.lock")

    assert raised.value.condition == "AUDIT_UNANSWERED"


def test_a_vulnerable_lock_counts_more_than_an_unanswered_one(reports: Path) -> None:
    (reports / "requirements.lock.json").write_text(report(VULNERABLE))
    assert main([]) == ContractError.exit_code

    (reports / "requirements.lock.json").unlink()
    assert main([]) == TransientError.exit_code


PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
import os
os.environ.update(LAMBDA_TASK_ROOT=sys.argv[1], COLLECTOR="edge")
from deltaworks.collector_host import aws_lambda
gateway = aws_lambda._gateway()
event = {"path": "/v1/events", "httpMethod": "POST", "headers": {}, "body": "{}"}
event["queryStringParameters"] = {"writeKey": "x"}
answer = gateway.handle(event)
heavy = {"pyspark", "airflow", "deltalake", "pyarrow"} & set(sys.modules)
strips = sorted(name for name, rules in gateway._handler._rules.items() if rules.redaction is not None)
print(json.dumps([answer["statusCode"], json.loads(answer["body"])["code"], sorted(heavy), strips]))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lambda") / "one.zip"
    package(path, root=PROJECT_ROOT)
    return path


@pytest.mark.integration
def test_it_is_the_same_each_time(made: Path, tmp_path: Path) -> None:
    package(tmp_path / "two.zip", root=PROJECT_ROOT)
    assert (tmp_path / "two.zip").read_bytes() == made.read_bytes()


def test_it_holds_no_engine_and_fits_a_lambda(made: Path) -> None:
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
        inflated = sum(item.file_size for item in archive.infolist())
    assert {name.split("/")[0] for name in names}.isdisjoint({"pyspark", "airflow", "deltalake", "pyarrow", "boto3"})
    packages = {name.split("/")[1] for name in names if name.startswith("deltaworks/") and "/" in name[11:]}
    assert packages == {"collector_host", "control", "errors", "operations", "privacy", "specs"}
    assert inflated < 250 << 20


def test_it_takes_a_request_with_nothing_else_but_boto3(made: Path, tmp_path: Path) -> None:
    """In an interpreter that sees this zip and boto3, as Lambda's does."""
    root, runtime = tmp_path / "task", tmp_path / "runtime"
    with zipfile.ZipFile(made) as archive:
        archive.extractall(root)
    runtime.mkdir()
    packages = Path(pytest.__file__).parents[1]
    for name in ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six.py"):
        (runtime / name).symlink_to(packages / name)
    landing = {"root": "s3://deltaworks-landing", "endpoint": "http://127.0.0.1:1", "region": "us-east-1"}
    environment = {"landing": landing, "messaging": {"region": "us-east-1"}}
    write_project(root, lake=tmp_path, environment=environment, relays=[])
    keys = {"DELTAWORKS_AWS_ENDPOINT": "http://127.0.0.1:1", "DELTAWORKS_ENVIRONMENT": "local"}
    keys |= {"DELTAWORKS_AWS_ACCESS_KEY": "test", "DELTAWORKS_AWS_SECRET_KEY": "test"}
    done = run_process(
        [sys.executable, "-S", "-c", PROGRAM, str(root)], env={"PYTHONPATH": str(runtime), **keys}, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    assert json.loads(done.stdout) == [401, "bad_key", [], ["games", "games_replay", "mobile", "mobile_replay"]]
