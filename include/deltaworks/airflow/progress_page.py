"""A page of the API server that shows how relays and streams are, from their heartbeats, as HTML or JSON.

Airflow mounts a plugin's application beside its own and does not protect it, so every route here carries
its own check: a list shows only the DAGs its reader may see.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable
from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from airflow.models.dag import DagModel
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from deltaworks.airflow.aws_connections import set_environment_keys
from deltaworks.airflow.dashboard_page import add_dashboards
from deltaworks.airflow.erasure_page import add_erasures
from deltaworks.airflow.links import server_path
from deltaworks.airflow.page_access import HEADERS, may_read_runs
from deltaworks.control.clock import utc_now
from deltaworks.control.health import report as health_report
from deltaworks.control.health.channels import channel_warning
from deltaworks.control.health.collectors import collector_reports
from deltaworks.control.health.limits import duration
from deltaworks.control.health.report import Report, misdeclared, misdeclared_subjects, subjects, to_record
from deltaworks.control.health.vaults import vault_reports
from deltaworks.control.objects import open_objects
from deltaworks.specs.project import load_catalog

_STYLE = (
    "body{font:14px system-ui;margin:1.5rem}table{border-collapse:collapse}td,th{padding:.3rem .8rem;"
    "text-align:left;border-bottom:1px solid #ddd;vertical-align:top;white-space:pre-line}"
    ".unhealthy{color:#b00020;font-weight:600}"
    ".lagging{color:#9a6700}.healthy{color:#0a6b2d}"
)


_COLUMNS = (
    "",
    "state",
    "cause",
    "rows in the last hour",
    "quarantined",
    "detail",
    "time left",
    "next step",
    "Spark UI",
)


def build_app() -> FastAPI:
    """The application Airflow mounts under /deltaworks."""
    app = FastAPI(title="Deltaworks", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/progress", dependencies=[Depends(requires_access_view(AccessView.WEBSITE))])
    def progress_of_all(request: Request, user: GetUserDep) -> Response:
        return _answer(request, "Relays and streams", _reports(lambda dag_id: may_read_runs(dag_id, user)))

    @app.get("/progress/{dag_id}", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))])
    def progress_of_one(request: Request, dag_id: str) -> Response:
        # Several streams share the DAG of their group: each has a page of its own below it.
        only = request.query_params.get("pipeline")
        reports = [
            item for item in _reports(lambda candidate: candidate == dag_id) if only in (None, item.subject.name)
        ]
        if not reports:
            raise HTTPException(404, f"No relay or stream is run by a DAG called {dag_id!r}.")
        return _answer(request, dag_id, reports)

    add_dashboards(app)
    add_erasures(app)
    return app


def _reports(includes: Any) -> list[Report]:
    catalog = load_catalog(tolerant=True)
    sound = [subject for subject in subjects(catalog) if includes(subject.dag_id)]
    if not sound and not any(includes(subject.dag_id) for subject, _ in misdeclared_subjects(catalog)):
        return []
    set_environment_keys(catalog.environment)
    objects = open_objects(catalog.environment.lake)
    wrong = [item for item in misdeclared(catalog, objects) if includes(item.subject.dag_id)]
    apart = collector_reports(catalog, objects) + vault_reports(catalog, objects)
    beside = [item for item in apart if includes(item.subject.dag_id)]
    return wrong + health_report.reports(sound, objects, paused=_paused) + beside


def _paused(dag_id: str) -> bool | None:
    model = DagModel.get_dagmodel(dag_id)
    return None if model is None else bool(model.is_paused)


def _answer(request: Request, title: str, reports: list[Report]) -> Response:
    if request.query_params.get("format") == "json":
        return JSONResponse([_record(item) for item in reports], headers=HEADERS)
    warning = channel_warning(load_catalog(tolerant=True).environment.alerts)
    return HTMLResponse(_page(title, reports, warning=warning), headers=HEADERS)


def _record(item: Report) -> dict[str, Any]:
    heartbeat = dataclasses.asdict(item.heartbeat) if item.heartbeat else None
    return {
        "dag_id": item.subject.dag_id,
        "name": item.subject.name,
        "verdict": to_record(item.verdict),
        "heartbeat": heartbeat,
    }


def _page(title: str, reports: list[Report], *, warning: str = "") -> str:
    rows = "".join(_row(item) for item in reports)
    facts = "".join(_facts(item) for item in reports) if len(reports) == 1 else ""
    warned = f'<p class="lagging">{_text(warning)}</p>' if warning else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="10">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style><h1>{_text(title)}</h1>{warned}"
        f"<table><tr>{_cells('th', _COLUMNS)}</tr>{rows}</table>"
        f"{facts}</html>"
    )


def _row(item: Report) -> str:
    verdict, subject = item.verdict, item.subject
    page = f"/deltaworks/progress/{subject.dag_id}" + (f"?pipeline={subject.name}" if subject.group else "")
    # A collector is run by no DAG, so there is none whose readers its page could be for.
    name = f'<a href="{_text(server_path(page))}">{_text(subject.key)}</a>'
    name = _text(subject.key) if subject.kind == "collector" else name
    state = f'<span class="{_text(verdict.state)}">{_text(verdict.state)}</span>'
    ui = item.heartbeat.ui if item.heartbeat else None
    # What a driver wrote into its heartbeat becomes a link only if it is an address a browser may open.
    link = f'<a href="{_text(ui)}">{_text(ui)}</a>' if ui and ui.startswith(("http://", "https://")) else ""
    # Until the source forgets the oldest that waits.
    left = "" if verdict.time_left_seconds is None else duration(max(0.0, verdict.time_left_seconds))
    hour = item.throughput.last_hour(utc_now())
    read = (f"{hour.rows:,}", f"{hour.quarantined:,}") if item.subject.kind == "stream" else ("", "")
    rest = _cells("td", (verdict.cause, *read, verdict.detail, left, verdict.next_step))
    return f"<tr><td>{name}</td><td>{state}</td>{rest}<td>{link}</td></tr>"


def _facts(item: Report) -> str:
    if item.heartbeat is None:
        return ""
    facts = dataclasses.asdict(item.heartbeat)
    rows = "".join(f"<tr>{_cells('td', (key, '' if value is None else value))}</tr>" for key, value in facts.items())
    return f"<h2>Last heartbeat</h2><table>{rows}</table>"


def _cells(tag: str, values: Iterable[Any]) -> str:
    return "".join(f"<{tag}>{_text(value)}</{tag}>" for value in values)


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)
