"""The commands of `deltaworks`, each loaded as on use."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import typer.main
from typer.core import TyperGroup

from deltaworks.cli import app
from deltaworks.cli.commands import command_entries
from deltaworks.cli.lazy import LazyCommand


@functools.cache
def all_commands() -> Mapping[str, Any]:
    """Every command and group by its words, such as `tables resume`."""
    root = typer.main.get_command(app)
    return {
        words: command
        for name in command_entries()
        for words, command in _below(name, root.get_command(None, name))  # type: ignore[attr-defined]
    }


def _below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    loaded = command.load() if isinstance(command, LazyCommand) else command
    yield words, loaded
    if isinstance(loaded, TyperGroup):
        for name, subcommand in loaded.commands.items():
            yield from _below(f"{words} {name}", subcommand)
