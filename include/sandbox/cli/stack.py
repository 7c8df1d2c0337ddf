"""`deltaworks up`, `down` and `status`: the embedded stack."""

from __future__ import annotations

import typer
from rich.table import Table

from deltaworks.cli.context import console
from sandbox.stack import stack
from sandbox.stack.report import StackAddresses


def say(line: str) -> None:
    """Print one line of progress."""
    console.print(f"  {line}", highlight=False)


def up(foreground: bool = typer.Option(False, help="Stay in front and end the stack with Ctrl-C.")) -> None:
    """Start the stack and keep it running: object stores, notifications and Airflow, supervised."""
    addresses = stack.up(foreground=foreground, progress=say)
    print_addresses(addresses)


def print_addresses(addresses: StackAddresses) -> None:
    """Say where things are and how to log in."""
    table = Table(show_header=False, box=None)
    table.add_row("Airflow", addresses.airflow_url)
    table.add_row("login", f"{addresses.airflow_user} / {addresses.airflow_password}")
    table.add_row("lake (S3)", addresses.lake_endpoint)
    table.add_row("landing (S3, SNS, SQS)", addresses.aws_endpoint)
    if addresses.kafka_bootstrap is not None:
        table.add_row("Kafka", addresses.kafka_bootstrap)
    table.add_row("data and logs", str(addresses.home))
    console.print(table)


def down() -> None:
    """Stop streams first, then the stack. `up` continues where it was."""
    report = stack.down(progress=say)
    if not report.was_running:
        console.print("Nothing was running.")
        return
    console.print(f"Stopped in {report.seconds:.0f} s; paused until the next `up`: {', '.join(report.paused_dags)}")
    for process in report.killed:
        console.print(f"[yellow]had to be killed:[/] {process.kind} {process.pid} {process.command}")


def status() -> None:
    """Show what runs and whether it is healthy; exits with 1 where something is not."""
    stack_status = stack.status()
    table = Table("program", "state", "healthy", "pid", "uptime", "detail")
    for program in stack_status.programs:
        uptime = "" if program.uptime_seconds is None else f"{program.uptime_seconds:.0f} s"
        healthy = "[green]yes[/]" if program.healthy else "[red]no[/]"
        table.add_row(program.name, program.state, healthy, str(program.pid or ""), uptime, program.detail)
    console.print(table)
    if stack_status.addresses is not None:
        print_addresses(stack_status.addresses)
    for process in stack_status.leftovers:
        console.print(f"[yellow]left over:[/] {process.kind} {process.pid} {process.command}")
    if not stack_status.running:
        console.print("The stack is not running. Start it with `deltaworks up`.")
    raise typer.Exit(0 if stack_status.healthy or not stack_status.running else 1)
