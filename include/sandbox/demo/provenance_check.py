"""Checks that every Delta commit contains its pipeline, batch and Airflow run."""

from __future__ import annotations

from dataclasses import dataclass

from deltaworks.control.provenance import REQUIRED_FIELDS
from deltaworks.maintenance.table_health.catalog_tables import all_tables
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.lake import Lake
from deltaworks.tables.log import commit_history


@dataclass(frozen=True, slots=True)
class ProvenanceReport:
    """The number of checked commits, and the commits without complete provenance."""

    commits: int
    tables: int
    runs: frozenset[str]
    commits_without_origin: tuple[str, ...]


def check_provenance(catalog: Catalog, *, dags: frozenset[str]) -> ProvenanceReport:
    """Checks the commits of all tables, including control tables.

    Args:
        dags: DAG ids that a commit's run may belong to. Commits of other runs, such as `manual`, have no valid
            provenance.
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
