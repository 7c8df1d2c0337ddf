"""Builds OpenLineage datasets with columns and column origins, from specs and their SQL; and those of a gold build.

The columns of gold tables are traced through subqueries, joins and aliases of their SQL by sqlglot.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, lineage

from deltaworks.control import paths
from deltaworks.specs.base import resolve_text
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.checks.query_errors import parse_query
from deltaworks.specs.gold import GoldTableSpec, cross_pipeline_table, view_name
from deltaworks.specs.mutation import NAMES_COLUMNS
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import KafkaSourceSpec, KinesisSourceSpec
from deltaworks.specs.sources import DeltaSourceSpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.specs.table import TableSpec


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an input, or a field of its events by dotted path."""

    namespace: str
    dataset: str
    name: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """An OpenLineage dataset.

    - `fields`: types by name; empty if unknown.
    - `columns`: the origins of each column.
    - `rows`: number of written rows, if known.
    """

    namespace: str
    name: str
    fields: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)
    rows: int | None = None

    def column(self, name: str) -> Column:
        """Returns the origin that refers to one of the dataset's columns."""
        return Column(self.namespace, self.name, name)


def storage_dataset(storage: StorageSpec, key: str = "") -> Dataset:
    """Returns the dataset at a key of a storage. Each bucket, and the local disk, is a namespace."""
    if storage.scheme == "s3":
        return Dataset(f"s3://{storage.bucket}", "/".join(filter(None, (storage.prefix, key))) or "/")
    return Dataset("file", "/".join(filter(None, (storage.prefix, key))))


def table_dataset(catalog: Catalog, spec: PipelineSpec, name: str) -> Dataset:
    """Returns a table of a pipeline as a dataset, with the declared columns if it is a bronze table."""
    types: dict[str, str] = {}
    for table in spec.tables:
        types = table.column_types() if table.name == name else types
    for keyed in (*spec.keyed_tables, *spec.latest_tables):
        types = dict(keyed.types) if keyed.name == name else types
    return replace(storage_dataset(catalog.environment.lake, paths.table(spec.pipeline, name)), fields=types)


def stream_inputs(catalog: Catalog, spec: PipelineSpec) -> list[Dataset]:
    """Returns the inputs of a stream, with the event fields that columns are derived from."""
    fields: dict[str, str] = {}
    for table in spec.event_tables:
        types = table.column_types()
        for name, sources in _source_paths(spec, table).items():
            fields |= {path: types[name] for path in sources if path not in fields}
    return [replace(dataset, fields=fields) for dataset in _source_datasets(catalog, spec)]


def stream_outputs(catalog: Catalog, spec: PipelineSpec) -> list[Dataset]:
    """Returns the outputs of a stream: bronze tables, quarantine, keyed and live tables."""
    inputs = _source_datasets(catalog, spec)
    tables = {table.name: table_dataset(catalog, spec, table.name) for table in spec.tables}
    for table in spec.event_tables:
        origins = {
            name: tuple(dataset.column(path) for dataset in inputs for path in event_paths)
            for name, event_paths in _source_paths(spec, table).items()
        }
        tables[table.name] = replace(tables[table.name], columns=origins)
    for keyed in (*spec.keyed_tables, *spec.latest_tables):
        dataset, history = table_dataset(catalog, spec, keyed.name), tables[keyed.history]
        same = {name: (history.column(name),) for name in dataset.fields if name in history.fields}
        tables[keyed.name] = replace(dataset, columns=same)
    others = ["quarantine", *(live.name for live in spec.aggregation_tables)]
    return [*tables.values(), *(table_dataset(catalog, spec, name) for name in others)]


def mutation_inputs(catalog: Catalog, pipeline: str, written: Mapping[str, int | None]) -> list[Dataset]:
    """Returns the inputs of mutations: requests, and the tables whose rows they change."""
    spec = catalog.pipeline(pipeline)
    requests = [spec.mutations.requests] if spec.mutations is not None else []
    return [table_dataset(catalog, spec, name) for name in [*requests, *(written or _mutable(spec))]]


