"""Builds what tests of pipelines need: declarations, projects, lakes on local disk, rows and parsed events.

For tests only: no other module of the library imports this one. It needs neither Spark nor Airflow nor pytest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import yaml

from deltaworks.control import paths
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.storage import StorageSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from deltaworks.events.chunks import BatchMetadata, Payload
    from deltaworks.tables.lake import Lake

T = TypeVar("T")
#: The source of a pipeline that declares none: file events of the relay `landing`.
SOURCE: Final = {"kind": "s3_sqs", "relay": "landing", "bucket": "landing"}
#: The event section of a pipeline that declares none.
EVENT: Final = {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}}
#: The relay of that source.
RELAY: Final = {
    "relay": "landing",
    "description": "file events of the landing folder",
    "owner": "tests",
    "queue_url": "http://localhost/queue",
    "buckets": ["landing"],
}
#: When parsed events arrive: 2023-11-14T22:13:20Z.
ARRIVED_AT_US: Final = 1_700_000_000_000_000


def present(value: T | None) -> T:
    """Returns a value that must not be None; for tests that open, read or find something."""
    assert value is not None
    return value


def declare_columns(*columns: str | Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the declarations of columns.

    A column is a mapping, or text: `name type`, then `from path` if the path is not the name, then `required`. For
    example `amount decimal(12,2) from params.amount required`.
    """
    return [_column(column) if isinstance(column, str) else dict(column) for column in columns]


def _column(text: str) -> dict[str, Any]:
    name, _, rest = text.partition(" ")
    rest, required = rest.removesuffix(" required"), rest.endswith(" required")
    kind, _, path = rest.partition(" from ")
    return {"name": name, "path": path or name, "type": kind} | ({"required": True} if required else {})


def declare_table(
    name: str, *columns: str | Mapping[str, Any], when: str | Mapping[str, Any] | None = None, **options: Any
) -> dict[str, Any]:
    """Returns the declaration of a bronze table.

    Args:
        columns: as of `declare_columns`.
        when: the events of the table: a value of their field `name`, or a condition. By default the table gets all
            events of no other table, unless it announces a table.
        options: further keys of the table.
    """
    if when is not None:
        events: dict[str, Any] = {"when": {"name": when} if isinstance(when, str) else dict(when)}
    else:
        events = {} if "announces" in options else {"catch_all": True}
    declared = {"columns": declare_columns(*columns)} if columns else {}
    return {"name": name, **events, **declared, **options}


def declare_pipeline(*tables: Mapping[str, Any], pipeline: str = "shop", **sections: Any) -> dict[str, Any]:
    """Returns the declaration of a pipeline with these tables.

    Without `source` it reads files of the relay `landing`; without `event` an event has its name in `name` and its
    time in `time`, in seconds since 1970.
    """
    declared: dict[str, Any] = {
        "pipeline": pipeline,
        "description": "a pipeline under test",
        "owner": "tests",
        "source": dict(SOURCE),
        "event": dict(EVENT),
        "tables": list(tables),
    }
    return declared | sections


def pipeline_spec(*tables: Mapping[str, Any], pipeline: str = "shop", **sections: Any) -> PipelineSpec:
    """Returns the spec of a pipeline with these tables; arguments as of `declare_pipeline`."""
    return PipelineSpec.model_validate(declare_pipeline(*tables, pipeline=pipeline, **sections))


def local_storage(folder: Path | str) -> StorageSpec:
    """Returns the storage of a folder."""
    return StorageSpec(root=f"file://{folder}")


def declare_environment(folder: Path | str, **sections: Any) -> dict[str, Any]:
    """Returns the declaration of an environment whose lake and landing bucket are `lake` and `landing` in a folder."""
    storage = {name: {"root": f"file://{folder}/{name}"} for name in ("lake", "landing")}
    return {"environment": "local", **storage, "messaging": {}} | sections


def environment_spec(folder: Path | str, **sections: Any) -> EnvironmentSpec:
    """Returns the spec of an environment; arguments as of `declare_environment`."""
    return EnvironmentSpec.model_validate(declare_environment(folder, **sections))


def catalog_of(folder: Path, *pipelines: PipelineSpec, relays: Iterable[RelaySpec] = (), **sections: Any) -> Catalog:
    """Returns the catalog of a project without files. `sections` are those of `declare_environment`."""
    return Catalog(
        environment=environment_spec(folder, **sections),
        relays={spec.relay: spec for spec in relays},
        pipelines={spec.pipeline: spec for spec in pipelines},
        root=folder,
    )


def write_files(folder: Path, files: Mapping[str, str | bytes | Mapping[str, Any]]) -> Path:
    """Writes files by their path in a folder, declarations as YAML; returns the folder."""
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(dict(content), sort_keys=False) if isinstance(content, Mapping) else content
        file.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def write_project(
    root: Path,
    *pipelines: str | Mapping[str, Any],
    lake: Path | None = None,
    environment: str | Mapping[str, Any] | None = None,
    relays: Sequence[str | Mapping[str, Any]] = (RELAY,),
    files: Mapping[str, str | bytes | Mapping[str, Any]] | None = None,
) -> Path:
    """Writes a project of these declarations, each a mapping or YAML text; returns its root.

    Args:
        lake: the folder of lake and landing bucket; by default the root.
        environment: the declaration of the environment `local`, or some of its sections.
        relays: the declarations of relays; by default one called `landing`.
        files: further files by their path in `include`, for example `pipelines/shop/daily.sql`.
    """
    local = environment if isinstance(environment, str) else declare_environment(lake or root, **(environment or {}))
    written: dict[str, str | bytes | Mapping[str, Any]] = {"environments/local.yaml": local}
    written |= {f"relays/{_name(relay, 'relay')}.yaml": relay for relay in relays}
    written |= {f"pipelines/{_name(text, 'pipeline')}/pipeline.yaml": text for text in pipelines}
    write_files(root / "include", written | dict(files or {}))
    return root


