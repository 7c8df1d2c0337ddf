"""Writes Jupyter notebooks (format 4.5) that read the lake with DuckDB, and the cell that connects them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

#: Connects a notebook to the lake of the environment. It contains no address and no key.
_CONNECTION: Final = """\
from deltaworks.specs.project import load_catalog
from deltaworks.specs.project_folder import load_settings, settings_file
from deltaworks.tables.bounded_query import confine_connection
from deltaworks.tables.query import connect

# The settings that `deltaworks up` writes; without it, those of the environment variables.
if settings_file().is_file():
    load_settings(settings_file())
project = load_catalog({only}skip_invalid=True)
# A snapshot of every table and view: run this cell again to see later commits.
lake, tables = connect(project)
confine_connection(lake)  # queries read the tables and nothing else"""
_LISTING: Final = "tables"
_INTRODUCTION: Final = """\
# {title}

Every table and view is `pipeline.table`, in DuckDB's dialect: `lake.sql("SELECT …").df()`. Run it with the Python of
the project."""

CellType = Literal["markdown", "code"]


def connection_cell(pipelines: Sequence[str] = ()) -> str:
    """Returns the source of the cell that opens the lake.

    Args:
        pipelines: whose tables are opened; by default all.
    """
    only = f"only=[{', '.join(map(json.dumps, pipelines))}], " if pipelines else ""
    return _CONNECTION.format(only=only)


def notebook_text(cells: Sequence[tuple[CellType, str]]) -> str:
    """Returns a notebook without outputs. Equal cells give equal text, so that a repository shows only real changes."""
    document = {
        "cells": [_cell(number, kind, source) for number, (kind, source) in enumerate(cells)],
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _cell(number: int, kind: CellType, source: str) -> dict[str, Any]:
    identity = hashlib.sha256(f"{number} {source}".encode()).hexdigest()[:12]
    cell: dict[str, Any] = {
        "cell_type": kind,
        "id": identity,
        "metadata": {},
        "source": source.splitlines(keepends=True),
    }
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def write_notebook(path: Path, pipelines: Sequence[str] = ()) -> None:
    """Writes a new notebook with the connection cell.

    Raises:
        FileExistsError: the file exists; it is not changed.
    """
    title = ", ".join(pipelines) or "The lake"
    cells: list[tuple[CellType, str]] = [
        ("markdown", _INTRODUCTION.format(title=title)),
        ("code", connection_cell(pipelines)),
        ("code", _LISTING),
    ]
    with path.open("x", encoding="utf-8") as file:
        file.write(notebook_text(cells))
