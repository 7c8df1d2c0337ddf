"""Renders results of the partitioning experiment as one HTML page that needs no server or internet access."""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go

from deltaworks.maintenance.table_health.trend_chart import write_chart_page
from sandbox.experiments.partitioning import PUBLISHED, PartitioningResult


def write_chart(result: PartitioningResult, path: Path) -> Path:
    """Writes the page and returns its path. It shows times, measured and published ratios, and file sizes by
    organisation.
    """
    figures = (_times(result), _ratios(result), _files(result), _sizes(result))
    workload = result.workload
    said = (
        f"{result.rows:,} rows of {workload.orgs:,} organisations (power law, exponent {workload.exponent}) "
        f"in the end; {workload.rows_per_batch:,} rows a batch, OPTIMIZE after {workload.batches_per_round} batches, "
        f"up to {workload.requests:,} renames a round; medians of {len(result.results[0].seconds['read'])} rounds."
    )
    return write_chart_page(path, title="Partition experiment", summary=said, figures=figures)


def _times(result: PartitioningResult) -> go.Figure:
    names = sorted({name for layout in result.results for name in layout.parts})
    bars = [
        go.Bar(name=layout.scheme.name, x=names, y=[layout.parts.get(name, 0) for name in names])
        for layout in result.results
    ]
    return go.Figure(bars).update_layout(title="Seconds per round", barmode="group", yaxis_title="seconds")


def _ratios(result: PartitioningResult) -> go.Figure:
    operations = list(PUBLISHED)
    bars = [
        go.Bar(
            name=f"{layout.scheme.name} / old",
            x=operations,
            y=[result.ratio(name, layout.scheme) for name in operations],
        )
        for layout in result.results[1:]
    ]
    bars.append(go.Bar(name="published, at most", x=operations, y=list(PUBLISHED.values())))
    figure = go.Figure(bars).add_hline(y=1, line_dash="dot")
    return figure.update_layout(title="New layout's time / old layout's time", barmode="group", yaxis_title="ratio")


def _files(result: PartitioningResult) -> go.Figure:
    lines = [
        go.Scatter(name=layout.scheme.name, y=[files for _, files, _ in layout.files.by_org], mode="lines")
        for layout in result.results
    ]
    figure = go.Figure(lines).update_yaxes(type="log")
    return figure.update_layout(
        title="Files of each organisation", xaxis_title="organisation, the largest first", yaxis_title="files"
    )


def _sizes(result: PartitioningResult) -> go.Figure:
    lines = [
        go.Scatter(
            name=layout.scheme.name, y=[size / files / 1024 for _, files, size in layout.files.by_org], mode="lines"
        )
        for layout in result.results
    ]
    figure = go.Figure(lines).update_yaxes(type="log")
    return figure.update_layout(
        title="Average file of each organisation", xaxis_title="organisation, the largest first", yaxis_title="KiB"
    )
