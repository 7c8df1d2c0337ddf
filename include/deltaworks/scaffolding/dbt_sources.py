"""Writes the sources of a dbt project that reads the lake: all tables with texts, and how fresh they must be.

With dbt-duckdb, a source is read by its plugin `delta`, which opens the table by deltalake: no export, no copy. Other
adapters ignore these settings and read the names from a catalog (`deltaworks.catalogs`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

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
