"""Prints rows and distinct values of bronze tables; runs by `python -` in a container through the project's storage
code.
"""

from __future__ import annotations

import json

from deltaworks.control import paths
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake


def main() -> None:
    """Prints the counts, without those of tables that do not exist."""
    lake = Lake(load_catalog().environment.lake)
    counts = {}
    if (edits := lake.rows(paths.table("edits", "edits"), columns=["user_name", "added"])) is not None:
        counts["edits"] = edits.num_rows
        counts["users"] = len(set(edits.column("user_name").to_pylist()))
        counts["added"] = sum(value or 0 for value in edits.column("added").to_pylist())
    for name in ("activities", "requests"):
        if (rows := lake.rows(paths.table("engagement", name), columns=["org_id"])) is not None:
            counts[name] = rows.num_rows
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
