"""Writes files for other tools that read the lake: Jupyter notebooks (format 4.5) with the cell that connects them by
DuckDB, and the sources of a dbt project, which are all tables with texts and how fresh they must be.

With dbt-duckdb, a source is read by its plugin `delta`, which opens the table by deltalake: no export, no copy. Other
adapters ignore these settings and read the names from a catalog (`deltaworks.catalogs`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from deltaworks.control import paths
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.descriptions import TableDescription, table_descriptions
from deltaworks.specs.pipeline import PipelineSpec

#: Kinds of tables that analysts model; others are the engine's own.
KINDS: Final = ("bronze", "keyed", "live", "gold", "reference")
#: The column by which dbt measures freshness, by kind.
_LOADED_AT: Final[Mapping[str, str]] = {"bronze": "_ingested_at", "keyed": "_ingested_at", "live": "updated_at"}


def dbt_sources(catalog: Catalog, pipelines: Collection[str] = ()) -> str:
    """Returns the content of `sources.yml`: a source per pipeline.

    Args:
        pipelines: by default all.

    Raises:
        ConfigError: PIPELINE_UNKNOWN.
    """
    specs = [catalog.pipeline(name) for name in pipelines or catalog.pipelines]
    sources = [_source(catalog, spec) for spec in specs]
    text: str = yaml.safe_dump({"version": 2, "sources": sources}, sort_keys=False, allow_unicode=True, width=120)
    return f"# Written by `deltaworks dbt sources`; run it again after changes.\n{text}"


def _source(catalog: Catalog, spec: PipelineSpec) -> dict[str, Any]:
    described = table_descriptions(spec)
    tables = [
        _table(catalog, spec, name, description) for name, description in described.items() if description.kind in KINDS
    ]
    return {
        "name": spec.pipeline,
        "description": spec.description,
        "schema": spec.pipeline,
        "config": {"meta": {"owner": spec.owner, "tags": list(spec.tags), "plugin": "delta"}},
        "tables": tables,
    }


def _table(catalog: Catalog, spec: PipelineSpec, name: str, description: TableDescription) -> dict[str, Any]:
    meta = {
        "delta_table_path": catalog.environment.lake.uri(paths.table(spec.pipeline, name)),
        "kind": description.kind,
    }
    table: dict[str, Any] = {"name": name, "description": description.text, "config": {"meta": meta}}
    table["config"] |= _freshness(spec, name, description)
    columns = [
        {
            "name": column,
            **({"description": text} if text else {}),
            **({"config": {"meta": {"personal": True}}} if column in description.personal else {}),
        }
        for column, text in description.columns.items()
    ]
    return table | ({"columns": columns} if columns else {})


def _freshness(spec: PipelineSpec, name: str, description: TableDescription) -> dict[str, Any]:
    """Returns when dbt warns: after ten triggers of the stream, and never before ten minutes; an error after a day.

    Gold and references have no time at which a row was loaded.
    """
    column = _LOADED_AT.get(description.kind)
    latest = {table.name for table in spec.latest_tables}
    if column is None or (name in latest) or (description.kind != "live" and column not in _columns(spec, name)):
        return {}
    minutes = max(10, round(10 * spec.stream.trigger_seconds / 60))
    return {
        "loaded_at_field": column,
        "freshness": {
            "warn_after": {"count": minutes, "period": "minute"},
            "error_after": {"count": 1, "period": "day"},
        },
    }


def _columns(spec: PipelineSpec, name: str) -> Collection[str]:
    for keyed in spec.keyed_tables:
        if keyed.name == name:
            return keyed.types
    return spec.table(name).column_types()


#: Connects a notebook to the lake of the environment. It contains no address and no key.
_CONNECTION: Final = """\
from deltaworks.specs.project import load_catalog
from deltaworks.specs.project_folder import load_settings, settings_file
from deltaworks.tables.duckdb_session import confine_connection
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
