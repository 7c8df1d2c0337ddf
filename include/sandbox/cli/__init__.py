"""The commands of the sandbox, added to the `deltaworks` command where the sandbox is installed."""

from __future__ import annotations

import typer

from sandbox.cli import demo, experiment, generate, stack


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(experiment.app, name="experiment")
    for module in (stack, generate, demo):
        module.register(app)
