"""The shadows of gold tables: which one a refresh works in, which have done their work, and what a refresh would do.

A shadow's number is the version of the application transaction by which it is swapped in. So the gold table's own log
says of every shadow whether it has been swapped in, whatever happened to the job. Reads logs only, and needs no Spark.
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
    """The shadows of one gold table. `last` is the newest that was swapped in, 0 before the first."""

    pipeline: str
    table: str
    last_swapped: int
    numbers: tuple[int, ...]

    @property
    def next_key(self) -> str:
        """Where the next refresh works."""
        return paths.gold_shadow(self.pipeline, self.table, self.last_swapped + 1)

    @property
    def is_in_progress(self) -> bool:
        """Whether a refresh was interrupted before its swap: its shadow is taken on."""
        return self.last_swapped + 1 in self.numbers

    @property
    def swapped_key(self) -> str | None:
        """The shadow that was swapped in and has not been removed yet."""
        return (
            paths.gold_shadow(self.pipeline, self.table, self.last_swapped)
            if self.last_swapped in self.numbers
            else None
        )

    @property
    def orphaned_keys(self) -> list[str]:
        """Shadows that belong to no refresh of this table any more, as of one that was dropped and made again."""
        kept = (self.last_swapped, self.last_swapped + 1)
        return [paths.gold_shadow(self.pipeline, self.table, number) for number in self.numbers if number not in kept]


def find_shadows(lake: Lake, pipeline: str, table: str) -> Shadows:
    """Look for the shadows of a gold table. One listing of names."""
    opened = lake.open(paths.table(pipeline, table))
    app_id = gold_refresh_step(pipeline, table, 0).app_id
    last = (opened.transaction_version(app_id) if opened is not None else None) or 0
    folder = arrow_path(lake.storage, paths.gold_shadows(pipeline, table))
    listed = lake.filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    names = (info.base_name for info in listed if info.type is fs.FileType.Directory)
    return Shadows(pipeline, table, last, tuple(sorted(int(name) for name in names if name.isdigit())))


def shadow_state(lake: Lake, objects: ObjectStore, key: str) -> TableState | None:
    """What a shadow that was swapped in holds; None where its removal has begun, which comes after all looking."""
    try:
        return state_at(lake, objects, key)
    except ContractError:
        return None


def remove_shadow(lake: Lake, key: str) -> None:
    """Delete a shadow, its log first: one without a log is being removed, whoever finds it."""
    remove_folder(lake.storage, f"{key}/_delta_log")
    remove_folder(lake.storage, key)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldRefreshResult:
    """What became of one table, or would. `swapped` is whether it was given new content, as `version`.

    `rows_before` and `bytes_before` are of the table as it was; `rows` and `bytes` of the shadow. `shadow` is where one
    is kept, for the next refresh to continue with; `broken` are the checks it breaks.
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
    """What a refresh would do.

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
        return "was swapped in before, and is to be looked at and removed"
    if not shadows.is_in_progress:
        return "would be built, checked and swapped in"
    built = read_built_from(lake, shadows.next_key)
    return (
        f"continues with the shadow of {dict(built.versions)}"
        if built.is_traceable
        else "continues where it was interrupted"
    )


def content_at(lake: Lake, key: str) -> TableContent:
    """What the table at `key` holds now; nothing where there is none."""
    opened = lake.open(key)
    return TableContent(-1, 0, 0, 0) if opened is None else table_content(opened)
