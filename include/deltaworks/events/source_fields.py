"""Where events and rows come from, and what they get, as far as it is not in what was sent: object keys, records of
streams, answers of look-ups, row keys.

A part `day=2026-01-31/` of an object's key is the field `day` below `_partition` of its events. What a record of a
stream says of itself is below `_record`. What a pipeline looks up of an event is below `_<name>` of the look-up.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.storage import StorageSpec

if TYPE_CHECKING:
    from deltaworks.events.enrichment.databases import Databases
    from deltaworks.events.enrichment.protection import Protection

PARTITION_FIELD, RECORD_FIELD = "_partition", "_record"
#: What Hive writes for null.
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
#: The file event or record that a row came from, and the row's position in it. Unique in a table.
RowKey = tuple[int, int]
ROW_KEY_COLUMNS = ("_seq", "_position")


@lru_cache(maxsize=256)
def partition_fields(key: str, names: tuple[str, ...]) -> Mapping[str, str]:
    """The fields called `names` in a key, as texts; those that are absent or null there are skipped."""
    parts = dict(part.split("=", 1) for part in key.split("/")[:-1] if "=" in part)
    return {name: unquote(parts[name]) for name in names if parts.get(name, _HIVE_NULL) not in (_HIVE_NULL, "")}


def reads_record_fields(spec: PipelineSpec) -> bool:
    """Whether anything of the pipeline reads below `_record`; events are spared the fields otherwise."""
    paths = [*spec.event.time.path, spec.event.name.path, *spec.event.id, *(look_up.of for look_up in spec.enrich)]
    for table in spec.event_tables:
        paths += [*table.when, *(column.path for column in table.columns)]
    return any(path is not None and path.split(".")[0] == RECORD_FIELD for path in paths)


def lookup_fields(spec: PipelineSpec) -> frozenset[str]:
    """The fields below which events have what is looked up of them."""
    return frozenset(look_up.output_field for look_up in spec.enrich)


def pin_databases(spec: PipelineSpec, storage: StorageSpec) -> Databases | None:
    """The databases that a pass over events reads, as they are in the lake now; None where it reads none.

    Raises:
        ConfigError: ENRICHMENT_UNREADABLE, one is missing or cannot be opened.
        TransientError: the storage failed; ENRICHMENT_REPLACED.
    """
    names = [look_up.database for look_up in spec.enrich if look_up.database is not None]
    if not names:
        return None
    # By name, here and below: what reads databases and user agents is loaded where a pipeline asks for it.
    databases: Databases = import_module("deltaworks.events.enrichment.databases").Databases.fix(names, storage)
    return databases


def create_lookups_and_masks(spec: PipelineSpec, databases: Databases | None) -> Protection | None:
    """What looks things up of events and masks them; None where a pipeline declares neither.

    Raises:
        ConfigError: ENRICHMENT_UNREADABLE, a database cannot be opened.
        TransientError: ENRICHMENT_REPLACED.
    """
    if not (spec.enrich or spec.private):
        return None
    protection: Protection = import_module("deltaworks.events.enrichment.protection").Protection(spec, databases)
    return protection


def row_keys(rows: pa.Table) -> list[RowKey]:
    """The key of every row."""
    return list(zip(*(rows.column(name).to_pylist() for name in ROW_KEY_COLUMNS), strict=True))
