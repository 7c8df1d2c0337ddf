"""`mutation_apply`: applying a mutation batch that renames the contacts of a fifth of all rows, against simpler merges.

Deltaworks: the merge of a mutation batch, with its literal predicates, into a table partitioned by organisation and
Z-ordered by OPTIMIZE, as after the nightly run. It starts from resolved validity intervals; the benchmark
`mutation_resolve` measures how they are resolved.

- `batch_vs_plain_merge`: a plain `MERGE INTO ... ON org_id = ... AND origin_contact_id = ...` with Spark's default
  settings, into the same rows partitioned by organisation and date, as the stream's batches wrote them.
- `batch_by_spark_vs_plain_merge`: the same, with Deltaworks merging by Spark, as it does if the table is too large for
  the driver's memory.
- `batch_vs_delta_rs`: a plain delta-rs merge, without exactly-once commits, into a copy of Deltaworks' table.
  Deltaworks chooses delta-rs itself if memory suffices; `by_delta_rs` is 1 then.

Every repetition merges into a copy of the table that shares data files by hard links (they are never modified) and has
its own log. All implementations must change the same number of rows. `--events` is the number of rows in the table.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Clock, Comparison, Options, Result, Side, TinySize, measure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from deltaworks.mutations.merge import AffectedRange
    from deltaworks.specs.table import TableSpec
    from deltaworks.tables.lake import Lake
    from sandbox.experiments.engagement_rows import Workload

#: The share of rows whose contacts are renamed.
RENAMED_SHARE = 0.2
_ORGS, _DAYS = 100, 30
#: Spark's defaults, since the benchmark's session has Deltaworks' settings.
_PLAIN = {
    "spark.sql.shuffle.partitions": "200",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "true",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
}


def run(options: Options) -> list[Result]:
    """Measures the comparisons."""
    from benchmarks import sides
    from benchmarks.games_files import bench_folder
    from sandbox.experiments.engagement_rows import Workload, rename_requests
    from sandbox.experiments.schemes import BY_DATE, BY_ORG

    workload = Workload(rows=options.events, orgs=_ORGS, days=_DAYS, batches_per_day=1, update_share=RENAMED_SHARE)
    folder = bench_folder() / f"mutation-apply-{uuid.uuid4().hex[:12]}"
    spark = sides.session()
    try:
        tables = {
            scheme.name: _load_table(spark, folder, scheme.name, workload, options.progress)
            for scheme in (BY_ORG, BY_DATE)
        }
        batch = rename_requests(spark, workload, 1, workload.load_batches).localCheckpoint()
        changed: dict[str, int] = {}
        by_org, by_date = tables[BY_ORG.name], tables[BY_DATE.name]
        ours = _side("mutation_batch", by_org, _MutationBatch(spark, batch), changed)
        by_spark = _side("mutation_batch_by_spark", by_org, _MutationBatch(spark, batch, by_spark=True), changed)
        plain = _side("plain_merge", by_date, _PlainMerge(spark, batch), changed)
        delta_rs = _side("delta_rs_merge", by_org, _DeltaRsMerge(batch), changed)
        sizes = {
            "events": workload.rows_per_batch * workload.load_batches,
            "orgs": workload.orgs,
            "requests": batch.count(),
            "files_ours": _files(by_org),
            "files_plain": _files(by_date),
        }
        results = measure(
            BENCHMARK.name,
            [
                Comparison(metric="batch_vs_plain_merge", ours=ours, other=plain, sizes=sizes),
                Comparison(metric="batch_by_spark_vs_plain_merge", ours=by_spark, other=plain, sizes=sizes),
                Comparison(metric="batch_vs_delta_rs", ours=ours, other=delta_rs, sizes=sizes),
            ],
            repeats=options.repeats,
            progress=options.progress,
        )
        if len(set(changed.values())) != 1:
            raise RuntimeError(f"the implementations changed different numbers of rows: {changed}")
        options.progress(f"{BENCHMARK.name}: each implementation changed {next(iter(changed.values())):,} rows")
        return results
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _load_table(
    spark: SparkSession, folder: Path, name: str, workload: Workload, progress: Callable[[str], None]
) -> Path:
    """Loads a table batch by batch, as a stream does, in one layout. Optimizes it if the layout requires it."""
    from deltaworks.specs.storage import StorageSpec
    from sandbox.experiments.engagement_rows import batch_rows
    from sandbox.experiments.schemes import BY_DATE, BY_ORG, SchemeTable

    scheme = next(candidate for candidate in (BY_ORG, BY_DATE) if candidate.name == name)
    table = SchemeTable(spark, StorageSpec(root=f"file://{folder}"), name, scheme, max_file_bytes=128 << 20)
    for batch in range(workload.load_batches):
        table.append(batch_rows(spark, workload, batch))
    table.optimize()
    progress(f"{BENCHMARK.name}: loaded {name}: {_files(folder / name)} files")
    return folder / name


def _files(table: Path) -> int:
    from deltalake import DeltaTable

    return len(DeltaTable(str(table)).file_uris())


@dataclass(frozen=True, slots=True)
class _MutationBatch:
    """The merge of a mutation batch, by the engine that Deltaworks chooses, or always by Spark (`by_spark`)."""

    spark: SparkSession
    requests: DataFrame
    by_spark: bool = False

    def __call__(self, table: Path, clock: Clock) -> None:
        from deltaworks.mutations.merge import affected_range
        from deltaworks.mutations.small_merge import plan_merge
        from deltaworks.specs.mutation import MutationsSpec
        from deltaworks.specs.storage import StorageSpec
        from deltaworks.tables.lake import Lake

        intervals, declared = self._intervals(), _table_spec()
        lake = Lake(StorageSpec(root=f"file://{table.parent}"))
        bound = 0 if self.by_spark else MutationsSpec(requests="requests").small_merge_bytes
        with clock:
            affected = affected_range(intervals)
            plan = plan_merge(lake, table.name, declared, affected, small_merge_bytes=bound)
            if plan.engine == "delta_rs":
                self._by_delta_rs(lake, table.name, declared, intervals, affected)
            else:
                self._by_spark(table, declared, intervals, affected, plan.target_bytes)
        clock.record(target_mb=plan.target_bytes / 1e6, by_delta_rs=plan.engine == "delta_rs")

    def _intervals(self) -> DataFrame:
        from pyspark.sql import functions as F

        nothing = F.create_map().cast("map<string,string>")
        return self.requests.select(
            "org_id",
            "id",
            F.lit(None).cast("timestamp").alias("valid_from"),
            F.lit(None).cast("timestamp").alias("valid_to"),
            F.col("new_id").alias("final_id"),
            F.lit(False).alias("deleted"),
            nothing.alias("fields"),
        )

    def _by_delta_rs(
        self, lake: Lake, key: str, declared: TableSpec, intervals: DataFrame, affected: AffectedRange
    ) -> None:
        from deltaworks.mutations.merge import merge_source
        from deltaworks.mutations.small_merge import SmallMerge
        from deltaworks.tables.commit import Step

        opened = lake.open(key)
        assert opened is not None
        source = merge_source(declared, intervals)
        SmallMerge(declared, source, affected, batch=1).execute(opened, Step("bench/mutation", 1), "{}")

    def _by_spark(
        self, table: Path, declared: TableSpec, intervals: DataFrame, affected: AffectedRange, size: int
    ) -> None:
        from deltaworks.mutations.merge import TableMerge, merge_settings
        from deltaworks.tables.spark_session import override_settings

        session = self.spark.newSession()
        settings = merge_settings(target_bytes=size, cores=session.sparkContext.defaultParallelism)
        with override_settings(session, settings):
            TableMerge(declared, intervals, affected).execute(session, str(table), batch=1)


@dataclass(frozen=True, slots=True)
class _PlainMerge:
    """A plain MERGE statement."""

    spark: SparkSession
    requests: DataFrame

    def __call__(self, table: Path, clock: Clock) -> None:
        from deltaworks.tables.spark_session import override_settings

        self.requests.createOrReplaceTempView("renames")
        statement = f"""
            MERGE INTO delta.`{table}` AS t USING renames AS s
            ON t.org_id = s.org_id AND t.origin_contact_id = s.id
            WHEN MATCHED THEN UPDATE SET contact_id = s.new_id, _deleted = false, _mutation = 1
        """
        with clock, override_settings(self.spark, _PLAIN):
            self.spark.sql(statement).collect()


@dataclass(frozen=True, slots=True)
class _DeltaRsMerge:
    """The same merge by delta-rs."""

    requests: DataFrame

    def __call__(self, table: Path, clock: Clock) -> None:
        from deltalake import DeltaTable

        source = self.requests.toArrow()
        orgs = ", ".join(f"'{org}'" for org in sorted(set(source.column("org_id").to_pylist())))
        ids = source.column("id").to_pylist()
        predicate = (
            f"t.org_id = s.org_id AND t.origin_contact_id = s.id AND t.org_id IN ({orgs}) "
            f"AND t.origin_contact_id BETWEEN '{min(ids)}' AND '{max(ids)}' AND t.contact_id != s.new_id"
        )
        with clock:
            (
                DeltaTable(str(table))
                .merge(source, predicate, source_alias="s", target_alias="t")
                .when_matched_update({"contact_id": "s.new_id", "_deleted": "false", "_mutation": "1"})
                .execute()
            )


def _side(name: str, table: Path, merge: _MutationBatch | _PlainMerge | _DeltaRsMerge, changed: dict[str, int]) -> Side:
    """Creates a side that merges into a copy of the table and records the number of changed rows."""

    def repetition(clock: Clock) -> None:
        copy = table.with_name(f"{table.name}-{uuid.uuid4().hex[:8]}")
        shutil.copytree(table, copy, copy_function=_hard_link)
        try:
            merge(copy, clock)
            changed[name] = _changed(copy)
        finally:
            shutil.rmtree(copy)

    return Side(name, repetition)


def _hard_link(source: str, target: str) -> None:
    # Data files are never modified, but the log is, so it must be copied.
    if source.endswith(".parquet") and "_delta_log" not in source:
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def _changed(table: Path) -> int:
    from deltalake import DeltaTable
    from pyarrow import compute, fs

    files = fs.SubTreeFileSystem(str(table), fs.LocalFileSystem())
    rows = DeltaTable(str(table)).to_pyarrow_dataset(filesystem=files)
    return int(rows.count_rows(filter=compute.field("_mutation") == 1))


def _table_spec() -> TableSpec:
    """Returns the table's declaration, as in a pipeline."""
    from deltaworks.specs.table import TableSpec

    names = {"org_id": "org_id", "contact_id": "contact", "origin_contact_id": "contact"}
    return TableSpec.model_validate(
        {
            "name": "activities",
            "catch_all": True,
            "columns": [{"name": name, "path": path, "type": "string"} for name, path in names.items()],
            "partition_by": ["org_id"],
            "mutable": {"id": "contact_id", "origin": "origin_contact_id"},
        }
    )


BENCHMARK = Benchmark(
    name="mutation_apply",
    summary="a mutation batch of 20 % of the rows, against a plain MERGE on an un-optimised table, and delta-rs",
    run=run,
    tiny=TinySize(constants={"_ORGS": 3, "_DAYS": 2}),
)
