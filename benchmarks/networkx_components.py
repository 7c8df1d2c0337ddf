"""A common alternative: `connected_components` of NetworkX over all renames, in one Python process.

Prints one line of JSON: the seconds from reading the file to a component for every id, and the process's peak memory.
Its result is less precise: without time, entities that used the same id one after the other become one component.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import networkx
import pyarrow.parquet as pq


def main(folder: str) -> None:
    """Reads the requests, connects the ids, and numbers the components."""
    started = time.perf_counter()
    table = pq.read_table(folder, columns=["org_id", "id", "new_id"])
    orgs, olds, news = (table.column(name).to_pylist() for name in ("org_id", "id", "new_id"))
    graph = networkx.Graph()
    graph.add_edges_from(((org, old), (org, new)) for org, old, new in zip(orgs, olds, news, strict=True))
    component = {name: number for number, group in enumerate(networkx.connected_components(graph)) for name in group}
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps({"seconds": seconds, "peak_mb": peak, "ids": len(component)}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
