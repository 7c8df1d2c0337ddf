"""Writes the tables of docs/reference/conditions.md and docs/reference/alerts.md from the catalog: `make tables`.

A page contains each table between `<!-- table: NAME -->` and `<!-- end -->`; the rest of the page is written by hand.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from deltaworks.errors import (
    ConcurrencyError,
    ConfigError,
    ContractError,
    DeltaworksError,
    FencedError,
    TransientError,
)
from deltaworks.errors.conditions import Condition, alert_for_failure, alert_for_verdict, catalog

_TABLE = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_LINK = re.compile(r"\]\(([\w/-]+\.md)")
_FOLDER = "reference"
PAGES: Final = ("reference/conditions.md", "reference/alerts.md")


def page_with_tables(text: str) -> str:
    """Returns the text of a page with current tables.

    Raises:
        KeyError: the page names an unknown table.
    """
    return replace_tables(text, lambda name: _relative_links(TABLES[name]()))


def replace_tables(text: str, table: Callable[[str], str]) -> str:
    """Returns a page's text with each marked table replaced by that of its name."""
    return _TABLE.sub(lambda marked: f"{marked[1]}{table(marked[2])}{marked[3]}", text)


def _relative_links(text: str) -> str:
    """Rewrites links relative to the docs folder as links relative to the folder of the reference pages."""
    return _LINK.sub(lambda link: f"]({posixpath.relpath(link[1], _FOLDER)}", text)


def _conditions_table(error: type[DeltaworksError]) -> str:
    rows = [
        (_linked_code(row), row.meaning + _retry_note(row), row.next_step)
        for row in catalog().conditions.values()
        if row.error == error.__name__ and row.code not in catalog().health_causes
    ]
    return markdown_table(("condition", "meaning", "next step"), rows)


def _retry_note(row: Condition) -> str:
    if row.retryable is None:
        return ""
    return " (retried)" if row.retryable else " (not retried)"


def _health_table() -> str:
    rows = []
    for row in catalog().health_causes.values():
        alert = f"[`{row.alert}`]({catalog().alerts[row.alert].runbook})" if row.alert else ""
        rows.append((_linked_code(row), row.meaning, row.next_step, alert))
    return markdown_table(("cause", "meaning", "next step", "alert"), rows)


def _alerts_table() -> str:
    rows = []
    for alert in catalog().alerts.values():
        verdicts = [
            row.code
            for row in catalog().health_causes.values()
            if row.alert and alert_for_verdict(row.code) == alert.name
        ]
        failures = [code for code in catalog().conditions if alert.name == alert_for_failure(code) != "JOB_FAILED"]
        codes_text = ", ".join(f"`{code}`" for code in (*verdicts, *failures))
        name = f"[`{alert.name}`]({alert.runbook})"
        rows.append((name, alert.severity, alert.meaning, codes_text))
    return markdown_table(("cause", "severity", "meaning", "raised for"), rows)


def _linked_code(row: Condition) -> str:
    """Returns the code, linked to the runbook if there is one."""
    return f"[`{row.code}`]({row.runbook})" if row.runbook else f"`{row.code}`"


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a table in Markdown."""
    columns = tuple(head)
    lines = [columns, ("---",) * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "config": partial(_conditions_table, ConfigError),
    "contract": partial(_conditions_table, ContractError),
    "concurrency": partial(_conditions_table, ConcurrencyError),
    "transient": partial(_conditions_table, TransientError),
    "fenced": partial(_conditions_table, FencedError),
    "unexpected": partial(_conditions_table, DeltaworksError),
    "health": _health_table,
    "alerts": _alerts_table,
}


def write_pages(names: Iterable[str], updated: Callable[[str], str], description: str | None) -> int:
    """The program of a module with tables: updates the pages in the folder that its argument names."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("docs", type=Path, help="the folder of the pages")
    folder: Path = parser.parse_args().docs
    for name in names:
        page = folder / name
        page.write_text(updated(page.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(write_pages(PAGES, page_with_tables, __doc__))
