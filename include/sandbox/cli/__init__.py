"""The commands of the sandbox, added to the `deltaworks` command where the sandbox is installed."""

from __future__ import annotations

from deltaworks.cli.commands import Command

COMMANDS = {
    "up": Command("Start the embedded stack and keep it running.", "sandbox.cli.stack:up"),
    "down": Command("Stop the embedded stack, streams first.", "sandbox.cli.stack:down"),
    "status": Command("What runs, and whether it is healthy.", "sandbox.cli.stack:status"),
    "demo": Command("Everything end to end, every answer held against the truth.", "sandbox.cli.demo:demo"),
    "generate": Command("Events with the right answers about them, deterministic by seed.", "sandbox.cli.generate:app"),
    "experiment": Command("Layouts of tables, measured with sizes of your own.", "sandbox.cli.experiment:app"),
}
