"""`deltaworks doctor`: lists missing prerequisites of this machine."""

from __future__ import annotations

from deltaworks.cli.output import CommandOutput, listing_command
from deltaworks.specs.catalog import project_root
from sandbox.doctor import check_machine, format_checks, is_ready


@listing_command
def doctor() -> CommandOutput:
    """Check the prerequisites of the demo and the tests on this machine. Exits with 1 if something is missing."""
    checks = check_machine(project_root())
    return CommandOutput([format_checks(checks)], exit_code=0 if is_ready(checks) else 1)
