"""A project with one pipeline in a folder, for benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltaworks.specs.catalog import Catalog


def declare_project(
    root: Path,
    pipeline: dict[str, Any],
    *,
    landing: Path,
    source: dict[str, Any] | None = None,
    spark: dict[str, Any] | None = None,
) -> Catalog:
    """Writes the declarations below `root` and loads them. The lake is `root/lake`.

    Args:
        pipeline: the pipeline's declaration without owner and source; the source is the project's only bucket.
        source: additional settings of the source.
        spark: Spark settings of the environment.
    """
    from deltaworks.specs.project import load_catalog

    source = {"kind": "cloud_files", "relay": "landing", "bucket": "landing"} | (source or {})
    declared: dict[str, dict[str, Any]] = {
        "relays/landing.yaml": {"relay": "landing", "buckets": ["landing"], "listing": {}},
        f"pipelines/{pipeline['pipeline']}/pipeline.yaml": {"owner": "benchmarks", "source": source, **pipeline},
        "environments/local.yaml": {
            "environment": "local",
            "lake": {"root": f"file://{root}/lake"},
            "landing": {"root": f"file://{landing}"},
            "messaging": {},
            "spark": spark or {},
        },
    }
    for path, content in declared.items():
        (root / "include" / path).parent.mkdir(parents=True, exist_ok=True)
        # JSON is valid YAML.
        (root / "include" / path).write_text(json.dumps(content))
    return load_catalog("local", root=root)
