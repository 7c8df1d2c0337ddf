"""Runs a remediation: `python -m deltaworks.remediation --remediation shift_cdn`."""

from __future__ import annotations

import sys

from deltaworks.control import outward_paths
from deltaworks.control.endless import EndlessKind, main_of
from deltaworks.remediation.process import open_remediation

REMEDIATION = EndlessKind(
    word="remediation",
    module="deltaworks.remediation",
    described="a name under `remediations` of the environment",
    control=outward_paths.remediation_control,
    open=open_remediation,
    failed="REMEDIATION_PROCESS_FAILED",
    argument=lambda name: f"remediation__{name}",
)


def main(arguments: list[str] | None = None) -> int:
    """Run one remediation to its end; returns the exit code."""
    return main_of(REMEDIATION, arguments)


if __name__ == "__main__":
    sys.exit(main())
