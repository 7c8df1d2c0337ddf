"""A lake of shipped pipelines without a JVM: payloads go through the parser of streams into Delta tables, and gold is
planned as ever and built by DuckDB, from the same SQL.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from deltalake import CommitProperties, write_deltalake

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import user_metadata
from deltaworks.events.origins import fixed_databases
from deltaworks.events.parse import BatchStamp, Parser, Payload
from deltaworks.gold.inputs import BUILT_FROM, FINGERPRINT, pin_inputs
from deltaworks.gold.model_tables import refresh_kept_tables
from deltaworks.gold.plan import DATE_COLUMN, Part
from deltaworks.gold.table_build import TableJob, plan_job
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.gold import build_order, view_name
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.lake import Lake, relation_of
from deltaworks.tables.query import connect
from generator.networks import databases
from tests.unit.maintenance.made_tables import ENVIRONMENT

INGESTED_AT_US = 1_700_000_000_000_000
Row = dict[str, Any]


class ShippedLake:
    """Pipelines as they are shipped, or with their text changed, over a lake in a folder."""

    def __init__(self, folder: Path, *names: str, edit: Callable[[str, str], str] | None = None) -> None:
        """The pipelines called `names`; `edit` gets each of their files (by its path) and what is in it."""
        include = folder / "project" / "include"
        for name in names:
            shutil.copytree(PROJECT_ROOT / "include" / "pipelines" / name, include / "pipelines" / name)
        for path in include.rglob("*"):
            if edit is not None and path.suffix in (".yaml", ".sql", ".csv"):
                path.write_text(edit(str(path.relative_to(include / "pipelines")), path.read_text()))
        shutil.copytree(PROJECT_ROOT / "include" / "relays", include / "relays")
        (include / "environments").mkdir()
        (include / "environments" / "local.yaml").write_text(ENVIRONMENT.format(root=folder))
        self.catalog: Catalog = load_catalog("local", root=folder / "project")
        self._lake = Lake(self.catalog.environment.lake)
        self._seq = 0
        self.put_databases(databases(built_at=int(time.time())))

    def put_databases(self, contents: Mapping[str, bytes]) -> None:
        """Put databases where enrichment reads them."""
        objects = open_objects(self.catalog.environment.lake)
        for name, content in contents.items():
            objects.put(paths.database(name), content)

    def land(self, pipeline: str, *objects: tuple[str, bytes], ingested_at_us: int = INGESTED_AT_US) -> None:
        """Let objects land in one batch: key and bytes of each, in order."""
        spec = self.catalog.pipeline(pipeline)
        payloads = []
        for key, data in objects:
            self._seq += 1
            payloads.append(Payload(self._seq, key, data, arrived_at_us=ingested_at_us))
        parser = Parser(spec, databases=fixed_databases(spec, self.catalog.environment.lake))
        stamp = BatchStamp(batch_id=self._seq, ingested_at_us=ingested_at_us, fingerprint="fp")
        for name, rows in parser.parse(payloads, stamp):
            partition = "quarantine_date" if name == "quarantine" else DATE_COLUMN
            write_deltalake(self._uri(pipeline, name), rows, mode="append", partition_by=[partition])
        for keyed in spec.keyed_tables:
            self._merge_newest(spec, keyed.name)

    def build(self, pipeline: str, *only: str) -> dict[str, tuple[str, ...] | None]:
        """Build what has changed, of all gold tables or of those named; the partitions that were, by gold table.

        Scores of models are left out: Spark gives them to rows."""
        refresh_kept_tables(self.catalog, pipeline)
        spec = self.catalog.pipeline(pipeline)
        built = {}
        for table in build_order(table for table in spec.gold.tables if not only or table.name in only):
            pinned, key = pin_inputs(self._lake, spec, table.reads), paths.table(pipeline, table.name)
            if any(part.scores is not None for part in pinned.values()):
                continue
            job = plan_job(self.catalog, spec, self._lake, table, pinned, key=key)
            built[table.name] = job.plan.output.named if job.plan.has_work else ()
            if job.plan.has_work:
                self._write(spec, job)
        return built

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What a question over all tables and views gives."""
        connection, _ = connect(self.catalog)
        with connection:
            return connection.execute(sql).fetchall()

    def one(self, sql: str) -> Any:
        """The only value of the only row."""
        ((value,),) = self.rows(sql)
        return value

    def reasons(self, pipeline: str) -> dict[str, int]:
        """The rows of quarantine by their reason."""
        return dict(self.rows(f"SELECT reasons[1].code, count(*) FROM {pipeline}.quarantine GROUP BY 1"))

    def _uri(self, pipeline: str, name: str) -> str:
        return self._lake.storage.uri(paths.table(pipeline, name)).removeprefix("file://")

    def _write(self, spec: PipelineSpec, job: TableJob) -> None:
        with duckdb.connect(":memory:") as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for name, pinned in job.inputs.items():
                opened = self._lake.open(pinned.key)
                view = view_name(name)
                if opened is None:
                    connection.register(view, arrow_schema(dict(pinned.columns)).empty_table())
                    continue
                opened.load_as_version(pinned.version or 0)
                connection.register(f"all_{view}", relation_of(opened))
                part = _condition(job.plan.input_of(name), pinned.date_column)
                rows = f"all_{view}"
                if spec.gold.dedupe is not None and pinned.of_events:
                    # Which copy is the first does not depend on what is read, since copies lie near each other here.
                    by = spec.gold.dedupe.by
                    first = f"row_number() OVER (PARTITION BY {by} ORDER BY _seq, _position) = 1"
                    rows = f"(SELECT * FROM all_{view} QUALIFY {by} IS NULL OR {first})"
                connection.execute(f"CREATE VIEW {view} AS SELECT * FROM {rows} WHERE {part}")
            (sql,) = sqlglot.transpile(job.sql, read="spark", write="duckdb")
            column = job.plan.table.partition_by
            written = _condition(job.plan.output, column) if job.plan.table.by_date else "true"
            answer = connection.sql(f"SELECT * FROM ({sql}) WHERE {written}").to_arrow_table()
        self._hold(job, answer)
        origin: Mapping[str, Any] = {BUILT_FROM: job.built_from, FINGERPRINT: job.fingerprint}
        made = user_metadata(pipeline=spec.pipeline, batch="", operation="rebuild_gold", **origin)
        write_deltalake(
            self._uri(spec.pipeline, job.plan.table.name),
            answer,
            mode="overwrite",
            partition_by=[column],
            predicate=None if job.plan.full else written,
            commit_properties=CommitProperties(custom_metadata={"userMetadata": made}),
        )

    def _hold(self, job: TableJob, answer: pa.Table) -> None:
        """The checks that an answer is held to, but for those of shares and of intervals."""
        checks = job.plan.table.checks
        if checks.unique:
            keys = [tuple(row.values()) for row in answer.select(list(checks.unique)).to_pylist()]
            assert len(keys) == len(set(keys)), f"{job.plan.table.name}: {checks.unique} is not unique"
        for name in checks.not_null:
            assert answer.column(name).null_count == 0, f"{job.plan.table.name}: {name} is null"

    def _merge_newest(self, spec: PipelineSpec, name: str) -> None:
        """The newest row of each key, by a plain look at all of them."""
        (keyed,) = [table for table in spec.keyed_tables if table.name == name]
        history = next(table for table in spec.tables if table.keyed is not None)
        opened = self._lake.open(paths.table(spec.pipeline, history.name))
        assert opened is not None
        order = ", ".join(f"{column} DESC" for column in (*keyed.newest_by, "_seq", "_position"))
        with duckdb.connect(":memory:") as connection:
            connection.register("history", relation_of(opened))
            newest = connection.sql(
                "SELECT * FROM history "
                f"QUALIFY row_number() OVER (PARTITION BY {', '.join(keyed.by)} ORDER BY {order}) = 1"
            ).to_arrow_table()
        write_deltalake(self._uri(spec.pipeline, name), newest, mode="overwrite")


def _condition(part: Part, column: str) -> str:
    if part.values is None or not column:
        return "true"
    listed = [f"{column} = DATE '{value}'" for value in sorted(part.values)]
    return " OR ".join([*listed, *([] if part.since is None else [f"{column} >= DATE '{part.since}'"])]) or "false"
