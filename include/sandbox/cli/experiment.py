"""`deltaworks experiment`: compares two layouts on this machine or in this lake."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltaworks.cli.context import catalog
from deltaworks.cli.output import print_line
from deltaworks.cli.output import print_listing as show_listing
from deltaworks.control import paths
from deltaworks.control.listing import Listing, format_bytes
from deltaworks.specs.environment import EnvironmentSpec, SparkSpec
from deltaworks.specs.storage import AwsSpec, StorageSpec
from sandbox.stack.home import StackHome

if TYPE_CHECKING:
    from sandbox.experiments.file_sizes import FileSizes
    from sandbox.experiments.partitioning import PartitioningResult

app = typer.Typer(help="Experiments on layouts of tables, in a folder of their own.", no_args_is_help=True)


@app.callback()
def experiment() -> None:
    """Experiments on table layouts, in a separate folder."""


@app.command()
def partitioning(
    rows: Annotated[int, typer.Option(help="Rows loaded before the first round.")] = 1_000_000,
    orgs: Annotated[int, typer.Option(help="Organisations.")] = 100,
    exponent: Annotated[
        float, typer.Option(help=("Exponent of the power law of organisation sizes; 0 gives equal sizes."))
    ] = 1.1,
    days: Annotated[int, typer.Option(help="Days over which the rows arrive.")] = 24,
    batches_per_day: Annotated[
        int, typer.Option(help=("Batches that a stream lands per day; more batches make more files."))
    ] = 1,
    batches_per_round: Annotated[int, typer.Option(help="Batches between two OPTIMIZEs, and inserted per round.")] = 12,
    update_share: Annotated[float, typer.Option(help="The share of contacts a mutation batch renames.")] = 0.02,
    repeats: Annotated[int, typer.Option(help="Counted rounds, after one that warms up.")] = 3,
    seed: Annotated[int, typer.Option(help="The same seed gives the same rows and requests.")] = 1,
    file_mib: Annotated[int, typer.Option(help="Target file size of OPTIMIZE in MiB.")] = 2,
    deletion_vectors: Annotated[
        bool, typer.Option(help="Adds a third layout: the new one with deletion vectors (merge on read).")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Work below this folder; by default below the checkout's .deltaworks.")
    ] = None,
    lake: Annotated[bool, typer.Option(help="Work below experiments/ of the environment's lake instead.")] = False,
    keep: Annotated[bool, typer.Option(help="Keep the tables.")] = False,
    chart: Annotated[Path | None, typer.Option(help="Write a page with charts here.")] = None,
) -> None:
    """Compare partitioning by (org_id, date) with org_id and Z-order by date, on equal reads, updates and inserts.

    Prints file sizes, times and ratios next to the published ones. Touches nothing outside its folder.
    """
    from deltaworks.tables.spark_session import build_session
    from sandbox.experiments.engagement_rows import Workload
    from sandbox.experiments.partitioning import run_partitioning

    workload = Workload(
        rows=rows,
        orgs=orgs,
        exponent=exponent,
        days=days,
        batches_per_day=batches_per_day,
        batches_per_round=batches_per_round,
        update_share=update_share,
        seed=seed,
    )
    environment = catalog().environment if lake else _environment_of(folder)
    prefix = paths.experiment("partitioning", uuid.uuid4().hex[:12])
    spark = build_session(environment, app_name="experiment.partitioning")
    try:
        result = run_partitioning(
            spark,
            environment.lake,
            workload,
            prefix=prefix,
            repeats=repeats,
            max_file_bytes=file_mib << 20,
            deletion_vectors=deletion_vectors,
            keep=keep,
            progress=print_line,
        )
    finally:
        spark.stop()
    _print(result)
    if chart is not None:
        from sandbox.experiments.partitioning_chart import write_chart

        print_line(f"Charts: {write_chart(result, chart)}")
    if keep:
        print_line(f"The tables are kept at {environment.lake.uri(prefix)}.")


def _environment_of(folder: Path | None) -> EnvironmentSpec:
    """Returns the environment of a session whose lake is in a local folder."""
    here = StorageSpec(root=f"file://{(folder or StackHome.default().root).absolute()}")
    spark = SparkSpec(driver_memory="2g", shuffle_partitions=2)
    return EnvironmentSpec(environment="experiment", lake=here, landing=here, messaging=AwsSpec(), spark=spark)


def _print(result: PartitioningResult) -> None:
    for shown in (_files(result), _times(result), _verdict(result)):
        show_listing(shown)
    print_line(
        "old: one file per batch, organisation and date, never optimised. new: one file per batch and organisation, "
        f"OPTIMIZE after every {result.workload.batches_per_round} batches, whose time is part of insert. Medians of "
        f"{len(result.results[0].seconds['read'])} rounds; all tables have the same {result.rows:,} rows."
    )


def _files(result: PartitioningResult) -> Listing:
    from sandbox.experiments.file_sizes import PERCENTILES

    points = (f"p{point}" for point in PERCENTILES)
    listing = Listing(("layout", "organisations", "files", "size", *points), title="Files at the end")
    for layout in result.results:
        kinds: dict[str, FileSizes] = {
            "all": layout.files.all,
            "huge": layout.files.huge,
            "others": layout.files.others,
        }
        for kind, sizes in kinds.items():
            points = (format_bytes(sizes.percentiles[point]) for point in PERCENTILES)
            who = f"{kind} ({sizes.orgs})"
            listing.add(layout.scheme.name, who, f"{sizes.files:,}", format_bytes(sizes.bytes), *points)
    return listing


def _times(result: PartitioningResult) -> Listing:
    names = (layout.scheme.name for layout in result.results)
    listing = Listing(("seconds per round", *names), title="Seconds per round")
    for name in sorted({name for layout in result.results for name in layout.parts}):
        listing.add(name, *(f"{layout.parts.get(name, 0.0):.2f}" for layout in result.results))
    listing.add("load, once", *(f"{layout.load_seconds:.1f}" for layout in result.results))
    return listing


def _verdict(result: PartitioningResult) -> Listing:
    from sandbox.experiments.partitioning import PUBLISHED

    old, *new = result.results
    headings = (f"{layout.scheme.name} / old" for layout in new)
    names = (layout.scheme.name for layout in result.results)
    headers = ("operation", *names, *headings, "published, at most", "verdict")
    listing = Listing(headers, title="New layout against old")
    for operation, published in PUBLISHED.items():
        ratios = [result.ratio(operation, layout.scheme) for layout in new]
        listing.add(
            operation,
            *(f"{layout.median(operation):.2f} s" for layout in (old, *new)),
            *(f"{ratio:.3f}" for ratio in ratios),
            f"{published:.3f}",
            "reached" if ratios[0] <= published else "missed",
        )
    return listing
