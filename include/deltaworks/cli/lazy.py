"""Commands that are imported when they are used, so that `deltaworks --help` loads nothing but their help texts."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

#: The command that typer makes of a function or of a Typer; it does not name that type in public.
LoadedCommand = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A command or a group of commands: its help in one line, and what makes it."""

    help: str
    load: Callable[[], LoadedCommand]


class LazyCommand(TyperCommand):
    """Stands for a command until it is used."""

    def __init__(self, name: str, entry: Entry) -> None:
        # A short help is not cut to the width of the terminal.
        super().__init__(name, help=entry.help, short_help=entry.help)
        self._entry = entry

    def load(self) -> LoadedCommand:
        """The command itself."""
        command = self._entry.load()
        command.name = self.name
        # The help of a group stands once, in the list of commands, unless it does something itself.
        command.help = command.help or self._entry.help
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the command itself, which so takes over from here."""
        return self.load().make_context(info_name, args, parent, **extra)


class LazyGroup(TyperGroup):
    """A group whose commands are entries. `entries` is set by a subclass."""

    entries: Mapping[str, Entry] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = self.entries.get(cmd_name)
        return None if entry is None else LazyCommand(cmd_name, entry)


def group_class(entries: Mapping[str, Entry]) -> type[LazyGroup]:
    """A group of these entries, as `cls` of a Typer."""
    return type("Commands", (LazyGroup,), {"entries": entries})


def load_command(location: str) -> Callable[[], LoadedCommand]:
    """Loads `module:name`: a group where it is a Typer, and a command where it is a function."""

    def load() -> LoadedCommand:
        module, _, name = location.partition(":")
        return to_click_command(getattr(importlib.import_module(module), name))

    return load


def to_click_command(loaded: typer.Typer | Callable[..., Any]) -> LoadedCommand:
    """A Typer as a group, a function as a command."""
    if isinstance(loaded, typer.Typer):
        return typer.main.get_group(loaded)
    app = typer.Typer(add_completion=False)
    app.command()(loaded)
    return typer.main.get_command(app)
