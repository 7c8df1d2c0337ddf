"""Commands that are imported when they are used, so that `deltaworks --help` loads nothing but their help texts."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

#: What typer makes of a function, and of a Typer: its own kind of command, which it does not name in public.
Made = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A command or a group of commands: its help in one line, and what makes it."""

    help: str
    load: Callable[[], Made]


class LazyCommand(TyperCommand):
    """Stands for a command until it is used."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help)
        self._entry = entry

    def loaded(self) -> Made:
        """The command itself."""
        command = self._entry.load()
        command.name = self.name
        return command

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the command itself, which so takes over from here."""
        return self.loaded().make_context(info_name, args, parent, **extra)


class LazyGroup(TyperGroup):
    """A group whose commands are entries. `entries` is set by a subclass."""

    entries: Mapping[str, Entry] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = self.entries.get(cmd_name)
        return None if entry is None else LazyCommand(cmd_name, entry)


def group_of(entries: Mapping[str, Entry]) -> type[LazyGroup]:
    """A group of these entries, as `cls` of a Typer."""
    return type("Commands", (LazyGroup,), {"entries": entries})


def command_at(place: str) -> Callable[[], Made]:
    """Loads `module:name`: a group where it is a Typer, and a command where it is a function."""

    def load() -> Made:
        module, _, name = place.partition(":")
        return made_of(getattr(importlib.import_module(module), name))

    return load


def made_of(made: typer.Typer | Callable[..., Any]) -> Made:
    """A Typer as a group, a function as a command."""
    if not isinstance(made, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command()(made)
        return typer.main.get_command(app)
    return typer.main.get_command(made)
