"""Writes docs/reference/commands.md and the table of operations in docs/reference/dags.md: `make tables`.

Both pages contain their table between `<!-- table: NAME -->` and `<!-- end -->`; the rest is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import typer.main
from typer.core import TyperGroup

from deltaworks.cli import app
from deltaworks.cli.commands import command_entries
from deltaworks.cli.lazy import LazyCommand
from deltaworks.operations.registry import OPERATIONS

#: Options that every operation has. The page explains them once, so the table omits them.
_COMMON_OPTIONS: Final = frozenset({"--json", "--csv", "--in-airflow", "--wait-minutes"})
_TABLE = re.compile(r"(<!-- table: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


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
    return _markdown(("command", "effect", "options"), rows)


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
    return _markdown(("DAG", "action", "effect", "task", "runs as"), rows)


TABLES: Final = {"commands": commands_table, "operations": operations_table}
PAGES: Final = ("reference/commands.md", "reference/dags.md")


def page_with_tables(text: str) -> str:
    """Returns a page with its generated tables replaced.

    Raises:
        KeyError: the page names an unknown table.
    """
    return _TABLE.sub(lambda match: f"{match[1]}{TABLES[match['name']]()}{match[3]}", text)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


def _markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = tuple(head)
    lines = [columns, ("---",) * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(arguments: list[str] | None = None) -> int:
    """Writes the tables into the pages of a docs folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("docs", type=Path, help="docs folder")
    folder: Path = parser.parse_args(arguments).docs
    for name in PAGES:
        page = folder / name
        page.write_text(page_with_tables(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
