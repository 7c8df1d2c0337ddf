"""Reads tables for a console page in a separate process: `python -m deltaworks.page_reads.reader JSON`.

A page sends one query and waits a few seconds: the last commits of a table, the newest quarantined rows, the history of
an entity, or the check of a certificate chain. A dashboard, which is drawn as an HTML document, may take a minute. The
result is one line of JSON of bounded size, also for errors. Read-only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Final

from deltaworks.control.foreign_errors import redact_values
from deltaworks.control.parent_watchdog import start_parent_watchdog
from deltaworks.errors import ConfigError, DeltaworksError, TransientError

#: Maximum numbers of commits, quarantined rows and intervals of an entity on a page.
MAX_COMMITS, MAX_SAMPLES, MAX_INTERVALS = 50, 5, 200
_MAX_TEXT_CHARACTERS = 300
Rows = Sequence[Mapping[str, Any]]


def history(*, pipeline: str, table: str) -> Rows:
    """Returns the last commits of a pipeline's table, newest first.

    Raises:
        ConfigError: TABLE_UNKNOWN.
    """
    from deltaworks.maintenance.table_health.catalog_tables import declared_tables
    from deltaworks.specs.project import load_catalog
    from deltaworks.tables.lake import Lake
    from deltaworks.tables.log import commit_history

    catalog = load_catalog(skip_invalid=True)
    key = next((one.key for one in declared_tables(catalog, pipeline=pipeline) if one.name == table), None)
    if key is None:
        raise ConfigError(
            "TABLE_UNKNOWN", f"{pipeline} declares no table {table!r}.", hint=("See the page with all tables.")
        )
    lake = Lake(catalog.environment.lake)
    delta_table = lake.open(key)
    if delta_table is None:
        return []
    return [
        {
            "version": commit.version,
            "at": commit.at,
            "operation": commit.operation,
            "by": str(commit.metadata.get("operation") or commit.engine),
            "batch": commit.metadata.get("batch"),
            "run": commit.metadata.get("run"),
            "metrics": {name: str(value) for name, value in sorted(commit.metrics.items())[:12]},
            "changes_rows": commit.changes_rows,
        }
        for commit in commit_history(lake, key, newest=delta_table.version(), limit=MAX_COMMITS)
    ]


def samples(*, pipeline: str, reason: str = "") -> Rows:
    """Returns the newest open quarantined rows of a pipeline, with this reason if one is given, with their reasons and
    the beginning of the raw value.
    """
    from deltaworks.recovery.quarantine.open_rows import Quarantine, QuarantineFilter
    from deltaworks.specs.project import load_catalog
    from deltaworks.tables.lake import Lake

    catalog = load_catalog(skip_invalid=True)
    catalog.pipeline(pipeline)
    selected = QuarantineFilter(reasons=(reason,) if reason else ())
    rows = Quarantine(Lake(catalog.environment.lake), pipeline).rows(selected, limit=MAX_SAMPLES)
    return [
        {
            "event": row["event_name"] or "",
            "at": row["_ingested_at"],
            "object": row["object_key"],
            "batch": row["_batch_id"],
            "reasons": row["reasons"],
            "raw": row["raw"] or "",
            "raw_bytes": row["raw_bytes"],
        }
        for row in rows
    ]


def cascade(*, pipeline: str, organisation: str, entity: str) -> Rows:
    """Returns the intervals of an entity's id and of all ids with the same final id, ordered by final id and time.

    Different entities may use an id one after the other. Their intervals then have different final ids, and only ids
    with one of these final ids are included. Including ids of those ids in turn would merge unrelated entities.

    Raises:
        ConfigError: MUTATIONS_UNDECLARED.
    """
    import pyarrow.dataset as ds

    from deltaworks.control import paths
    from deltaworks.specs.project import load_catalog
    from deltaworks.tables.lake import Lake

    catalog = load_catalog(skip_invalid=True)
    declared = catalog.pipeline(pipeline).mutations
    if declared is None:
        raise ConfigError(
            "MUTATIONS_UNDECLARED", f"{pipeline} declares no mutations.", hint=("Choose a pipeline that does.")
        )
    lake, key = Lake(catalog.environment.lake), paths.table(pipeline, declared.intervals)
    columns = ["id", "valid_from", "valid_to", "final_id", "deleted", "hops", "last_time"]
    in_organisation = ds.field("org_id") == organisation
    own_rows = lake.rows(key, columns=columns, filters=in_organisation & (ds.field("id") == entity))
    if own_rows is None or not own_rows.num_rows:
        return []
    finals = sorted({row for row in own_rows.column("final_id").to_pylist() if row is not None})
    related_rows = lake.rows(key, columns=columns, filters=in_organisation & ds.field("final_id").isin(finals))
    rows = [] if related_rows is None else related_rows.to_pylist()
    latest = datetime.max.replace(tzinfo=None)
    rows.sort(key=lambda row: (row["final_id"], (row["valid_to"] or latest).replace(tzinfo=None), row["id"]))
    return rows[: MAX_INTERVALS + 1]


def certificates(*, namespace: str) -> Rows:
    """Returns the number of erasure certificates of a namespace after checking that they form a chain, and whether its
    end was compared with the vault, which not every process may read.

    Raises:
        ConfigError: NAMESPACE_UNKNOWN; ContractError: CERTIFICATES_BROKEN, ERASURE_UNREADABLE.
    """
    from deltaworks.control.objects import open_objects
    from deltaworks.control.records.certificate import Certificates
    from deltaworks.privacy.vault.namespace_vault import privacy_settings_of
    from deltaworks.specs.project import load_catalog

    catalog = load_catalog(skip_invalid=True)
    catalog.namespace(namespace)
    vault = open_objects(privacy_settings_of(catalog.environment).vault)
    chain = Certificates(open_objects(catalog.environment.lake), namespace, vault)
    try:
        return [{"certificates": chain.check(), "head": True}]
    except TransientError:
        return [{"certificates": chain.check_within_lake(), "head": False}]


def draw_dashboard(
    *, pipeline: str, name: str, since: str, until: str, filters: str, script: str, segments_script: str
) -> str:
    """Returns a dashboard as an HTML page. Without a time span it is the current one, which renews itself.

    Args:
        since, until: times as `parse_span` takes them.
        filters: values by filter, as JSON.
        script: address of the script that renews the page's panels; empty to reload the page.
        segments_script: address of the script that saves filters by name.

    Raises:
        ConfigError: DASHBOARD_UNKNOWN, DASHBOARD_SPAN_INVALID.
    """
    from deltaworks.dashboards.page import dashboard_page
    from deltaworks.dashboards.spans import parse_span
    from deltaworks.page_reads.dashboards import load_dashboard
    from deltaworks.specs.catalog import find_by_name
    from deltaworks.specs.project import load_catalog

    catalog = load_catalog(skip_invalid=True, only=(pipeline,))
    dashboards = catalog.pipeline(pipeline).dashboards
    dashboard = find_by_name(name, {item.name: item for item in dashboards}, "dashboard")
    span = parse_span(dashboard, since=since, until=until)
    answer = load_dashboard(catalog, pipeline, dashboard, span, filters=json.loads(filters))
    refresh_seconds = None if since or until else dashboard.refresh_seconds
    return dashboard_page(
        answer, refresh_seconds=refresh_seconds, is_served=True, script=script, segments_script=segments_script
    )


QUERIES: Final[Mapping[str, Callable[..., Rows]]] = {
    "history": history,
    "samples": samples,
    "cascade": cascade,
    "certificates": certificates,
}


def run_query(query: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the rows of a query or the document of a dashboard, or the error that prevented it."""
    values = dict(query)
    try:
        name = values.pop("read")
        if name == "dashboard":
            return {"document": draw_dashboard(**values)}
        rows = QUERIES[name](**values)
        return {"rows": [_truncate(row) for row in rows]}
    except DeltaworksError as error:
        return {"error": redact_values(str(error))[:_MAX_TEXT_CHARACTERS]}
    except Exception as error:  # the page shows any error of a damaged table
        return {
            "error": redact_values(f"{type(error).__name__}: {' '.join(str(error).split())}")[:_MAX_TEXT_CHARACTERS]
        }


def _truncate(value: Any) -> Any:
    """Converts a value for JSON and truncates long texts."""
    if isinstance(value, Mapping):
        return {str(name): _truncate(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_truncate(item) for item in value]
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, str) and len(value) > _MAX_TEXT_CHARACTERS:
        return f"{value[:_MAX_TEXT_CHARACTERS]}…"
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)[:_MAX_TEXT_CHARACTERS]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the query on the command line and prints its result."""
    (query,) = sys.argv[1:] if argv is None else argv
    sys.stdout.write(json.dumps(run_query(json.loads(query))) + "\n")
    return 0


if __name__ == "__main__":
    start_parent_watchdog()
    sys.exit(main())
