"""A lake of shipped pipelines without a JVM: payloads go through the parser of streams into Delta tables, and gold is
planned as ever and built by DuckDB, from the same SQL.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from deltalake import write_deltalake

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser
from deltaworks.events.redaction_keys import load_redaction_keys
from deltaworks.events.source_fields import pin_databases
from deltaworks.gold.model_tables import refresh_external_inputs
from deltaworks.gold.parts import DATE_COLUMN
from deltaworks.gold.pinned_inputs import pin_inputs
from deltaworks.gold.table_build import plan_job
from deltaworks.specs.catalog import PROJECT_ROOT, Catalog
from deltaworks.specs.gold import build_order
from deltaworks.specs.keyed import KeyedTable
from deltaworks.specs.live import latest_table
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.lake import Lake, duckdb_source
from deltaworks.tables.query import connect
from deltaworks.testing import load_project, present, write_files
from generator.networks import build_databases
from tests.unit.gold.gold_planning import build_planned, empty_database

INGESTED_AT_US = 1_700_000_000_000_000
Row = dict[str, Any]


class ShippedLake:
    """Pipelines as they are shipped, or with their text changed, over a lake in a folder."""

    def __init__(
        self,
        folder: Path,
        *names: str,
        edit: Callable[[str, str], str] | None = None,
        own: Mapping[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
    ) -> None:
        """The pipelines called `names`; `edit` gets each of their files (by its path) and what is in it.

        Args:
            own: files of pipelines that are not shipped, by path.
            environment: what is declared of it beside the lake and the landing folder.
        """
        include = folder / "project" / "include"
        write_files(include / "pipelines", own or {})
        for name in names:
            shutil.copytree(PROJECT_ROOT / "include" / "pipelines" / name, include / "pipelines" / name)
        for path in include.rglob("*"):
            if edit is not None and path.suffix in (".yaml", ".sql", ".csv"):
                path.write_text(edit(str(path.relative_to(include / "pipelines")), path.read_text()))
        shutil.copytree(PROJECT_ROOT / "include" / "relays", include / "relays")
        self.catalog: Catalog = load_project(folder / "project", lake=folder, environment=environment, relays=[])
        self._lake = Lake(self.catalog.environment.lake)
        self._seq = 0
        self.put_databases(build_databases(built_at=int(time.time())))

    def put_databases(self, contents: Mapping[str, bytes]) -> None:
        """Put databases where enrichment reads them."""
        objects = open_objects(self.catalog.environment.lake)
        for name, content in contents.items():
            objects.put(paths.database(name), content)

    def land(self, pipeline: str, *objects: tuple[str, bytes], ingested_at_us: int = INGESTED_AT_US) -> None:
        """Let objects land in one batch: key and bytes of each, in order."""
        payloads = []
        for key, data in objects:
            self._seq += 1
            payloads.append(Payload(self._seq, key, data, arrived_at_us=ingested_at_us))
        self.land_payloads(pipeline, payloads, ingested_at_us=ingested_at_us)

    def land_payloads(
        self, pipeline: str, payloads: Iterable[Payload], *, ingested_at_us: int = INGESTED_AT_US
    ) -> None:
        """Let payloads land in one batch."""
        spec = self.catalog.pipeline(pipeline)
        lake = self.catalog.environment.lake
        parser = Parser(spec, databases=pin_databases(spec, lake), redaction_keys=load_redaction_keys(spec, lake))
        stamp = BatchMetadata(batch_id=self._seq, ingested_at_us=ingested_at_us, fingerprint="fp")
        for name, rows in parser.parse(payloads, stamp):
            partition = "quarantine_date" if name == "quarantine" else DATE_COLUMN
            key = paths.table(pipeline, name)
            self._lake.ensure(key, rows.schema, user_metadata="{}", partition_by=[partition])
            write_deltalake(self._uri(pipeline, name), rows, mode="append", partition_by=[partition])
        for keyed in (*spec.keyed_tables, *_latest_tables(spec)):
            self._merge_newest(spec, keyed)

    def build(self, pipeline: str, *only: str) -> dict[str, tuple[str, ...] | None]:
        """Build what has changed, of all gold tables or of those named; the partitions that were, by gold table.

        Scores of models are left out: Spark gives them to rows."""
        refresh_external_inputs(self.catalog, pipeline)
        spec = self.catalog.pipeline(pipeline)
        built = {}
        for table in build_order(table for table in spec.gold.tables if not only or table.name in only):
            pinned, key = pin_inputs(self._lake, spec, table.reads), paths.table(pipeline, table.name)
            if any(part.scored_input is not None for part in pinned.values()):
                continue
            job = plan_job(self.catalog, spec, self._lake, table, pinned, key=key)
            built[table.name] = job.plan.output.labels if job.plan.has_work else ()
            if job.plan.has_work:
                build_planned(self._lake, pipeline, job, spec.gold.dedupe)
        return built

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What a question over all tables and views gives."""
        connection, _ = connect(self.catalog, statement=sql)
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

    def _merge_newest(self, spec: PipelineSpec, keyed: KeyedTable) -> None:
        """The newest row of each key, by a plain look at all of them."""
        opened = present(self._lake.open(paths.table(spec.pipeline, keyed.history)))
        order = ", ".join(f"{column} DESC" for column in (*keyed.newest_by, "_seq", "_position"))
        with empty_database() as connection:
            connection.register("history", duckdb_source(self._lake, opened))
            newest = connection.sql(
                f"SELECT {', '.join(keyed.history_types) if keyed.expire_after_minutes else '*'} FROM history "
                f"QUALIFY row_number() OVER (PARTITION BY {', '.join(keyed.by)} ORDER BY {order}) = 1"
            ).to_arrow_table()
        write_deltalake(self._uri(spec.pipeline, keyed.name), newest, mode="overwrite")


def _latest_tables(spec: PipelineSpec) -> list[KeyedTable]:
    history = {table.name: table for table in spec.tables}
    return [latest_table(history[live.reads], live) for live in spec.live if live.kind == "latest"]


def without_dedupe(text: str) -> str:
    """The text of a pipeline that counts every line, copies included."""
    edited, lines = re.subn(r"^  dedupe: .*\n", "", text, flags=re.MULTILINE)
    assert lines == 1
    return edited
