"""Commands of the sandbox, added to `deltaworks` if the sandbox is installed."""

from __future__ import annotations

from deltaworks.cli.commands import Command

COMMANDS = {
    "up": Command(
        "Start the stack and keep it running: object stores, notifications and Airflow, supervised.",
        "sandbox.cli.stack:up",
    ),
    "down": Command("Stop the streams, then the stack. `up` continues where it stopped.", "sandbox.cli.stack:down"),
    "status": Command(
        "Show the state of the system. Exits with 0 if all is healthy, 1 if not, 21 if the stack is down.",
        "sandbox.cli.stack:status",
    ),
    "doctor": Command(
        "Check the prerequisites of the demo and the tests on this machine. Exits with 1 if something is missing.",
        "sandbox.cli.doctor:doctor",
    ),
    "demo": Command(
        "Run pipelines end to end and compare every answer with the truth. Exits with 1 if an answer is wrong.",
        "sandbox.cli.demo:demo",
    ),
    "generate": Command("Generate events with known query results, deterministic by seed.", "sandbox.cli.generate:app"),
    "experiment": Command("Measure table layouts with data sizes of your choice.", "sandbox.cli.experiment:app"),
}
