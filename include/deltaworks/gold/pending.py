"""Finds the gold tables that need a build, from the logs of their inputs, without a JVM.

Most scheduled builds have nothing to do; this check avoids starting Spark for them.
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
    """Plans `rebuild_gold` with the same arguments; `spark_work_count` is 1 for tables with work.

    Records tables without work as up to date, and refreshes reference tables. Idempotent; builds nothing.

    Raises:
        ConfigError: GOLD_TABLE_UNKNOWN.
        ContractError, ConcurrencyError: from `refresh_references`.
    """
    spec, lake = catalog.pipeline(pipeline), Lake(catalog.environment.lake)
    refresh_external_inputs(catalog, pipeline)
    home = PipelineHome.open(catalog.environment.lake, pipeline)
    results: dict[str, GoldTableResult] = {}
    for table in select_gold_tables(spec, tables):
        if pending_inputs := sorted(name for name in table.reads if name in results and results[name].spark_work_count):
            reason = f"input {', '.join(pending_inputs)} needs a build"
            results[table.name] = GoldTableResult(table.name, True, reason, {}, spark_work_count=1)
            continue
        key, pinned = paths.table(pipeline, table.name), pin_inputs(lake, spec, table.reads)
        job = plan_job(catalog, spec, lake, table, pinned, key=key, full=full, dates=dates)
        work = int(job.plan.has_work)
        results[table.name] = GoldTableResult(table.name, True, job.plan.reason, job.built_from, spark_work_count=work)
        if not work and dates is None and job.built_from:
            record_refreshed(home, table.name)
    return list(results.values())
