"""Writes docs/reference/commands.md and the table of operations in docs/reference/dags.md: `make tables`.

Both pages contain their table between `<!-- table: NAME -->` and `<!-- end -->`; the rest is written by hand.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import typer.main
from typer.core import TyperGroup

from deltaworks.cli import app
from deltaworks.cli.commands import command_entries
from deltaworks.cli.lazy import LazyCommand
from deltaworks.errors.docs_tables import markdown_table, replace_tables, write_pages
from deltaworks.operations.registry import OPERATIONS

#: Options that every operation has. The page explains them once, so the table omits them.
_COMMON_OPTIONS: Final = frozenset({"--json", "--csv", "--in-airflow", "--wait-minutes"})


def walk_commands() -> Iterator[tuple[str, Any]]:
    """Yields every command and group with its path, such as `tables resume`."""
    root = typer.main.get_command(app)
    for name in sorted(command_entries()):
        yield from _walk(name, root.get_command(None, name))  # type: ignore[attr-defined]


def _walk(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    loaded = command.load() if isinstance(command, LazyCommand) else command
    yield words, loaded
    if isinstance(loaded, TyperGroup):
        for name, subcommand in sorted(loaded.commands.items()):
            yield from _walk(f"{words} {name}", subcommand)


def commands_table() -> str:
    """Returns the table of commands with arguments, options and the first line of their help."""
    rows = []
    for words, command in walk_commands():
        if isinstance(command, TyperGroup) and not command.invoke_without_command:
            continue
        arguments = [str(item.name).upper() for item in command.params if not item.opts[0].startswith("-")]
        options = [opt for item in command.params for opt in item.opts if opt.startswith("--")]
        shown = " ".join(f"`{option}`" for option in options if option not in _COMMON_OPTIONS)
        rows.append((f"`{' '.join([words, *arguments])}`", _escape((command.help or "").split("\n")[0]), shown))
    return markdown_table(("command", "effect", "options"), rows)


def operations_table() -> str:
    """Returns the table of the DAGs that run operations by hand or on a schedule, with their tasks."""
    rows = [
        (
            f"`{operation.dag_id(f'<{operation.scope}>')}`",
            ", ".join(f"`{action}`" for action in operation.actions),
            _escape(operation.summary),
            f"`{operation.name}`" + (", once approved" if operation.waits_for_approval else ""),
            "spark-submit" if operation.needs_spark else "process",
        )
        for operation in sorted(OPERATIONS.values(), key=lambda item: (item.scope, item.kind))
    ]
    return markdown_table(("DAG", "action", "effect", "task", "runs as"), rows)


TABLES: Final = {"commands": commands_table, "operations": operations_table}
PAGES: Final = ("reference/commands.md", "reference/dags.md")


def page_with_tables(text: str) -> str:
    """Returns a page with its generated tables replaced.

    Raises:
        KeyError: the page names an unknown table.
    """
    return replace_tables(text, lambda name: TABLES[name]())


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(write_pages(PAGES, page_with_tables, __doc__))
