"""`deltaworks up`, `down` and `status`: the embedded stack."""

from __future__ import annotations

import sys

import typer

from deltaworks.cli.output import CommandOutput, OutputPart, listing_command, print_heading, print_line, print_listing
from deltaworks.cli.status import ALL, INTERVAL, UNHEALTHY_EXIT_CODE, WATCH, lake_status, show_status
from deltaworks.control.health.processes import CHANNEL_SETUP_HINT, channel_warning
from deltaworks.control.listing import Cell, Listing
from deltaworks.errors import DeltaworksError, TransientError
from deltaworks.specs.project import load_catalog
from sandbox.stack import stack
from sandbox.stack.alert_channel import read_webhook, store_webhook
from sandbox.stack.home import StackHome
from sandbox.stack.report import StackAddresses, StackStatus


def say(text: str) -> None:
    """Prints one line of progress."""
    print_line(f"  {text}")


def up(foreground: bool = typer.Option(False, help="Stay in front and end the stack with Ctrl-C.")) -> None:
    """Start the stack and keep it running: object stores, notifications and Airflow, supervised."""
    prompt_for_channel(StackHome.default(), interactive=sys.stdin.isatty() and sys.stdout.isatty())
    addresses = stack.up(foreground=foreground, progress=say)
    print_addresses(addresses)


def prompt_for_channel(home: StackHome, *, interactive: bool) -> None:
    """Asks once for an alert address if no alert reaches a person; prints a warning if no terminal is attached."""
    try:
        declared = load_catalog(root=home.project, skip_invalid=True).environment
    except DeltaworksError:
        return  # the start reports invalid declarations
    stored = read_webhook(home)
    if not channel_warning(declared.with_webhook(stored or "").alerts):
        return
    if stored is None and interactive:
        _ask_for_channel(home)
        if read_webhook(home):
            return
    print_heading("No alert reaches a person:", f"{CHANNEL_SETUP_HINT}.", style="yellow")


def _ask_for_channel(home: StackHome) -> None:
    while True:
        url = str(
            typer.prompt(
                "Where are alerts to go? The address of a webhook (https://…), empty for nowhere",
                default="",
                show_default=False,
            )
        )
        try:
            store_webhook(home, url.strip())
        except ValueError as error:
            print_line(str(error))
        else:
            return


def print_addresses(addresses: StackAddresses) -> None:
    """Prints addresses and logins."""
    print_listing(address_listing(addresses))


def address_listing(addresses: StackAddresses) -> Listing:
    """Builds the list of addresses and logins."""
    places = {
        "Airflow": addresses.airflow_url,
        "login": f"{addresses.airflow_user} / {addresses.airflow_password}",
        "lake (S3)": addresses.lake_endpoint,
        "landing (S3, SNS, SQS)": addresses.aws_endpoint,
    }
    if addresses.collector_url is not None:
        places["Collector"] = addresses.collector_url
    if addresses.kafka_bootstrap is not None:
        places["Kafka"] = addresses.kafka_bootstrap
    places["data and logs"] = str(addresses.home)
    shown = Listing(tuple(places), layout="blocks", title="addresses")
    shown.add(*places.values())
    return shown


def down() -> None:
    """Stop the streams, then the stack. `up` continues where it stopped."""
    report = stack.down(progress=say)
    if not report.was_running:
        print_line("Nothing was running.")
        return
    print_line(report.describe())
    for note in report.notes:
        print_line(note)
    for process in report.killed:
        print_heading("had to be killed:", f"{process.kind} {process.pid} {process.command}", style="yellow")


@listing_command
def status(watch: bool = WATCH, interval_seconds: float = INTERVAL, show_all: bool = ALL) -> CommandOutput:
    """Show the state of the system. Exits with 0 if all is healthy, 1 if not, 21 if the stack is down.

    Shows what needs a person, and the streams; with --all also programs, relays and other processes. Healthy means
    running as declared or stopped on purpose, with no open alert. For a remote lake without a local stack, only the
    lake counts.
    """
    return show_status(_system_status, watch=watch, interval_seconds=interval_seconds, show_all=show_all)


def _system_status() -> CommandOutput:
    stack_status = stack.status()
    parts, well = _stack_parts(stack_status)
    summary = _stack_summary(stack_status)
    try:
        lake = lake_status()
    except DeltaworksError as error:
        down = error.condition in ("STORAGE_UNREACHABLE", "REFERENCE_UNRESOLVED")
        exit_code = TransientError.exit_code if down else error.exit_code
        line = f"{error.message} {error.hint}"
        return CommandOutput([*parts, line], exit_code=exit_code, summary=[line, *summary])
    exit_code = lake.exit_code if well else UNHEALTHY_EXIT_CODE
    return CommandOutput([*parts, *lake.parts], exit_code=exit_code, summary=[*lake.summary, *summary])


def _stack_summary(stack_status: StackStatus) -> list[OutputPart]:
    """Returns the programs that do not run as they should, and the addresses."""
    programs = stack_status.programs
    unhealthy = [program for program in programs if not program.healthy]
    parts: list[OutputPart] = [f"program {item.name} is {item.state}: {item.detail}" for item in unhealthy]
    if programs and not unhealthy:
        parts.append(f"All {len(programs)} programs of the stack run.")
    if stack_status.addresses is not None:
        parts.append(address_listing(stack_status.addresses))
    return [*parts, *_stack_notes(stack_status)]


def _stack_notes(stack_status: StackStatus) -> list[str]:
    notes = [f"left over: {process.kind} {process.pid} {process.command}" for process in stack_status.leftovers]
    return notes if stack_status.running else [*notes, "The stack is not running. Start it with `deltaworks up`."]


def _stack_parts(stack_status: StackStatus) -> tuple[list[OutputPart], bool]:
    """Returns the programs of the stack, and whether all are healthy."""
    columns = ("program", "state", "healthy", "pid", "uptime", "detail")
    programs = Listing(columns, title="programs", details=("detail",))
    for program in stack_status.programs:
        shown = "" if program.uptime_seconds is None else f"{program.uptime_seconds:.0f} s"
        healthy = Cell(program.healthy, "yes" if program.healthy else "NO")
        uptime = Cell(program.uptime_seconds, shown)
        programs.add(program.name, program.state, healthy, program.pid or None, uptime, program.detail)
    parts: list[OutputPart] = [programs]
    if stack_status.addresses is not None:
        parts.append(address_listing(stack_status.addresses))
    parts += _stack_notes(stack_status)
    return parts, stack_status.healthy if stack_status.running else not stack_status.leftovers
