"""Which gold tables a build would touch, by the logs of what they read; needs no JVM.

Most builds of a schedule find nothing new. To learn that, a log or two of each table is read, and no session opened.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from deltaworks.control import paths
from deltaworks.control.home import PipelineHome
from deltaworks.gold.build import select_gold_tables
from deltaworks.gold.inputs import pin_inputs, record_refreshed
from deltaworks.gold.model_tables import refresh_external_inputs
from deltaworks.gold.table_build import GoldTableResult, plan_job
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake


def pending_gold(
    catalog: Catalog,
    pipeline: str,
    *,
    tables: Sequence[str] | None = None,
    full: bool = False,
    dates: frozenset[dt.date] | None = None,
) -> list[GoldTableResult]:
    """What `rebuild_gold` with the same arguments would find to do; `for_spark` is 1 where that is something.

    Tables without work are noted as up to date, as a build notes them, and reference tables are brought up to date with
    their files. Idempotent; builds nothing.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN.
        ContractError, ConcurrencyError: what `refresh_references` raises.
    """
    spec, lake = catalog.pipeline(pipeline), Lake(catalog.environment.lake)
    refresh_external_inputs(catalog, pipeline)
    home = PipelineHome.open(catalog.environment.lake, pipeline)
    results: dict[str, GoldTableResult] = {}
    for table in select_gold_tables(spec, tables):
        if behind := sorted(name for name in table.reads if name in results and results[name].for_spark):
            reason = f"{', '.join(behind)}, which it reads, is to be built"
            results[table.name] = GoldTableResult(table.name, True, reason, {}, for_spark=1)
            continue
        key, pinned = paths.table(pipeline, table.name), pin_inputs(lake, spec, table.reads)
        job = plan_job(catalog, spec, lake, table, pinned, key=key, full=full, dates=dates)
        work = int(job.plan.has_work)
        results[table.name] = GoldTableResult(table.name, True, job.plan.reason, job.built_from, for_spark=work)
        if not work and dates is None and job.built_from:
            record_refreshed(home, table.name)
    return list(results.values())