def mutation_outputs(catalog: Catalog, pipeline: str, written: Mapping[str, int | None]) -> list[Dataset]:
    """Returns the tables whose rows mutations change. Values come from requests and from the previous rows."""
    spec = catalog.pipeline(pipeline)
    outputs = []
    for name in written or _mutable(spec):
        dataset = table_dataset(catalog, spec, name)
        same = {column: (dataset.column(column),) for column in dataset.fields}
        outputs.append(replace(dataset, columns=same, rows=written.get(name)))
    return outputs


def _mutable(spec: PipelineSpec) -> list[str]:
    return [table.name for table in spec.tables if table.mutable is not None]


def _source_paths(spec: PipelineSpec, table: TableSpec) -> dict[str, tuple[str, ...]]:
    """Returns the event paths from which each column of a table is derived."""
    event = spec.event
    origins = {
        "event_id": event.id,
        "event_name": (event.name.path,) if event.name.path else (),
        "event_time": event.time.path,
        "event_date": event.time.path,
    } | {column.name: (column.path,) for column in table.columns}
    return {name: event_paths for name, event_paths in origins.items() if event_paths}


def _source_datasets(catalog: Catalog, spec: PipelineSpec) -> list[Dataset]:
    source = spec.source
    if isinstance(source, KafkaSourceSpec):
        # OpenLineage's naming spec uses the first broker.
        broker = resolve_text(source.bootstrap_servers).split(",")[0].strip()
        return [Dataset(f"kafka://{broker}", topic) for topic in source.topics]
    if isinstance(source, KinesisSourceSpec):
        return [Dataset(f"kinesis://{catalog.environment.messaging.region}", source.stream)]
    if isinstance(source, DeltaSourceSpec):
        if source.uri is not None:
            return [storage_dataset(StorageSpec(root=source.uri))]
        return [
            storage_dataset(catalog.environment.lake, paths.table(source.pipeline or spec.pipeline, source.table or ""))
        ]
    return [storage_dataset(catalog.environment.landing.with_bucket(source.bucket), source.prefix.rstrip("/"))]


def distinct_datasets(datasets: Iterable[Dataset]) -> Iterator[Dataset]:
    """Yields the datasets without repeated names."""
    first: dict[tuple[str, str], Dataset] = {}
    for dataset in datasets:
        first.setdefault((dataset.namespace, dataset.name), dataset)
    yield from first.values()


#: SQL dialect of gold tables.
_DIALECT = "spark"
log = logging.getLogger(__name__)


def column_origins(sql: str, reads: Mapping[str, Dataset]) -> dict[str, tuple[Column, ...]]:
    """Returns the input columns of each result column. Columns without an origin, such as counts, are omitted.

    Returns nothing if the query cannot be traced.

    Args:
        reads: inputs by their names in the query, with their fields.
    """
    schema = {name: {column: kind or "string" for column, kind in read.fields.items()} for name, read in reads.items()}
    try:
        query = parse_query(sql)
        if query is None:
            return {}
        nodes = lineage(None, query, {name: columns for name, columns in schema.items() if columns}, dialect=_DIALECT)
        origins = {name: tuple(dict.fromkeys(_origin_columns(node, reads))) for name, node in nodes.items()}
    except (SqlglotError, ValueError, KeyError, RecursionError) as error:
        log.debug("cannot trace the columns of a query: %s", error)
        return {}
    return {name: columns for name, columns in origins.items() if columns}


def _origin_columns(node: Node, reads: Mapping[str, Dataset]) -> Iterator[Column]:
    for child in node.walk():
        table = child.expression
        if isinstance(table, exp.Table) and table.name.lower() in reads:
            column = exp.to_column(child.name).name
            if column != "*":
                yield reads[table.name.lower()].column(column)


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
    # Reading Delta costs more than the rest of this module, which also checks declarations.
    from deltaworks.tables.lake import Lake

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
