"""What a record of a stream says of itself, as fields of its event below `_record`."""

from __future__ import annotations

from deltaworks.specs.pipeline import PipelineSpec

RECORD_FIELD = "_record"


def reads_record_fields(spec: PipelineSpec) -> bool:
    """Whether anything of the pipeline reads below `_record`; events are spared the fields otherwise."""
    paths = [spec.event.time.path, spec.event.name.path, *spec.event.id]
    for table in spec.event_tables:
        paths += [*table.when, *(column.path for column in table.columns)]
    return any(path is not None and path.split(".")[0] == RECORD_FIELD for path in paths)
