"""Keeps commands fast to start: imports a command when it is called, so that `deltaworks --help` loads only help
texts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

#: The class of click commands that typer creates; typer does not export it.
LoadedCommand = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A command or group: one line of help, and the function that loads it."""

    help: str
    load: Callable[[], LoadedCommand]


class LazyCommand(TyperCommand):
    """A command whose module is imported when the command is used."""

    def __init__(self, name: str, entry: Entry) -> None:
        # The short help is complete, even on a narrow terminal.
        super().__init__(name, help=entry.help, short_help=entry.help)
        self._entry = entry

    def load(self) -> LoadedCommand:
        """Imports the module and returns its command."""
        command = self._entry.load()
        command.name = self.name
        # The help of a group is declared only once, in the list of commands.
        command.help = command.help or self._entry.help
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Creates the context of the imported command."""
        return self.load().make_context(info_name, args, parent, **extra)


class LazyGroup(TyperGroup):
    """A group of commands that are imported when they are used. A subclass sets `entries` and `nested_names`.

    The base class suggests the nearest of `commands` for a mistyped name. A name that only a group has is suggested
    with its group.
    """

    entries: Mapping[str, Entry] = {}
    nested_names: Mapping[str, str] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: LazyCommand(name, entry) for name, entry in self.entries.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command of the first argument; the error for an unknown one suggests the nearest names."""
        nested = self.nested_names.get(args[0]) if args and args[0] not in self.commands else None
        if nested is not None:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {nested!r}?")
        return super().resolve_command(ctx, args)


def group_class(entries: Mapping[str, Entry], nested_names: Mapping[str, str]) -> type[LazyGroup]:
    """Creates a group class with these entries, to pass as `cls` to a Typer.

    Args:
        nested_names: commands of groups by their own name, such as `tables resume` by `resume`.
    """
    return type("Commands", (LazyGroup,), {"entries": entries, "nested_names": nested_names})


def load_command(location: str) -> Callable[[], LoadedCommand]:
    """Returns a function that imports the object at `module:name`. A Typer becomes a group, a function a command."""

    def load() -> LoadedCommand:
        module, _, name = location.partition(":")
        return to_click_command(getattr(importlib.import_module(module), name))

    return load


def to_click_command(loaded: typer.Typer | Callable[..., Any]) -> LoadedCommand:
    """Converts a Typer to a group, a function to a command."""
    if isinstance(loaded, typer.Typer):
        return typer.main.get_group(loaded)
    app = typer.Typer(add_completion=False)
    app.command()(loaded)
    return typer.main.get_command(app)
