"""Determines the dependents of a restored table: mutations, notification tables, and pipelines that read it."""

from __future__ import annotations

from dataclasses import dataclass

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.control.locks.lease import LeaseWatch
from deltaworks.control.records.generations import RowSource
from deltaworks.engine.notifications import notification_tables_by_source, source_by_notification_table
from deltaworks.errors import ConcurrencyError, ConfigError, ContractError
from deltaworks.events.reasons import QUARANTINE_TABLE
from deltaworks.specs.base import nearest_names_hint
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.sources import DeltaSourceSpec


def reject_mutable(spec: PipelineSpec, table: str) -> None:
    """Rejects a table whose rows are changed by mutations or announced by notifications.

    Raises:
        ConfigError: TABLE_UNKNOWN.
        ContractError: RESTORE_MUTABLE.
    """
    bronze = [*(declared.name for declared in spec.tables), QUARANTINE_TABLE]
    if table not in bronze:
        raise ConfigError(
            "TABLE_UNKNOWN",
            f"Pipeline {spec.pipeline!r} has no bronze table {table!r}.",
            hint=f"{nearest_names_hint([table], bronze, prefix='It has')} Keyed, gold and live tables follow.",
        )
    if table != QUARANTINE_TABLE and table in tables_affected_by_mutations(spec):
        raise ContractError(
            "RESTORE_MUTABLE",
            f"{spec.pipeline}.{table} contains rows that mutations change or notifications announce; a restore would "
            "undo neither.",
            hint=f"`deltaworks restore {spec.pipeline} --to-batch` puts all tables back and applies all requests; "
            f"so does `deltaworks pipelines start-over {spec.pipeline}` from the beginning.",
        )


def tables_affected_by_mutations(spec: PipelineSpec) -> list[str]:
    """Returns the mutable tables, the table of requests, the notification tables, and the tables they announce."""
    tables = {table.name for table in spec.tables if table.mutable is not None}
    tables |= set(notification_tables_by_source(spec)) | set(source_by_notification_table(spec))
    tables |= {spec.mutations.requests} if spec.mutations is not None else set()
    return sorted(tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class DownstreamPipeline:
    """A pipeline that reads the restored table, its read mode, and the effect of the restore on it."""

    pipeline: str
    table: str
    read_mode: str
    effect: str


def downstream_pipelines(
    catalog: Catalog, pipeline: str, table: str, repair: RowSource | None
) -> tuple[DownstreamPipeline, ...]:
    """Returns the pipelines whose source is this table.

    Args:
        repair: where rows landed since then are recovered from; None if the complete pipeline is rolled back and reads
            them again.
    """
    followers = []
    for name, spec in catalog.pipelines.items():
        source = spec.source
        if isinstance(source, DeltaSourceSpec) and (source.pipeline, source.table) == (pipeline, table):
            reads = _read_mode(source)
            followers.append(
                DownstreamPipeline(
                    pipeline=name, table=table, read_mode=reads, effect=_restore_effect(reads, repair, name)
                )
            )
    return tuple(followers)


def reject_running_downstream(catalog: Catalog, home: PipelineHome, tables: tuple[str, ...]) -> None:
    """Rejects a rollback while a downstream stream runs, because that stream would read rows that land again as new
    rows.

    Raises:
        ConcurrencyError: RESTORE_HAS_FOLLOWER.
    """
    for table in tables:
        for follower in downstream_pipelines(catalog, home.pipeline, table, None):
            watch = LeaseWatch(home.objects, paths.stream_lease(follower.pipeline), silent_seconds=60)
            if follower.read_mode != "change feed" and watch.is_held():
                raise ConcurrencyError(
                    "RESTORE_HAS_FOLLOWER",
                    f"The stream of {follower.pipeline!r} follows {home.pipeline}.{table} and runs: it would land rows "
                    "twice that land here again.",
                    hint=f"`deltaworks stop {follower.pipeline}` first; it has to start over after this.",
                )


def _read_mode(source: DeltaSourceSpec) -> str:
    if source.change_feed:
        return "change feed"
    return "appends, skipping changes" if source.skip_change_commits else "appends"


def _restore_effect(reads: str, repair: RowSource | None, name: str) -> str:
    if reads == "change feed":
        return "reads rows that go as deletes and rows that come as inserts"
    if repair is None:
        return f"is refused with DELTA_SOURCE_ROLLED_BACK: `deltaworks pipelines start-over {name}`"
    if reads == "appends":
        return "ends with DELTA_SOURCE_REWRITTEN when it reaches it"
    stays = "" if repair == "prepared" else "; rows it has read already stay"
    return f"skips it{stays}"