def load_project(root: Path, *pipelines: str | Mapping[str, Any], **options: Any) -> Catalog:
    """Writes a project and loads it; arguments as of `write_project`."""
    return load_catalog("local", root=write_project(root, *pipelines, **options))


def _name(declaration: str | Mapping[str, Any], key: str) -> str:
    """Returns the name in a declaration, which may be invalid otherwise."""
    if not isinstance(declaration, str):
        return str(declaration[key])
    line = next(line for line in declaration.splitlines() if line.startswith(f"{key}:"))
    return line.partition(":")[2].strip()


def local_lake(folder: Path | str) -> Lake:
    """Returns the lake of a folder."""
    from deltaworks.tables.lake import Lake

    return Lake(local_storage(folder))


def append_rows(
    lake: Lake,
    key: str,
    rows: pa.Table | Sequence[Mapping[str, Any]],
    *,
    number: int = 1,
    app_id: str = "tests",
    schema: pa.Schema | None = None,
    partition_by: Sequence[str] = (),
    user_metadata: str = "{}",
) -> int:
    """Appends rows to the table at a key of a lake, creating it; returns the new version.

    Args:
        number: of this commit. A commit of an `app_id` whose number is not greater than that of its last one is
            skipped, like a batch that was committed before.
        schema: of rows that are mappings; by default what their values have.
    """
    import pyarrow as pa

    from deltaworks.tables.commit import Step

    data = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist([dict(row) for row in rows], schema)
    table = lake.ensure(key, data.schema, user_metadata=user_metadata, partition_by=partition_by)
    return lake.append(table, key, data, step=Step(app_id, number), user_metadata=user_metadata).version


def table_rows(lake: Lake, pipeline: str, table: str, *columns: str) -> list[dict[str, Any]]:
    """Returns the rows of a pipeline's table, or these columns of them; none if the table does not exist."""
    rows = lake.rows(paths.table(pipeline, table), columns=columns)
    return [] if rows is None else rows.to_pylist()


def batch_metadata(batch_id: int = 1) -> BatchMetadata:
    """Returns the metadata of a batch that reads its events when they arrive."""
    from deltaworks.events.chunks import BatchMetadata

    return BatchMetadata(batch_id=batch_id, ingested_at_us=ARRIVED_AT_US, fingerprint="tests")


def payloads_of(*contents: Payload | bytes | str | Mapping[str, Any]) -> list[Payload]:
    """Returns payloads with ascending sequence numbers; a mapping becomes one JSON event."""
    from deltaworks.events.chunks import Payload

    def payload(seq: int, content: bytes | str | Mapping[str, Any]) -> Payload:
        text = json.dumps(dict(content)) if isinstance(content, Mapping) else content
        return Payload(seq, f"k{seq}", text.encode() if isinstance(text, str) else text)

    return [one if isinstance(one, Payload) else payload(seq, one) for seq, one in enumerate(contents, start=1)]


def parse_events(
    spec: PipelineSpec,
    *contents: Payload | bytes | str | Mapping[str, Any],
    stamp: BatchMetadata | None = None,
    **options: Any,
) -> dict[str, list[dict[str, Any]]]:
    """Parses payloads as the stream does; returns the rows by table, rejected events in `quarantine`.

    Args:
        contents: objects or stream records, as of `payloads_of`.
        options: of the `Parser`, for example `redaction_keys` for a pipeline with personal data.
    """
    from deltaworks.events.parse import Parser

    return rows_by_table(Parser(spec, **options).parse(payloads_of(*contents), stamp or batch_metadata()))


def rows_by_table(parts: Iterable[tuple[str, pa.Table]]) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of parsed parts by table."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for table, part in parts:
        rows.setdefault(table, []).extend(part.to_pylist())
    return rows


def run_gold_sql(sql: str, **inputs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Runs the query of a gold table over these rows of its inputs, translated to DuckDB; returns its rows.

    It shows what a query means, not how Spark runs it.

    Raises:
        ConfigError: GOLD_SQL_INVALID, or GOLD_SQL_NOT_TRANSLATABLE for a function that DuckDB does not have.
    """
    import duckdb
    import pyarrow as pa

    from deltaworks.gold.translation import translate
    from deltaworks.tables.duckdb_session import duckdb_session

    translation = translate(sql)
    with duckdb_session() as session:
        session.execute("SET TimeZone = 'UTC'")
        for name, rows in inputs.items():
            session.register(name, pa.Table.from_pylist([dict(row) for row in rows]))
        try:
            answer: list[dict[str, Any]] = session.sql(translation.sql).to_arrow_table().to_pylist()
        except duckdb.Error as error:
            raise translation.error(error) from error
    return answer
