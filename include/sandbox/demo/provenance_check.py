"""Checks that every Delta commit names its pipeline, batch and Airflow run."""

from __future__ import annotations

from dataclasses import dataclass

from deltaworks.control.provenance import REQUIRED_FIELDS
from deltaworks.maintenance.table_health.catalog_tables import all_tables
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history


@dataclass(frozen=True, slots=True)
class ProvenanceReport:
    """The number of checked commits, and those without a complete origin."""

    commits: int
    tables: int
    runs: frozenset[str]
    commits_without_origin: tuple[str, ...]


def check_provenance(catalog: Catalog, *, dags: frozenset[str]) -> ProvenanceReport:
    """Reads every commit of every table, control tables included.

    Args:
        dags: DAG ids that runs may belong to; commits of other runs, such as `manual`, count as without origin.
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
