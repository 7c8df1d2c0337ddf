"""A project for the demo whose declaration of `games` first lacks a table and a column, and then has them.

So the demo shows what a change of a declaration does to events that have already landed: a replay of quarantine lands
the events of a new table, and a reprocess fills a new column of existing rows. The project is a folder of links to the
checkout, so jobs run the checkout's code and read all its other declarations.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from deltaworks.errors import ConfigError

#: The table whose events go to quarantine at first, and the column that another table lacks at first.
PIPELINE, NEW_TABLE = "games", "app_update"
CHANGED_TABLE, NEW_COLUMN = "install", "campaign"
_DECLARATION = Path("include") / "pipelines" / PIPELINE / "pipeline.yaml"


@dataclass(frozen=True, slots=True)
class EarlierDeclaration:
    """The project in `folder`, made of links to `checkout`."""

    checkout: Path
    folder: Path

    def create(self) -> None:
        """Makes the project, with the earlier declaration. An existing one is replaced.

        Raises:
            ConfigError: DEMO_DECLARATION_CHANGED, the shipped declaration has no such table or column.
        """
        if self.folder.exists():
            shutil.rmtree(self.folder)
        _link_entries(self.checkout, self.folder, _DECLARATION.parts)
        text = (self.checkout / _DECLARATION).read_text()
        (self.folder / _DECLARATION).write_text(_without(text))

    def complete(self) -> None:
        """Changes the declaration to the shipped one. From now on, the project follows every edit of the checkout.
        Idempotent; does nothing without a project.
        """
        declaration = self.folder / _DECLARATION
        if not declaration.exists():
            return
        link = declaration.with_suffix(".link")
        link.symlink_to(self.checkout / _DECLARATION)
        link.replace(declaration)


def _link_entries(source: Path, target: Path, copied: tuple[str, ...]) -> None:
    """Links all entries of a folder, apart from the first of `copied`, which becomes a folder of links itself. The
    last one is omitted.
    """
    target.mkdir(parents=True)
    name, *rest = copied
    for entry in source.iterdir():
        if entry.name != name:
            # The state of the stack, in which this project is, must not be reached through the project.
            if entry.name != target.parent.name:
                (target / entry.name).symlink_to(entry)
        elif rest:
            _link_entries(entry, target / name, tuple(rest))


def _without(text: str) -> str:
    """Returns the declaration without the table and the column."""
    table = re.compile(rf"^  - name: {NEW_TABLE}\n(?:(?:    .*)?\n)+", re.MULTILINE)
    column = re.compile(
        rf"(^  - name: {CHANGED_TABLE}\n(?:(?:    .*)?\n)+?)      - {{name: {NEW_COLUMN}, .*\n", re.MULTILINE
    )
    text, tables = table.subn("", text)
    text, columns = column.subn(r"\1", text)
    if (tables, columns) != (1, 1):
        raise ConfigError(
            "DEMO_DECLARATION_CHANGED",
            f"{_DECLARATION} does not declare table {NEW_TABLE} and column {CHANGED_TABLE}.{NEW_COLUMN} as blocks of "
            "lines, so the demo cannot begin without them.",
            hint=f"Name another table and column in {Path(__file__).name}.",
        )
    return text
