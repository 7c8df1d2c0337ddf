"""Runs a remediation: `python -m deltaworks.remediation --remediation shift_cdn`."""

from __future__ import annotations

import sys

from deltaworks.control import paths
from deltaworks.control.daemon_main import DaemonKind, run_daemon
from deltaworks.remediation.process import open_remediation
from deltaworks.specs.dag_ids import dag_id

REMEDIATION = DaemonKind(
    noun="remediation",
    module="deltaworks.remediation",
    help="a name under `remediations` of the environment",
    control_folder=paths.remediation_control,
    build=open_remediation,
    failure_condition="REMEDIATION_PROCESS_FAILED",
    cli_name=lambda name: dag_id(name, "remediation"),
)


def main(arguments: list[str] | None = None) -> int:
    """Runs one remediation until it ends; returns the exit code."""
    return run_daemon(REMEDIATION, arguments)


if __name__ == "__main__":
    sys.exit(main())
