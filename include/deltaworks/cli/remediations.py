"""`deltaworks remediations` and `remediate`: what acts by itself, holding it back, letting it go on, running one."""

from __future__ import annotations

import getpass

import typer

from deltaworks.cli.context import apply_settings, catalog
from deltaworks.cli.output import listing_command, print_line
from deltaworks.control.listing import Cell, Listing
from deltaworks.control.objects import open_objects
from deltaworks.control.records.remediation import RemediationRecords

app = typer.Typer(no_args_is_help=True)
_NAME = typer.Argument(help="The remediation, as the environment declares it.")


@app.command("list")
@listing_command
def list_remediations(
    limit: int = typer.Option(20, help="At most so many notifications of each, the newest first."),
) -> list[Listing]:
    """List remediations with who holds them back, and what each did about the last notifications."""
    project = catalog()
    records = RemediationRecords(open_objects(project.environment.lake))
    declared = Listing(("remediation", "on", "targets", "step", "floor", "dry_run", "held"), title="remediations")
    done = Listing(("at", "remediation", "state", "from", "to", "reason", "notification"), title="what they did")
    for spec in project.environment.remediations:
        held = records.hold_reason(spec.name) or ""
        declared.add(spec.name, spec.rule, ", ".join(spec.targets), spec.step, spec.floor, spec.dry_run, held)
        for record in list(records.all(spec.name))[: -limit - 1 : -1]:
            at = Cell(record.at, record.at[:16].replace("T", " "))
            done.add(
                at, record.remediation, record.state, record.source, record.target, record.reason, record.notification
            )
    return [declared, done]


@app.command()
def hold(
    name: str = _NAME,
    reason: str = typer.Option("held by hand", help="Kept for whoever finds it held."),
) -> None:
    """Hold a remediation back: it plans nothing more. What is under way is verified all the same."""
    records = _records(name)
    records.hold(name, by=getpass.getuser(), reason=reason)
    print_line(f"{name} is held. `deltaworks remediations resume {name}` lets it go on.")


@app.command()
def resume(name: str = _NAME) -> None:
    """Let a remediation that is held go on, and end the alerts that ask for a person."""
    from deltaworks.remediation.step_notifier import resolve_hold_alerts

    was_held = _records(name).resume(name)
    resolve_hold_alerts(open_objects(catalog().environment.lake), name)
    print_line(f"{name} may act again." if was_held else f"{name} was not held.")


def remediate(name: str = _NAME) -> None:
    """Run a remediation until it is stopped, as Airflow does: read its queue, act, verify, take back."""
    from deltaworks.remediation.__main__ import main

    apply_settings()
    code = main(["--remediation", name, "--early-failure-wait-seconds", "0"])
    if code:
        raise typer.Exit(code)


def _records(name: str) -> RemediationRecords:
    from deltaworks.remediation.process import find_remediation

    project = catalog()
    find_remediation(project, name)
    return RemediationRecords(open_objects(project.environment.lake))
