"""Datasets as OpenLineage names them, with their columns and where those come from: plain data, of specs alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from deltaworks.control import paths
from deltaworks.specs.base import resolve_text
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources.delta import DeltaSourceSpec
from deltaworks.specs.sources.records import KafkaSourceSpec, KinesisSourceSpec
from deltaworks.specs.storage import StorageSpec
from deltaworks.specs.table import TableSpec


@dataclass(frozen=True, slots=True)
class Column:
    """A column of an input, or a field of its events by its dotted path."""

    namespace: str
    dataset: str
    name: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset. `fields` are types by name, empty where they are not known; `columns` are where its columns come from;
    `rows` are those written, where it is known."""

    namespace: str
    name: str
    fields: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, tuple[Column, ...]] = field(default_factory=dict)
    rows: int | None = None

    def column(self, name: str) -> Column:
        """One of its columns, as the origin of another dataset's."""
        return Column(self.namespace, self.name, name)


def storage_dataset(storage: StorageSpec, key: str = "") -> Dataset:
    """What lies at a key of a storage. A bucket is a namespace; local disk is one."""
    if storage.scheme == "s3":
        return Dataset(f"s3://{storage.bucket}", "/".join(filter(None, (storage.prefix, key))) or "/")
    return Dataset("file", "/".join(filter(None, (storage.prefix, key))))


def table_dataset(catalog: Catalog, spec: PipelineSpec, name: str) -> Dataset:
    """A table of a pipeline with the columns it is declared with; of one that is not bronze, without any."""
    types: dict[str, str] = {}
    for table in spec.tables:
        types = table.column_types() if table.name == name else types
    for keyed in (*spec.keyed_tables, *spec.latest_tables):
        types = dict(keyed.types) if keyed.name == name else types
    return replace(storage_dataset(catalog.environment.lake, paths.table(spec.pipeline, name)), fields=types)


def stream_inputs(catalog: Catalog, spec: PipelineSpec) -> list[Dataset]:
    """What a stream reads, with the fields of events that columns are made of."""
    fields: dict[str, str] = {}
    for table in spec.event_tables:
        types = table.column_types()
        for name, sources in _source_paths(spec, table).items():
            fields |= {path: types[name] for path in sources if path not in fields}
    return [replace(dataset, fields=fields) for dataset in _source_datasets(catalog, spec)]


def stream_outputs(catalog: Catalog, spec: PipelineSpec) -> list[Dataset]:
    """What a stream writes: bronze tables, what is in quarantine, keyed and live tables."""
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
    """What a run of mutations reads: requests, and the tables whose rows they change."""
    spec = catalog.pipeline(pipeline)
    requests = [spec.mutations.requests] if spec.mutations is not None else []
    return [table_dataset(catalog, spec, name) for name in [*requests, *(written or _mutable(spec))]]


def mutation_outputs(catalog: Catalog, pipeline: str, written: Mapping[str, int | None]) -> list[Dataset]:
    """The tables whose rows it changed, or may; the values come from requests, and from the rows as they were."""
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
    """The paths in events that each column of a table is made of."""
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
        # One of the brokers stands for all of them, as the client's own naming has it.
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


def unique(datasets: Iterable[Dataset]) -> Iterator[Dataset]:
    """Each dataset once, the first of its name."""
    first: dict[tuple[str, str], Dataset] = {}
    for dataset in datasets:
        first.setdefault((dataset.namespace, dataset.name), dataset)
    yield from first.values()
