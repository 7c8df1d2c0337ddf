"""Prints rows and distinct values of a bronze table; runs by `python -` in a container through the project's storage
code.
"""

from __future__ import annotations

import json

from deltaworks.control import paths
from deltaworks.specs.project import load_catalog
from deltaworks.tables.lake import Lake


def main() -> None:
    """Prints the counts; null if the table does not exist."""
    rows = Lake(load_catalog().environment.lake).rows(paths.table("edits", "edits"), columns=["user_name", "added"])
    answers = None
    if rows is not None:
        added = sum(value or 0 for value in rows.column("added").to_pylist())
        answers = {"rows": rows.num_rows, "users": len(set(rows.column("user_name").to_pylist())), "added": added}
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
