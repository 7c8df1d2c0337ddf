"""What keeps a table, or a pipeline, from being put back: each by name, before anything is changed."""

from __future__ import annotations

import json
from collections.abc import Sequence

from deltaworks.control.records.rollback import Repair
from deltaworks.engine.announcements import announced, announcers
from deltaworks.errors import ConfigError, ContractError
from deltaworks.events.reasons import QUARANTINE
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.log import TableState

_TOLD = 5


def refuse_mutable(spec: PipelineSpec, table: str) -> None:
    """Refuse a table of which others know more than its batches: rows that were merged, or told of.

    Raises:
        ConfigError: TABLE_UNKNOWN.
        ContractError: RESTORE_MUTABLE.
    """
    known = [*(each.name for each in spec.tables), QUARANTINE]
    if table not in known:
        raise ConfigError(
            "TABLE_UNKNOWN",
            f"Pipeline {spec.pipeline!r} has no bronze table {table!r}.",
            hint=f"It has {', '.join(known)}. Gold and live tables follow from these.",
        )
    if table != QUARANTINE and table in concerned_by_mutations(spec):
        raise ContractError(
            "RESTORE_MUTABLE",
            f"{spec.pipeline}.{table} holds rows that mutations change, or that others are told of: what they were "
            "told would not be taken back.",
            hint=f"`deltaworks pipelines start-over {spec.pipeline}` reads the source again and applies all requests.",
        )


def concerned_by_mutations(spec: PipelineSpec) -> list[str]:
    """The tables that mutations change or read, that are told of, or that tell of others."""
    found = {table.name for table in spec.tables if table.mutable is not None}
    found |= set(announcers(spec)) | set(announced(spec))
    found |= {spec.mutations.requests} if spec.mutations is not None else set()
    return sorted(found)


def refuse_columns_apart(then: TableState, now: TableState, *, repair: Repair) -> None:
    """Refuse to put rows of two declarations into one table: with rows that come back, the columns of now stay.

    Raises:
        ContractError: RESTORE_COLUMNS_DIFFER.
    """
    if repair == "none":
        return
    before, present = _columns(then), _columns(now)
    different = sorted(name for name, kind in before.items() if present.get(name) != kind)
    if then.metadata.get("partitionColumns") != now.metadata.get("partitionColumns"):
        different.append("the partition columns")
    if different:
        raise ContractError(
            "RESTORE_COLUMNS_DIFFER",
            f"Version {then.version} of {now.key} has other columns than the table now: {', '.join(different)}.",
            hint="Go back to a later version, or with --repair none, which takes the columns back too.",
        )


def refuse_absent(key: str, absent: Sequence[str]) -> None:
    """Refuse to name files in a commit that are not there.

    Raises:
        ContractError: RESTORE_FILES_GONE.
    """
    if absent:
        raise ContractError(
            "RESTORE_FILES_GONE",
            f"{len(absent)} files that the version needs are gone from {key}, by VACUUM most likely: {_some(absent)}.",
            hint="Go back to a later version; or read the rows again from the source: `deltaworks reprocess`.",
        )


def refuse_unprepared(pipeline: str, table: str, batches: Sequence[int], *, repair: Repair) -> None:
    """Refuse to leave batches out that were to come back.

    Raises:
        ContractError: RESTORE_UNPREPARED.
    """
    if batches and repair == "prepared":
        raise ContractError(
            "RESTORE_UNPREPARED",
            f"The files that batches {_some([str(each) for each in batches])} wrote to {pipeline}.{table} are gone.",
            hint="`--repair source` reads the objects of all lost batches again instead.",
        )


def refuse_unbounded(what: str, rows: int, max_rows: int | None) -> None:
    """Refuse to take out more rows than was said.

    Raises:
        ConfigError: RESTORE_UNBOUNDED, RESTORE_TOO_LARGE.
    """
    if max_rows is None:
        raise ConfigError(
            "RESTORE_UNBOUNDED",
            f"Going back takes files of {rows} rows out of {what}; it was not said how many may go.",
            hint=f"Look at the dry run, then give the bound too: --max-rows {rows}.",
        )
    if rows > max_rows:
        raise ConfigError(
            "RESTORE_TOO_LARGE",
            f"Going back would take files of {rows} rows out of {what}, more than {max_rows}.",
            hint="Look at the dry run again; then give a higher bound.",
        )


def _columns(state: TableState) -> dict[str, str]:
    fields = json.loads(state.metadata["schemaString"])["fields"]
    return {field["name"]: json.dumps(field["type"], sort_keys=True) for field in fields}


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_TOLD]) + (f" and {len(names) - _TOLD} more" if len(names) > _TOLD else "")
