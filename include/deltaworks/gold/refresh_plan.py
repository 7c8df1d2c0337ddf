"""What a full refresh of gold tables would do, and what became of one. Reads logs only, and needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.gold.build import selected_gold
from deltaworks.gold.built_from import read_built_from
from deltaworks.gold.inputs import pin_inputs
from deltaworks.gold.shadow import Shadows, find_shadows
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.recreate import TableContent, content
from deltaworks.tables.shadow_swap import reasons_against_swap


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldRefreshResult:
    """What became of one table, or would. `swapped` is whether it was given new content, as `version`.

    `rows_before` and `bytes_before` are of the table as it was; `rows` and `bytes` of the shadow. `shadow` is where one
    is kept, for the next refresh to go on with; `broken` are the checks it breaks.
    """

    table: str
    dry_run: bool
    swapped: bool = False
    rows_before: int = 0
    bytes_before: int = 0
    rows: int = 0
    bytes: int = 0
    version: int | None = None
    shadow: str = ""
    built_from: Mapping[str, int]
    broken: tuple[str, ...] = ()
    seconds: float = 0.0
    reason: str = ""


def plan_refresh(catalog: Catalog, pipeline: str, *, tables: Sequence[str] | None = None) -> list[GoldRefreshResult]:
    """What a refresh would do.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN.
    """
    spec = catalog.pipeline(pipeline)
    lake, objects = Lake(catalog.environment.lake), open_objects(catalog.environment.lake)
    results = []
    for table in selected_gold(spec, tables):
        key = paths.table(pipeline, table.name)
        before, shadows = content_at(lake, key), find_shadows(lake, pipeline, table.name)
        inputs = pin_inputs(lake, spec, table.reads)
        versions = {name: pinned.version for name, pinned in inputs.items() if pinned.version is not None}
        against = reasons_against_swap(lake, objects, key)
        results.append(
            GoldRefreshResult(
                table=table.name,
                dry_run=True,
                rows_before=before.rows,
                bytes_before=before.bytes,
                shadow=shadows.next_key if shadows.begun else shadows.swapped or "",
                built_from=versions,
                reason=f"cannot: {', '.join(against)}" if against else _told(lake, shadows),
            )
        )
    return results


def _told(lake: Lake, shadows: Shadows) -> str:
    if shadows.swapped is not None:
        return "was swapped in before, and is to be looked at and removed"
    if not shadows.begun:
        return "would be built, checked and swapped in"
    built = read_built_from(lake, shadows.next_key)
    return f"goes on with the shadow of {dict(built.versions)}" if built.known else "goes on where it was broken off"


def content_at(lake: Lake, key: str) -> TableContent:
    """What the table at `key` holds now; nothing where there is none."""
    opened = lake.open(key)
    return TableContent(-1, 0, 0, 0) if opened is None else content(opened)
