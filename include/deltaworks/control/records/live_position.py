"""How far a live table's query has read, from its checkpoint: no Spark is needed to know it."""

from __future__ import annotations

import json

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore
from deltaworks.control.records.checkpoint import batch_numbers
from deltaworks.control.records.generations import current_generation


def live_read_below(objects: ObjectStore, pipeline: str, table: str) -> int:
    """The version of the bronze table below which everything is in the live table; 0 where that is not known.

    Reads the newest batch that Spark has marked as done. Its offset names the next version to read, except while the
    table's first snapshot is being worked off: then nothing is said to be read.
    """
    folder = paths.live_checkpoint(pipeline, current_generation(objects, pipeline), table)
    done = batch_numbers(objects, f"{folder}/commits/")
    found = objects.get(f"{folder}/offsets/{done[-1]}") if done else None
    if found is None:
        return 0
    offset = json.loads(found.data.decode().splitlines()[-1])
    return 0 if offset["isStartingVersion"] else int(offset["reservoirVersion"])
