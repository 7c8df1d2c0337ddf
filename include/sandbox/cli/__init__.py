"""Commands of the sandbox, added to `deltaworks` if the sandbox is installed."""

from __future__ import annotations

from deltaworks.cli.commands import Command

COMMANDS = {
    "up": Command(
        "Start the stack and keep it running: object stores, notifications and Airflow, supervised.",
        "sandbox.cli.stack:up",
    ),
    "down": Command("Stop streams first, then the stack. `up` continues where it was.", "sandbox.cli.stack:down"),
    "status": Command(
        "Show what runs and how it is; exits with 0 where all is well, 1 where it is not, 21 where the stack is down.",
        "sandbox.cli.stack:status",
    ),
    "doctor": Command(
        "Look for what the demo and the tests need on this machine; exits with 1 where something is missing.",
        "sandbox.cli.doctor:doctor",
    ),
    "demo": Command(
        "Send real and generated events, wait for the KPIs and compare each with the truth.", "sandbox.cli.demo:demo"
    ),
    "generate": Command("Events with the right answers about them, deterministic by seed.", "sandbox.cli.generate:app"),
    "experiment": Command("Layouts of tables, measured with sizes of your own.", "sandbox.cli.experiment:app"),
}
