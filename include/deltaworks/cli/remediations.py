"""`deltaworks remediations` and `remediate`: list, hold, resume and run remediations."""

from __future__ import annotations

import typer

from deltaworks.cli.context import apply_settings, catalog
from deltaworks.cli.output import listing_command, print_line
from deltaworks.control.listing import Cell, Listing
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import system_user
from deltaworks.control.records.remediation import RemediationRecords

app = typer.Typer(no_args_is_help=True)
_NAME = typer.Argument(help="Name of the remediation in the environment.")


@app.command("list")
@listing_command
def list_remediations(
    limit: int = typer.Option(20, help="Maximum notifications per remediation, newest first."),
) -> list[Listing]:
    """List remediations, their holds, and their last actions."""
    project = catalog()
    records = RemediationRecords(open_objects(project.environment.lake))
    remediations = Listing(("remediation", "on", "targets", "step", "floor", "dry_run", "held"), title="remediations")
    actions = Listing(("at", "remediation", "state", "from", "to", "reason", "notification"), title="actions")
    for spec in project.environment.remediations:
        held = records.hold_reason(spec.name) or ""
        remediations.add(spec.name, spec.rule, ", ".join(spec.targets), spec.step, spec.floor, spec.dry_run, held)
        for record in list(records.all(spec.name))[: -limit - 1 : -1]:
            at = Cell(record.at, record.at[:16].replace("T", " "))
            actions.add(
                at, record.remediation, record.state, record.source, record.target, record.reason, record.notification
            )
    return [remediations, actions]


@app.command()
def hold(
    name: str = _NAME,
    reason: str = typer.Option("held by hand", help="Reason, shown in listings."),
) -> None:
    """Hold a remediation: it stops planning actions. Open actions are still verified."""
    records = _records(name)
    records.hold(name, by=system_user(), reason=reason)
    print_line(f"{name} is held. Resume it with `deltaworks remediations resume {name}`.")


@app.command()
def resume(name: str = _NAME) -> None:
    """Resume a held remediation, and resolve the alerts that ask for a person."""
    from deltaworks.remediation.step_notifier import resolve_hold_alerts

    was_held = _records(name).resume(name)
    resolve_hold_alerts(open_objects(catalog().environment.lake), name)
    print_line(f"{name} is resumed." if was_held else f"{name} was not held.")


def remediate(name: str = _NAME) -> None:
    """Run a remediation until it is stopped, as Airflow does: read its queue, act, verify, roll back."""
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
