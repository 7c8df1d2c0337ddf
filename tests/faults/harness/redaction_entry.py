"""Parses one object in a separate process, as a task of a stream or of a reprocess does, and prints its rows.

`python -m tests.faults.harness.redaction_entry PROJECT WAY FILE AT_MS [OFF]`; WAY is `stream`, `record` or `reprocess`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deltaworks.events.chunks import BatchMetadata, Payload
from deltaworks.events.parse import Parser, ParserInputs
from deltaworks.recovery.reprocess.reread import Rereader, RereadScope
from deltaworks.recovery.reprocess.selection import SourceObject
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from tests.faults.harness.personal_protections import disable

KAFKA = {"kind": "kafka", "bootstrap_servers": "localhost:9092", "topics": ["orders"]}


def rows(root: Path, way: str, file: Path, at_ms: int) -> Iterator[dict[str, Any]]:
    """Returns the rows of all tables, including quarantine."""
    catalog = load_catalog("local", root=root)
    spec, lake = catalog.pipeline("shop"), catalog.environment.lake
    if way == "record":
        declared = spec.model_dump(exclude_defaults=True, by_alias=True) | {"source": KAFKA}
        # The spec's copy keeps the location of the keys, which is not part of the declaration.
        spec = spec.model_copy(update={"source": PipelineSpec.model_validate(declared).source})
    inputs, stamp = ParserInputs.pin(spec, lake), BatchMetadata(1, at_ms * 1000, "f")

    def payload(seq: int, key: str) -> Payload:
        record = {"topic": "orders", "partition": 0, "offset": 0} if way == "record" else None
        return Payload(seq, key, file.read_bytes(), arrived_at_us=at_ms * 1000, record=record)

    if way == "reprocess":
        scope = RereadScope(frozenset(["orders", "quarantine"]), all_tables=True)
        rereader = Rereader(spec, scope, lambda one: payload(one.seq, one.key), inputs=inputs)
        objects = [SourceObject(1, file.name, "tag", file.stat().st_size, batch_id=0, ingested_at_us=at_ms * 1000)]
        parts = rereader.read_objects(objects)
    else:
        parts = Parser(spec, redaction_keys=inputs.redaction_keys).parse([payload(1, file.name)], stamp)
    for table, part in parts:
        yield from ({"table": table, **row} for row in part.to_pylist())


if __name__ == "__main__":
    project, chosen, read, at, *protections = sys.argv[1:]
    disable("".join(protections))
    print(json.dumps(list(rows(Path(project), chosen, Path(read), int(at))), default=str))
