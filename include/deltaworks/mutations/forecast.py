"""Forecasts a mutation batch: its requests, chains, components, and the rows and files it would change."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import functions as F

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.objects import open_objects
from deltaworks.control.records.mutation import MutationBatch
from deltaworks.maintenance.optimize import SessionFactory
from deltaworks.maintenance.table_health.measure import file_sizes_by_partition
from deltaworks.mutations.batch_frames import BatchFrames
from deltaworks.mutations.bounds import BatchPlanner, mutable_tables
from deltaworks.mutations.commits import StepCommits
from deltaworks.mutations.entities import components, edges
from deltaworks.mutations.local_batch import LocalBatch, reasons_for_spark
from deltaworks.mutations.local_resolve import connected_ids
from deltaworks.mutations.merge import TableMerge
from deltaworks.mutations.small_merge import TARGET
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import TableSpec
from deltaworks.tables.lake import Lake
from deltaworks.tables.rewrite import SparkRequiredError


@dataclass(frozen=True, slots=True)
class TableForecast:
    """The forecast for one table: the batch would rewrite `files` out of `total_files` files."""

    table: str
    rows: int
    files: int
    total_files: int
    partitions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast of a batch. Chains (two or more moves) are counted over the organisations in scope."""

    pipeline: str
    batch_number: int
    unfinished: bool
    requests: dict[str, int]
    invalid_requests: int
    organisations: int
    chains: int
    longest_chain: int
    components: int
    largest_component: int
    tables: tuple[TableForecast, ...]


def forecast(
    spark: SessionFactory | None,
    catalog: Catalog,
    pipeline: str,
    *,
    organisation: str | None = None,
    everything: bool = False,
) -> Forecast | None:
    """Forecasts the unfinished batch, otherwise the next one; returns None if no rows arrived. Reads only.

    Args:
        spark: opens the Spark session for a batch that needs it.

    Raises:
        SparkRequiredError: only Spark can forecast the batch, and there is none.
        ConfigError: MUTATIONS_UNDECLARED.
        ContractError: MUTATION_BATCH_UNREADABLE, MUTATION_BOUNDS_UNAVAILABLE.
    """
    spec = catalog.pipeline(pipeline)
    lake, objects = Lake(catalog.environment.lake), open_objects(catalog.environment.lake)
    batches = PipelineHome(objects, pipeline).mutations
    fixed, ended = batches.numbers()
    unfinished = batches.batch(fixed) if fixed > ended else None
    bounds = BatchPlanner(lake, objects, spec)
    batch = unfinished or bounds.plan_batch(ended + 1, organisation=organisation, everything=everything)
    if batch is None:
        return None
    reasons = reasons_for_spark(lake, spec, batch)
    if not reasons:
        try:
            return _forecast_locally(lake, spec, batch, unfinished=unfinished is not None)
        except SparkRequiredError as error:
            reasons = [str(error)]
    if spark is None:
        raise SparkRequiredError("; ".join(reasons))
    frames = BatchFrames(spark().newSession(), lake, spec, batch)
    return _forecast(lake, spec, batch, frames, unfinished=unfinished is not None)


def _forecast_locally(lake: Lake, spec: PipelineSpec, batch: MutationBatch, *, unfinished: bool) -> Forecast:
    commits = StepCommits(lake, spec.pipeline, batch.number, before_commit=lambda: None)
    local = LocalBatch(lake, spec, batch, commits)
    counts = local.request_counts()
    invalid = counts.pop("", 0)
    hops = [interval.hops for interval in local.intervals]
    sizes = {(org, component): size for (org, _), (component, size) in connected_ids(local.requests).items()}
    existing_tables = [t for t in mutable_tables(spec) if lake.open(paths.table(spec.pipeline, t.name)) is not None]
    return Forecast(
        pipeline=spec.pipeline,
        batch_number=batch.number,
        unfinished=unfinished,
        requests=counts,
        invalid_requests=invalid,
        organisations=len({request.org_id for request in local.requests}),
        chains=sum(count >= 2 for count in hops),
        longest_chain=max(hops, default=0),
        components=len(sizes),
        largest_component=max(sizes.values(), default=0),
        tables=tuple(_forecast_table_locally(lake, spec, local, table) for table in existing_tables),
    )


def _forecast_table_locally(lake: Lake, spec: PipelineSpec, local: LocalBatch, table: TableSpec) -> TableForecast:
    sizes = file_sizes_by_partition(lake, paths.table(spec.pipeline, table.name))
    files = list(local.matching_files(table))
    return TableForecast(
        table=table.name,
        rows=sum(rows for _, _, rows in files),
        files=len(files),
        total_files=sum(map(len, sizes.values())),
        partitions=len({partition for _, partition, _ in files}),
    )


def _forecast(
    lake: Lake, spec: PipelineSpec, batch: MutationBatch, frames: BatchFrames, *, unfinished: bool
) -> Forecast:
    counts = frames.request_counts()
    invalid = counts.pop("", 0)
    is_chain = F.col("hops") >= 2
    chain_statistics = frames.resolved_intervals.agg(
        F.count_if(is_chain).alias("chains"), F.max("hops").alias("longest")
    ).collect()[0]
    members = components(edges(frames.requests))
    sizes = members.select("org_id", "component_id", "component_size").distinct()
    component_statistics = sizes.agg(
        F.count("*").alias("components"), F.max("component_size").alias("largest")
    ).collect()[0]
    organisations = frames.requests.select(F.count_distinct("org_id")).collect()[0]
    existing_tables = [t for t in mutable_tables(spec) if lake.open(paths.table(spec.pipeline, t.name)) is not None]
    return Forecast(
        pipeline=spec.pipeline,
        batch_number=batch.number,
        unfinished=unfinished,
        requests=counts,
        invalid_requests=invalid,
        organisations=int(organisations[0]),
        chains=int(chain_statistics["chains"]),
        longest_chain=int(chain_statistics["longest"] or 0),
        components=int(component_statistics["components"]),
        largest_component=int(component_statistics["largest"] or 0),
        tables=tuple(_forecast_table(lake, spec, frames, table) for table in existing_tables),
    )


def _forecast_table(lake: Lake, spec: PipelineSpec, frames: BatchFrames, table: TableSpec) -> TableForecast:
    files = file_sizes_by_partition(lake, paths.table(spec.pipeline, table.name))
    total_files = sum(len(sizes) for sizes in files.values())
    changes = frames.table_changes(table)
    if changes.affected.periods == 0:
        return TableForecast(table.name, 0, 0, total_files, 0)
    rows = frames.rows(table.name).withColumn("file", F.col("_metadata.file_path"))
    partition = F.struct(*(f"{TARGET}.{name}" for name in table.partition_by)) if table.partition_by else F.lit(0)
    counts = (
        TableMerge(table, changes.periods, changes.affected)
        .matching_rows(rows)
        .select("file", partition.alias("partition"))
        .agg(F.count("*"), F.count_distinct("file"), F.count_distinct("partition"))
        .collect()[0]
    )
    return TableForecast(table.name, int(counts[0]), int(counts[1]), total_files, int(counts[2]))
