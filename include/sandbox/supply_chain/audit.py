"""Audits all locked packages for known vulnerabilities with pip-audit (`make audit`).

pip-audit itself exits with 0 and "no known vulnerabilities" if an index has no data about a package, as mirrors do.
Here such a package counts as not audited.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltaworks.errors import ContractError, DeltaworksError, TransientError
from deltaworks.specs.catalog import project_root

PIP_AUDIT = "pip-audit==2.10.1"
LOCKS = ("requirements.lock", "requirements-sandbox.lock", "requirements-dev.lock", "requirements-kubernetes.lock")
_TIMEOUT_SECONDS = 1800


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The audit of one lock file: vulnerable packages with vulnerability ids, and packages that the service has no data
    about.
    """

    lock: str
    audited: int
    vulnerable: dict[str, tuple[str, ...]]
    unanswered: tuple[str, ...]

    def raise_unless_clean(self) -> None:
        """Raises unless every package was audited and none is vulnerable.

        Raises:
            ContractError: PACKAGE_VULNERABLE.
            TransientError: AUDIT_UNANSWERED.
        """
        if self.vulnerable:
            named = "; ".join(f"{package} ({', '.join(ids)})" for package, ids in self.vulnerable.items())
            raise ContractError(
                "PACKAGE_VULNERABLE",
                f"{self.lock}: {len(self.vulnerable)} of {self.audited} audited packages have known vulnerabilities: "
                f"{named}.",
            )
        if self.unanswered:
            named = ", ".join(self.unanswered[:5]) + (", …" if len(self.unanswered) > 5 else "")
            raise TransientError(
                "AUDIT_UNANSWERED",
                f"{self.lock}: the vulnerability service knows nothing about {len(self.unanswered)} of "
                f"{self.audited + len(self.unanswered)} packages ({named}): they are not audited.",
            )


def audit(root: Path, lock: str, *, service: str = "pypi") -> AuditResult:
    """Audits one lock file. Runs pip-audit in its own environment and installs nothing into this one.

    Raises:
        TransientError: AUDIT_UNANSWERED, pip-audit wrote no report; the message contains the end of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [str(Path(sys.executable).with_name("uv")), "tool", "run", "--from", PIP_AUDIT, "pip-audit"]
        command += ["--disable-pip", "--require-hashes", "--requirement", str(root / lock)]
        command += ["--vulnerability-service", service, "--format", "json", "--output", str(report)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, stdin=subprocess.DEVNULL, check=False
            )
            problem = (done.stderr.strip().splitlines() or ["no output"])[-1][:400]
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if not report.is_file():
            raise TransientError(
                "AUDIT_UNANSWERED",
                f"{lock}: pip-audit wrote no report, so nothing is audited: {problem}",
                hint=f"See whether the vulnerability service ({service}) and the package index can be reached.",
            )
        return read_report(lock, json.loads(report.read_text(encoding="utf-8")))


def read_report(lock: str, report: dict[str, Any]) -> AuditResult:
    """Parses a JSON report of pip-audit."""
    answered = [package for package in report["dependencies"] if "skip_reason" not in package]
    return AuditResult(
        lock=lock,
        audited=len(answered),
        vulnerable={
            f"{package['name']} {package['version']}": tuple(entry["id"] for entry in package["vulns"])
            for package in answered
            if package["vulns"]
        },
        unanswered=tuple(package["name"] for package in report["dependencies"] if "skip_reason" in package),
    )


def main(arguments: list[str] | None = None) -> int:
    """Audits all lock files; returns the most severe exit code."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--service", choices=("pypi", "osv"), default="pypi")
    options = parser.parse_args(arguments)
    codes = [0]
    for lock in LOCKS:
        try:
            result = audit(project_root(), lock, service=options.service)
            result.raise_unless_clean()
            print(f"==> {lock}: {result.audited} packages audited, no known vulnerability")
        except DeltaworksError as error:
            print(error, file=sys.stderr)
            codes.append(error.exit_code)
    # A vulnerable package is more severe than an unanswered audit.
    return ContractError.exit_code if ContractError.exit_code in codes else max(codes)


if __name__ == "__main__":
    sys.exit(main())
