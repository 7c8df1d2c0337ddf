"""One HTML page of charts, readable without a server or internet access: the chart library is in it, once."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go

_STYLE = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}"


def write_chart_page(path: Path, *, title: str, said: str, figures: Sequence[go.Figure]) -> Path:
    """Write the page, folders above it included, and return its path.

    Args:
        said: what the charts are of, as plain text.
    """
    parts = []
    for number, figure in enumerate(figures):
        figure.update_layout(template="plotly_white", height=420, margin={"l": 70, "r": 20, "t": 60, "b": 60})
        parts.append(str(figure.to_html(full_html=False, include_plotlyjs=number == 0)))
    head = f"<meta charset=utf-8><title>{html.escape(title)}</title><style>{_STYLE}</style>"
    body = f"<h1>{html.escape(title)}</h1><p>{html.escape(said)}</p>{''.join(parts)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"<!doctype html><html lang=en>{head}{body}</html>", encoding="utf-8")
    return path
