"""The audit of locked packages: only an answer counts as one."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from deltaworks.errors import ContractError, TransientError
from sandbox.supply_chain.audit import LOCKS, audit, main, read_report

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
