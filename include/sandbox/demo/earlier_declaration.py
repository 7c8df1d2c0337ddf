"""A project for the demo whose declaration of `games` first lacks a table and a column, and then has them.

So the demo shows what a change of a declaration does to events that have already landed: a replay of quarantine lands
the events of a new table, and a reprocess fills a new column of existing rows. Apart from its pipelines, the project is
a folder of links to the checkout.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from deltaworks.errors import ConfigError

#: The table whose events go to quarantine at first, and the column that another table lacks at first.
PIPELINE, NEW_TABLE = "games", "app_update"
CHANGED_TABLE, NEW_COLUMN = "install", "campaign"
_PIPELINES = Path("include") / "pipelines"


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
        # The state of the stack, in which this project is, must not be reached through the project.
        _link_entries(self.checkout, self.folder, omitted=("include", self.folder.parent.name))
        _link_entries(self.checkout / "include", self.folder / "include", omitted=(_PIPELINES.name,))
        earlier = self.folder / "earlier_pipelines"
        shutil.copytree(self.checkout / _PIPELINES, earlier)
        declaration = earlier / PIPELINE / "pipeline.yaml"
        declaration.write_text(_without(declaration.read_text()))
        (self.folder / _PIPELINES).symlink_to(earlier)

    def complete(self) -> None:
        """Changes the declaration to the shipped one. From now on, the project follows every edit of the checkout.
        Idempotent; does nothing without a project.
        """
        pipelines = self.folder / _PIPELINES
        if pipelines.exists():
            link = pipelines.with_suffix(".new")
            link.symlink_to(self.checkout / _PIPELINES)
            link.replace(pipelines)


def _link_entries(source: Path, target: Path, *, omitted: Collection[str]) -> None:
    """Creates a folder with links to all entries of another, apart from the omitted ones."""
    target.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name not in omitted:
            (target / entry.name).symlink_to(entry)


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
            f"{_PIPELINES / PIPELINE}/pipeline.yaml does not declare table {NEW_TABLE} and column "
            f"{CHANGED_TABLE}.{NEW_COLUMN} as blocks of lines, so the demo cannot begin without them.",
            hint=f"Name another table and column in {Path(__file__).name}.",
        )
    return text
