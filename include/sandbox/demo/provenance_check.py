"""Checks that every Delta commit of the lake says which pipeline, batch and Airflow run made it."""

from __future__ import annotations

from dataclasses import dataclass

from deltaworks.control.provenance import REQUIRED_FIELDS
from deltaworks.maintenance.table_health.catalog_tables import all_tables
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history


@dataclass(frozen=True, slots=True)
class ProvenanceReport:
    """How many commits were checked, and those that do not name their origin."""

    commits: int
    tables: int
    runs: frozenset[str]
    commits_without_origin: tuple[str, ...]


def check_provenance(catalog: Catalog, *, dags: frozenset[str]) -> ProvenanceReport:
    """Read every commit of every table, the engine's own included.

    Args:
        dags: the DAG ids a run may belong to; a commit of any other run, `manual` ones included, is unnamed.
    """
    lake = Lake(catalog.environment.lake)
    commits, tables, unnamed = 0, 0, list[str]()
    runs: set[str] = set()
    for table in all_tables(lake, catalog):
        if table.error:
            unnamed.append(f"{table.key}: {table.error}")
        if table.health is None:
            continue
        tables += 1
        for commit in commit_history(lake, table.key, newest=table.health.version):
            commits += 1
            run = str(commit.metadata.get("run", ""))
            if (
                any(not commit.metadata.get(name) for name in REQUIRED_FIELDS)
                or run.split("/", maxsplit=1)[0] not in dags
            ):
                unnamed.append(f"{table.key} version {commit.version} ({commit.operation})")
            else:
                runs.add(run)
    return ProvenanceReport(commits, tables, frozenset(runs), tuple(unnamed))
