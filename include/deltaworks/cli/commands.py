"""Catalog of all commands: groups, single commands, and commands derived from operations.

Contains only names and help texts; a command's module is imported when it is used.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass

import typer

from deltaworks.cli.lazy import Entry, LazyCommand, LoadedCommand, load_command, to_click_command
from deltaworks.operations.base import Operation
from deltaworks.operations.registry import OPERATIONS


@dataclass(frozen=True, slots=True)
class Command:
    """A command or a group of commands: one line of help, and the location of its function.

    The location is `module:name`, empty for a group that contains only operations. The help of a command equals the
    first line of its docstring, which a test enforces; the help of a group exists only here.
    """

    help: str
    location: str = ""


COMMANDS: Mapping[str, Command] = {
    "pipelines": Command("Declared pipelines: check, show, create, compare, test.", "deltaworks.cli.pipelines:app"),
    "land": Command(
        "Upload event files to the bucket that a pipeline reads; - is standard input.",
        "deltaworks.cli.land:land",
    ),
    "start": Command(
        "Start a stopped stream, relay or group where it left off, or retry a failing one now.",
        "deltaworks.cli.streams:start",
    ),
    "stop": Command(
        "Stop a stream, relay or group after its current batch, and keep it stopped.",
        "deltaworks.cli.streams:stop",
    ),
    "restart": Command(
        "Restart a stream, relay or group after its current batch, with its current spec.",
        "deltaworks.cli.streams:restart",
    ),
    "logs": Command(
        "Print the log of the newest run of a stream, relay or DAG.",
        "deltaworks.cli.streams:logs",
    ),
    "batches": Command(
        "List a pipeline's batches: state, rows, offsets, run; with --id one batch with its steps.",
        "deltaworks.cli.files:batches",
    ),
    "status": Command(
        "Show relays, streams, collectors, held tables and alerts. Exit code: 0 healthy, 1 unhealthy, 21 storage "
        "unreachable.",
        "deltaworks.cli.status:status",
    ),
    "explain": Command(
        "Explain a condition, a cause of a verdict or an alert: its meaning, next step and runbook.",
        "deltaworks.cli.status:explain",
    ),
    "tables": Command("Tables: health, held commits, pinned versions.", "deltaworks.cli.tables:app"),
    "catalogs": Command("Catalogs of other engines: Glue, Unity, Hive.", "deltaworks.cli.catalogs:app"),
    "dbt": Command("dbt over the lake: its sources.", "deltaworks.cli.catalogs:dbt_app"),
    "files": Command("Landed objects: file events, batches and rows.", "deltaworks.cli.files:app"),
    "quarantine": Command("Quarantined rows: count, show, replay.", "deltaworks.cli.files:quarantine_app"),
    "gold": Command("Gold tables of a pipeline: state, builds.", "deltaworks.cli.models:gold"),
    "models": Command("Models: training runs and their evaluation.", "deltaworks.cli.models:app"),
    "sql": Command(
        "Run an SQL query on the tables (`<pipeline>.<table>`); without one, list the tables.", "deltaworks.cli.sql:sql"
    ),
    "notebook": Command(
        "Write a Jupyter notebook with the cell that connects it to the lake; without a file, print that cell.",
        "deltaworks.cli.sql:notebook",
    ),
    "dashboard": Command(
        "Query a dashboard's panels, and optionally write an HTML page; without a name, list the dashboards.",
        "deltaworks.cli.dashboard:dashboard",
    ),
    "feeds": Command("Feeds: delivered position, lag, dead letters.", "deltaworks.cli.feeds:app"),
    "remediations": Command(
        "Remediations, which act when a rule fires: list, hold, resume.", "deltaworks.cli.rules:remediations_app"
    ),
    "remediate": Command(
        "Run a remediation until it is stopped, as Airflow does: read its queue, act, verify, roll back.",
        "deltaworks.cli.rules:remediate",
    ),
    "mutations": Command("Mutation requests: rename, merge, update and delete rows.", "deltaworks.cli.mutations:app"),
    "privacy": Command(
        "Personal data: the vault, reveals, erasure requests and certificates.",
        "deltaworks.cli.erasures:app",
    ),
    "recover": Command("Recover a table that lost commits, files or its folder."),
    "checkpoint": Command("Spark's checkpoint of a stream, checked against the ledger."),
    "alerts": Command(
        "Alerts: open alerts, rules, backtests, silences and channels.",
        "deltaworks.cli.alerts:app",
    ),
    "console": Command(
        "Serve the operator console on this machine only, read-only, until it is ended.",
        "deltaworks.cli.services:console",
    ),
    "metrics": Command(
        "Serve metrics of streams, relays, collectors, gold and alerts to Prometheus, until it is stopped.",
        "deltaworks.cli.services:metrics",
    ),
    "deadman": Command(
        "Alert if the health check has not run for too long, and exit with 21. For cron, a timer or a CronJob.",
        "deltaworks.cli.alerts:deadman",
    ),
    "wire": Command(
        "Connect a relay's buckets to its queue: S3 to SNS to SQS. Existing notifications are kept; nothing is "
        "deleted.",
        "deltaworks.cli.aws_resources:wire",
    ),
    "consumers": Command(
        "Registered consumers of Kinesis streams, which incur costs while they exist.",
        "deltaworks.cli.aws_resources:app",
    ),
    "deploy": Command("Kubernetes manifests, rendered from the environment.", "deltaworks.cli.services:app"),
    "collect": Command(
        "Accept events over HTTP and store them on disk until they are delivered. Runs until it is stopped.",
        "deltaworks.cli.collect:collect",
    ),
    "collector-key": Command(
        "Create a client's key for a pipeline, and print or write its source in a collector's file.",
        "deltaworks.cli.collect:collector_key",
    ),
}
#: Packages that add commands if they are installed, by `COMMANDS` in their `cli` module. The sandbox is installed on
#: developers' machines, but not in images.
EXTENSIONS = ("sandbox",)


@functools.cache
def command_entries() -> Mapping[str, Entry]:
    """Returns all commands, in the order of the help."""
    commands = dict(COMMANDS)
    for package in EXTENSIONS:
        if importlib.util.find_spec(package) is not None:
            commands |= importlib.import_module(f"{package}.cli").COMMANDS
    entries = {name: _entry(name, command) for name, command in commands.items()}
    for operation in OPERATIONS.values():
        if " " not in operation.command:
            entries[operation.command] = Entry(help=operation.summary, load=functools.partial(_operation, operation))
    return entries


def nested_operations() -> Mapping[str, str]:
    """Returns operations of groups by their own name, such as `tables resume` by `resume`."""
    commands = (operation.command for operation in OPERATIONS.values() if " " in operation.command)
    return {command.rpartition(" ")[2]: command for command in commands}


def _entry(name: str, command: Command) -> Entry:
    operations = tuple(item for item in OPERATIONS.values() if item.command.startswith(f"{name} "))
    if not operations:
        return Entry(help=command.help, load=load_command(command.location))
    return Entry(help=command.help, load=functools.partial(_group, command, operations))


@functools.cache
def _group(command: Command, operations: tuple[Operation, ...]) -> LoadedCommand:
    """Returns a group of commands with its operations. Each operation is imported when it is used."""
    group = (
        load_command(command.location)() if command.location else to_click_command(typer.Typer(no_args_is_help=True))
    )
    for operation in operations:
        name = operation.command.split()[-1]
        entry = Entry(help=operation.summary, load=functools.partial(_operation, operation))
        group.commands[name] = LazyCommand(name, entry)
    return group


def _operation(operation: Operation) -> LoadedCommand:
    from deltaworks.cli.operations import operation_command

    return to_click_command(operation_command(operation))
