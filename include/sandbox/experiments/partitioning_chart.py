"""Renders results of the partitioning experiment as one HTML page that needs no server or internet access."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from deltaworks.charts.drawing import ChartOptions
from deltaworks.charts.page import section, with_legend, write_page
from deltaworks.charts.plots import line_chart, row_chart
from deltaworks.charts.scales import build_series, named_series
from sandbox.experiments.partitioning import PUBLISHED, PartitioningResult


def write_chart(result: PartitioningResult, path: Path) -> Path:
    """Writes the page and returns its path. It shows times, measured and published ratios, and file sizes by
    organisation.
    """
    workload = result.workload
    summary = (
        f"{result.rows:,} rows of {workload.orgs:,} organisations (power law, exponent {workload.exponent}) "
        f"in the end; {workload.rows_per_batch:,} rows a batch, OPTIMIZE after {workload.batches_per_round} batches, "
        f"up to {workload.requests:,} renames a round; medians of {len(result.results[0].seconds['read'])} rounds."
    )
    sections = (_times(result), _ratios(result), _files(result), _sizes(result))
    return write_page(path, title="Partition experiment", summary=summary, sections=sections)


def _times(result: PartitioningResult) -> str:
    names = sorted({name for layout in result.results for name in layout.parts})
    # Most parts are reads; without the prefix their names fit.
    labels = [name.removeprefix("read_") for name in names]
    seconds = {layout.scheme.name: [layout.parts.get(name, 0) for name in names] for layout in result.results}
    return _bars("Seconds per round", "seconds", labels, seconds)


def _ratios(result: PartitioningResult) -> str:
    operations = list(PUBLISHED)
    ratios = {
        f"{layout.scheme.name} / old": [result.ratio(name, layout.scheme) for name in operations]
        for layout in result.results[1:]
    }
    ratios["published, at most"] = list(PUBLISHED.values())
    return _bars("New layout's time / old layout's time", "ratio", operations, ratios, reference=1)


def _bars(
    title: str, y_title: str, labels: list[str], columns: Mapping[str, list[float]], *, reference: float | None = None
) -> str:
    data = build_series(labels, columns, additive=False)
    options = ChartOptions(title=title, y_title=y_title, wide=True)
    chart = row_chart(options, data, grouped=True, reference=reference, max_rows=len(labels))
    return section(title, with_legend(chart, data))


def _files(result: PartitioningResult) -> str:
    counts = {layout.scheme.name: [float(files) for _, files, _ in layout.files.by_org] for layout in result.results}
    return _lines("Files of each organisation", "files", counts)


def _sizes(result: PartitioningResult) -> str:
    sizes = {
        layout.scheme.name: [size / files / 1024 for _, files, size in layout.files.by_org] for layout in result.results
    }
    return _lines("Average file of each organisation", "KiB", sizes)


def _lines(title: str, y_title: str, values: Mapping[str, list[float]]) -> str:
    data = named_series({name: list(enumerate(numbers, start=1)) for name, numbers in values.items()})
    options = ChartOptions(title=title, x_title="organisation, the largest first", y_title=y_title, wide=True)
    return section(title, with_legend(line_chart(options, data, data.span, is_log=True), data))
