"""Writes the table of metrics and the Grafana dashboard into the docs: `python -m deltaworks.metrics.pages docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from deltaworks.metrics.families import markdown_table
from deltaworks.metrics.grafana import dashboard_json

_BEGIN: Final = "<!-- generated: metrics -->\n"
_END: Final = "\n<!-- end of metrics -->"


def write_pages(docs: Path) -> None:
    """Writes the table of metrics and the dashboard file. Idempotent."""
    page = docs / "reference/metrics.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    page.write_text(f"{before}{_BEGIN}{markdown_table()}{_END}{rest.partition(_END)[2]}", encoding="utf-8")
    (docs / "reference" / "grafana" / "deltaworks.json").write_text(dashboard_json(), encoding="utf-8")


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
