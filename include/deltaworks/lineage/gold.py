"""Datasets of a gold build: its inputs, and its outputs with column origins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from deltaworks.control import paths
from deltaworks.lineage.datasets import Dataset, storage_dataset, table_dataset
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.gold import GoldTableSpec, cross_pipeline_table, view_name
from deltaworks.specs.mutation import NAMES_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake


def gold_inputs(catalog: Catalog, pipeline: str, written: Mapping[str, int | None]) -> list[Dataset]:
    """Returns the inputs of the gold tables that were written, or of all gold tables before the first write."""
    spec = catalog.pipeline(pipeline)
    names = dict.fromkeys(
        name for table in _selected_tables(spec, written) for name in table.reads if name not in written
    )
    return [_table(catalog, spec, name) for name in names]


def gold_outputs(catalog: Catalog, pipeline: str, written: Mapping[str, int | None]) -> list[Dataset]:
    """Returns the gold tables that were written, or all gold tables before the first write."""
    # Imported lazily: it imports the SQL parser.
    from deltaworks.lineage.datasets import column_origins

    spec = catalog.pipeline(pipeline)
    outputs = []
    for table in _selected_tables(spec, written):
        sql = (catalog.folder(pipeline) / table.sql).read_text(encoding="utf-8")
        columns = column_origins(sql, {view_name(name): _table(catalog, spec, name) for name in table.reads})
        outputs.append(replace(_table(catalog, spec, table.name), columns=columns, rows=written.get(table.name)))
    return outputs


def _selected_tables(spec: PipelineSpec, written: Mapping[str, int | None]) -> list[GoldTableSpec]:
    return [table for table in spec.gold.tables if not written or table.name in written]


def _table(catalog: Catalog, spec: PipelineSpec, name: str) -> Dataset:
    """Returns a table with its columns, from the spec or else from its Delta log.

    A name such as `games.daily` is a gold table of another pipeline, whose columns are read from its log.
    """
    lake = catalog.environment.lake
    other = cross_pipeline_table(name)
    dataset = storage_dataset(lake, paths.table(*other)) if other is not None else table_dataset(catalog, spec, name)
    if dataset.fields:
        return dataset
    opened = Lake(lake).open(paths.table(*(other or (spec.pipeline, name))))
    if opened is not None:
        types = {field.name: str(field.type.type) if _is_plain(field.type) else "" for field in opened.schema().fields}
        return replace(dataset, fields=types)
    if spec.mutations is not None and name == spec.mutations.names:
        return replace(dataset, fields=NAMES_COLUMNS)
    return dataset


def _is_plain(kind: object) -> bool:
    return isinstance(getattr(kind, "type", None), str)
