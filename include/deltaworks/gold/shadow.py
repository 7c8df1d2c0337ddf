"""Shadow tables of gold refreshes: their state and the plan of a refresh. Reads logs only, without Spark.

A shadow's number is the application transaction version of its swap, so the gold table's own log shows which shadows
have been swapped in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyarrow import fs

from deltaworks.control import paths
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.errors import ContractError
from deltaworks.gold.build import select_gold_tables
from deltaworks.gold.inputs import pin_inputs, read_built_from
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake, arrow_path, remove_folder
from deltaworks.tables.log import TableState, state_at
from deltaworks.tables.steps import gold_refresh_step
from deltaworks.tables.table_swap import TableContent, reasons_against_swap, table_content


@dataclass(frozen=True, slots=True)
class Shadows:
    """The shadow tables of a gold table. `last_swapped` is the newest number swapped in, 0 before the first."""

    pipeline: str
    table: str
    last_swapped: int
    numbers: tuple[int, ...]

    @property
    def next_key(self) -> str:
        """The key of the next refresh's shadow."""
        return paths.gold_shadow(self.pipeline, self.table, self.last_swapped + 1)

    @property
    def is_in_progress(self) -> bool:
        """Whether a refresh was interrupted before its swap; its shadow is reused."""
        return self.last_swapped + 1 in self.numbers

    @property
    def swapped_key(self) -> str | None:
        """The key of a shadow that was swapped in but not yet deleted."""
        return (
            paths.gold_shadow(self.pipeline, self.table, self.last_swapped)
            if self.last_swapped in self.numbers
            else None
        )

    @property
    def orphaned_keys(self) -> list[str]:
        """Keys of shadows that belong to no refresh, for example of a table that was dropped and recreated."""
        current = (self.last_swapped, self.last_swapped + 1)
        return [
            paths.gold_shadow(self.pipeline, self.table, number) for number in self.numbers if number not in current
        ]


def find_shadows(lake: Lake, pipeline: str, table: str) -> Shadows:
    """Lists the shadows of a gold table."""
    opened = lake.open(paths.table(pipeline, table))
    app_id = gold_refresh_step(pipeline, table, 0).app_id
    last = (opened.transaction_version(app_id) if opened is not None else None) or 0
    folder = arrow_path(lake.storage, paths.gold_shadows(pipeline, table))
    listed = lake.filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    names = (info.base_name for info in listed if info.type is fs.FileType.Directory)
    return Shadows(pipeline, table, last, tuple(sorted(int(name) for name in names if name.isdigit())))


def shadow_state(lake: Lake, objects: ObjectStore, key: str) -> TableState | None:
    """Returns the state of a swapped shadow; None if its deletion has begun."""
    try:
        return state_at(lake, objects, key)
    except ContractError:
        return None


def remove_shadow(lake: Lake, key: str) -> None:
    """Deletes a shadow. Its log is deleted first, so a shadow without a log is one that is being deleted."""
    remove_folder(lake.storage, f"{key}/_delta_log")
    remove_folder(lake.storage, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldRefreshResult:
    """The result for one table (in a dry run: the plan).

    - `swapped`: whether the content was replaced, at `version`.
    - `rows_before`, `bytes_before`: size of the table before the refresh; `rows`, `bytes`: size of the shadow.
    - `shadow`: key of an existing shadow to continue with; `failed_checks`: checks that the shadow fails.
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
    failed_checks: tuple[str, ...] = ()
    seconds: float = 0.0
    reason: str = ""


def plan_refresh(catalog: Catalog, pipeline: str, *, tables: Sequence[str] | None = None) -> list[GoldRefreshResult]:
    """Plans the full refresh of gold tables, one result per table.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN.
    """
    spec = catalog.pipeline(pipeline)
    lake, objects = Lake(catalog.environment.lake), open_objects(catalog.environment.lake)
    results = []
    for table in select_gold_tables(spec, tables):
        key = paths.table(pipeline, table.name)
        before, shadows = content_at(lake, key), find_shadows(lake, pipeline, table.name)
        inputs = pin_inputs(lake, spec, table.reads)
        versions = {name: pinned.version for name, pinned in inputs.items() if pinned.version is not None}
        blockers = reasons_against_swap(lake, objects, key)
        results.append(
            GoldRefreshResult(
                table=table.name,
                dry_run=True,
                rows_before=before.rows,
                bytes_before=before.bytes,
                shadow=shadows.next_key if shadows.is_in_progress else shadows.swapped_key or "",
                built_from=versions,
                reason=f"cannot: {', '.join(blockers)}" if blockers else _reason(lake, shadows),
            )
        )
    return results


def _reason(lake: Lake, shadows: Shadows) -> str:
    if shadows.swapped_key is not None:
        return "already swapped in; would be verified and removed"
    if not shadows.is_in_progress:
        return "would be built, checked and swapped in"
    built = read_built_from(lake, shadows.next_key)
    return (
        f"continues with the shadow of {dict(built.versions)}"
        if built.is_traceable
        else "continues where it was interrupted"
    )


def content_at(lake: Lake, key: str) -> TableContent:
    """Returns row and byte counts of the table; zeros if it does not exist."""
    opened = lake.open(key)
    return TableContent(-1, 0, 0, 0) if opened is None else table_content(opened)
