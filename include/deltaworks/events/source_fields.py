"""Fields added from outside the payload: partition folders (`_partition`), record metadata (`_record`) and look-ups.

A folder `day=2026-01-31/` in an object key becomes the field `day` in `_partition` of the object's events. Metadata of
a stream record is in `_record`. Results of a look-up are in `_<name>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from deltaworks.specs.base import path_names
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import StorageSpec

if TYPE_CHECKING:
    from deltaworks.events.lookup_databases import PinnedDatabases
    from deltaworks.events.lookups_and_masks import LookupsAndMasks

PARTITION_FIELD, RECORD_FIELD = "_partition", "_record"
#: Folder value that Hive uses for null.
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
#: Key of a row: the sequence number of its file event or record, and its position in it. Unique in a table.
RowKey = tuple[int, int]
ROW_KEY_COLUMNS = ("_seq", "_position")


@lru_cache(maxsize=256)
def partition_fields(key: str, names: tuple[str, ...]) -> Mapping[str, str]:
    """Returns the values of the partition folders `names` in an object key, as texts. Absent and null ones are
    omitted."""
    parts = dict(part.split("=", 1) for part in key.split("/")[:-1] if "=" in part)
    return {name: unquote(parts[name]) for name in names if parts.get(name, _HIVE_NULL) not in (_HIVE_NULL, "")}


def reads_record_fields(spec: PipelineSpec) -> bool:
    """Returns whether the pipeline reads fields of `_record`. If not, events do not get this field."""
    paths = [*spec.event.time.path, spec.event.name.path, *spec.event.id, *(lookup.path for lookup in spec.enrich)]
    for table in spec.event_tables:
        paths += [*table.when, *(column.path for column in table.columns)]
    return any(path is not None and path_names(path)[0] == RECORD_FIELD for path in paths)


def lookup_fields(spec: PipelineSpec) -> frozenset[str]:
    """Returns the names of event fields that contain look-up results."""
    return frozenset(lookup.output_field for lookup in spec.enrich)


def pin_databases(spec: PipelineSpec, storage: StorageSpec) -> PinnedDatabases | None:
    """Pins the current versions of the databases that a pipeline's look-ups use; None if there are no look-ups.

    Raises:
        ConfigError: ENRICHMENT_UNREADABLE, a database is missing or corrupt.
        TransientError: storage errors; ENRICHMENT_REPLACED.
    """
    names = [lookup.database for lookup in spec.enrich if lookup.database is not None]
    if not names:
        return None
    # Imported here and below, so that pipelines without look-ups do not load database and user-agent libraries.
    from deltaworks.events.lookup_databases import PinnedDatabases

    return PinnedDatabases.pin(names, storage)


def create_lookups_and_masks(spec: PipelineSpec, databases: PinnedDatabases | None) -> LookupsAndMasks | None:
    """Creates the look-ups and masks that a pipeline declares; None if it declares neither.

    Raises:
        ConfigError: ENRICHMENT_UNREADABLE, a database cannot be opened.
        TransientError: ENRICHMENT_REPLACED.
    """
    if not (spec.enrich or spec.private):
        return None
    from deltaworks.events.lookups_and_masks import LookupsAndMasks

    return LookupsAndMasks(spec, databases)


def row_keys(rows: pa.Table) -> list[RowKey]:
    """Returns the (`_seq`, `_position`) key of every row."""
    return list(zip(*(rows.column(name).to_pylist() for name in ROW_KEY_COLUMNS), strict=True))
