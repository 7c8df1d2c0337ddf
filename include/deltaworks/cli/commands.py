"""Every command by its words: groups, single commands, and the operations, which derive theirs.

Only help texts stand here; what a command needs is imported when it is used.
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
    """A command, or a group of commands: its help in one line, and where it is.

    `place` is `module:name`; a group whose commands are all operations has none. The help of a command is the first
    line of its docstring again, which a test holds; the help of a group stands here alone, unless it is also a command.
    """

    help: str
    location: str = ""


COMMANDS: Mapping[str, Command] = {
    "pipelines": Command("What is declared under include/pipelines.", "deltaworks.cli.pipelines:app"),
    "land": Command(
        "Put files of events into the bucket that a pipeline reads, as its producers would; - is standard input.",
        "deltaworks.cli.land:land",
    ),
    "start": Command(
        "Let what was stopped continue where it ended, or call off the wait of a stream that keeps failing.",
        "deltaworks.cli.streams:start",
    ),
    "stop": Command(
        "Stop a pipeline's stream, a relay or a group, after the batch under way, and keep it stopped.",
        "deltaworks.cli.streams:stop",
    ),
    "restart": Command(
        "End a stream, a relay or a group after the batch under way, and let it run again as it is declared now.",
        "deltaworks.cli.streams:restart",
    ),
    "batches": Command(
        "List a pipeline's batches: state, rows, offsets, who ran them; with --id one of them and its steps.",
        "deltaworks.cli.batches:batches",
    ),
    "status": Command(
        "Show relays, streams, held tables, alerts; exits with 0 where all is well, 1 where not, 21 without an answer.",
        "deltaworks.cli.status:status",
    ),
    "tables": Command("Tables: health, what is held back, who reads old versions.", "deltaworks.cli.tables:app"),
    "files": Command("Landed objects: when they were seen, in which batch, how many rows.", "deltaworks.cli.files:app"),
    "quarantine": Command("Rows that did not fit: counted, shown, landed.", "deltaworks.cli.quarantine:app"),
    "gold": Command("Gold tables of a pipeline."),
    "models": Command("Models that predict: trained, judged, published or not.", "deltaworks.cli.models:app"),
    "sql": Command(
        "Run a query over the tables (`<pipeline>.<table>`); without one, list the tables.", "deltaworks.cli.sql:sql"
    ),
    "dashboard": Command(
        "Ask what a dashboard shows, and write it as a page that needs no server; without a name, list the dashboards.",
        "deltaworks.cli.dashboard:dashboard",
    ),
    "feeds": Command(
        "Feeds: what is delivered to others, how far behind, what is refused.", "deltaworks.cli.feeds:app"
    ),
    "remediations": Command(
        "What acts by itself when a rule fires: listed, held back, resumed.", "deltaworks.cli.remediations:app"
    ),
    "remediate": Command(
        "Run a remediation until it is stopped, as Airflow does: read its queue, act, verify, take back.",
        "deltaworks.cli.remediations:remediate",
    ),
    "mutations": Command("Requests that rename, merge, update and delete rows.", "deltaworks.cli.mutations:app"),
    "privacy": Command(
        "Personal data: the vault filled, kept, opened for a reason; people erased, with a certificate.",
        "deltaworks.cli.privacy:app",
    ),
    "recover": Command("Recover a table that lost commits, files or itself."),
    "checkpoint": Command("Spark's checkpoint of a stream, and the ledger it is checked against."),
    "alerts": Command(
        "Alerts: what is open, how rules stand, what they would have said, whether channels work.",
        "deltaworks.cli.alerts:app",
    ),
    "console": Command(
        "Serve the operator console on this machine alone, read-only, until it is ended.",
        "deltaworks.cli.console:console",
    ),
    "metrics": Command(
        "Serve figures of streams, relays, collectors, gold and alerts to Prometheus, until it is stopped.",
        "deltaworks.cli.metrics:metrics",
    ),
    "deadman": Command(
        "Alert where the health check has not run for too long; exits with 21 then. For cron, a timer or a CronJob.",
        "deltaworks.cli.alerts:deadman",
    ),
    "wire": Command(
        "Wire a relay's buckets, S3 to SNS to SQS. What the buckets announce to others stays; nothing is deleted.",
        "deltaworks.cli.wire:wire",
    ),
    "consumers": Command(
        "Registered consumers of Kinesis streams, which cost money while they are there.",
        "deltaworks.cli.consumers:app",
    ),
    "deploy": Command("Manifests of a cluster, rendered from what is declared.", "deltaworks.cli.deploy:app"),
    "collect": Command(
        "Take events over HTTP, keep them on disk until they are delivered, and answer only then; until it is stopped.",
        "deltaworks.cli.collect:collect",
    ),
}
#: Packages with commands of their own, added where they are installed: the sandbox is on a developer's machine, and
#: not in an image. Each has `COMMANDS` in its `cli`.
EXTENSIONS = ("sandbox",)


@functools.cache
def command_entries() -> Mapping[str, Entry]:
    """All commands, in the order of the help."""
    commands = dict(COMMANDS)
    for package in EXTENSIONS:
        if importlib.util.find_spec(package) is not None:
            commands |= importlib.import_module(f"{package}.cli").COMMANDS
    listed = {name: _entry(name, command) for name, command in commands.items()}
    for declared in OPERATIONS.values():
        if " " not in declared.command:
            listed[declared.command] = Entry(help=declared.summary, load=functools.partial(_operation, declared))
    return listed


def _entry(name: str, command: Command) -> Entry:
    operations = tuple(item for item in OPERATIONS.values() if item.command.startswith(f"{name} "))
    if not operations:
        return Entry(help=command.help, load=load_command(command.location))
    return Entry(help=command.help, load=functools.partial(_group, command, operations))


@functools.cache
def _group(command: Command, operations: tuple[Operation, ...]) -> LoadedCommand:
    """A group of commands with its operations, each of which loads its module when it is used."""
    group = (
        load_command(command.location)() if command.location else to_click_command(typer.Typer(no_args_is_help=True))
    )
    for declared in operations:
        word = declared.command.split()[-1]
        entry = Entry(help=declared.summary, load=functools.partial(_operation, declared))
        group.commands[word] = LazyCommand(word, entry)
    return group


def _operation(declared: Operation) -> LoadedCommand:
    from deltaworks.cli.operations import operation_command

    return to_click_command(operation_command(declared))
