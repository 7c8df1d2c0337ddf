"""Runs the process that evaluates rules: `python -m deltaworks.rules --rules rules`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from deltaworks.control import paths
from deltaworks.control.daemon_main import DaemonKind, run_daemon
from deltaworks.rules.process import RuleProcess
from deltaworks.specs.catalog import Catalog


def open_rule_process(catalog: Catalog, _name: str, on_tick: Callable[[], None]) -> RuleProcess:
    """Returns the process that evaluates the rules of all pipelines."""
    return RuleProcess(catalog, on_tick=on_tick)


RULES = DaemonKind(
    noun="rules",
    module="deltaworks.rules",
    help=f"the only process: {paths.RULES_PROCESS}",
    control_folder=lambda _name: paths.rules_control(),
    build=open_rule_process,
    failure_condition="RULES_FAILED",
    cli_name=lambda _name: paths.RULES_PROCESS,
)


def main(arguments: list[str] | None = None) -> int:
    """Runs the process until it ends; returns the exit code."""
    return run_daemon(RULES, arguments)


if __name__ == "__main__":
    sys.exit(main())
