"""A page of the API server for a data protection officer: requests, their states and deadlines, and certificates.

It shows a namespace to those who may read the DAG that erases from it, and nobody's identifier: the lake has none. What
is refused or extended is so by command, where who does it is on record.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import Depends, FastAPI, HTTPException, Response
from fastapi.responses import HTMLResponse

from deltaworks.airflow.aws_connections import set_environment_keys
from deltaworks.airflow.page_access import HEADERS, may_read_runs
from deltaworks.airflow.server_paths import server_path
from deltaworks.alerts.erasures import judge_erasure
from deltaworks.control.clock import utc_now
from deltaworks.control.objects import ObjectStore, open_objects
from deltaworks.control.records.certificate import Certificates
from deltaworks.control.records.erasure import ENDS, WAY, ErasureRequest, Erasures
from deltaworks.errors import DeltaworksError
from deltaworks.operations.registry import operation
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog

_STYLE = (
    "body{font:14px system-ui;margin:1.5rem;color-scheme:light dark}table{border-collapse:collapse;margin-bottom:2rem}"
    "td,th{padding:.3rem .8rem;text-align:left;border-bottom:1px solid #8884;vertical-align:top}"
    ".critical{color:#b00020;font-weight:600}.warning{color:#9a6700}.certified{color:#0a6b2d}small{opacity:.7}"
)
_COLUMNS = ("request", "received", "state", "since", "purge by", "deadline", "what is due", "certificate")


def add_erasures(app: FastAPI) -> None:
    """Add the routes of erasures to the plugin's application."""

    @app.get("/erasures", dependencies=[Depends(requires_access_view(AccessView.WEBSITE))])
    def list_erasures(user: GetUserDep) -> Response:
        catalog = _catalog()
        readable = {name: specs for name, specs in catalog.namespaces.items() if _may_read(name, user)}
        objects = open_objects(catalog.environment.lake)
        sections = [_section(objects, name, specs, utc_now()) for name, specs in readable.items()]
        return HTMLResponse(page_of(sections), headers=HEADERS)

    @app.get(
        "/erasures/{namespace}/{request_id}/certificate",
        dependencies=[Depends(requires_access_view(AccessView.WEBSITE))],
    )
    def certificate(namespace: str, request_id: str, user: GetUserDep) -> Response:
        # First: who may not read a namespace learns nothing of it, not even whether it is there.
        if not _may_read(namespace, user):
            raise HTTPException(403, "You may not read the DAG that erases from this namespace.")
        catalog = _catalog()
        request = None
        if namespace in catalog.namespaces:
            request = Erasures(open_objects(catalog.environment.lake), namespace).read(request_id)
        data = None
        if request is not None:
            data = Certificates(open_objects(catalog.environment.lake), namespace).bytes_of(request.request_id)
        if data is None:
            raise HTTPException(404, f"{request_id!r} has no certificate.")
        saved = {"Content-Disposition": f'attachment; filename="erasure-{namespace}-{request_id}.json"'}
        return Response(data, media_type="application/json", headers={**HEADERS, **saved})


def page_of(sections: Sequence[str]) -> str:
    """The page, with a section for each namespace that its reader may see."""
    body = "".join(sections) or "<p>No pipeline has personal data, or you may read none of the DAGs that erase.</p>"
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Erasures</title>'
        f"<style>{_STYLE}</style><h1>Erasures</h1>{body}"
        "<p><small>Receive a request with <code>deltaworks privacy erase</code>; refuse and extend by command too. "
        "Certificates are a chain: <code>deltaworks privacy certificate</code> checks it.</small></p></html>"
    )


def section_of(
    namespace: str, requests: Iterable[ErasureRequest], *, retention: timedelta, now: datetime, chain: str
) -> str:
    """The requests of a namespace: those that are open first, the nearest deadline on top."""
    ordered = sorted(requests, key=lambda request: (not request.open, request.deadline_at))
    rows = "".join(_row(request, retention, now) for request in ordered)
    heading = "".join(f"<th>{_text(column)}</th>" for column in _COLUMNS)
    table = f"<table><tr>{heading}</tr>{rows}</table>" if rows else "<p>Nobody has asked.</p>"
    return f"<h2>{_text(namespace)}</h2><p>{_text(chain)}</p>{table}"


def _section(objects: ObjectStore, name: str, specs: tuple[PipelineSpec, ...], now: datetime) -> str:
    retention = timedelta(hours=max(spec.maintenance.kept_hours for spec in specs))
    try:
        requests = list(Erasures(objects, name).all())
        chain = f"{Certificates(objects, name).check():,} certificates, each bound to the one before."
    except DeltaworksError as error:
        return f'<h2>{_text(name)}</h2><p class="critical">{_text(error)}</p>'
    return section_of(name, requests, retention=retention, now=now, chain=chain)


def _row(request: ErasureRequest, retention: timedelta, now: datetime) -> str:
    finding = judge_erasure(request, retention=retention, now=now)
    due = "" if finding is None else f'<span class="{finding.severity}">{_text(finding.summary)}</span>'
    place = "" if request.state in ENDS else f" <small>{WAY.index(request.state) + 1} of {len(WAY)}</small>"
    days = [f"{at:%Y-%m-%d}" for at in (request.received_at, request.purge_by, request.deadline_at)]
    deadline = days[2] + (" <small>extended</small>" if request.extended else "")
    saved = ""
    if request.state == "certified":
        path = server_path(f"/deltaworks/erasures/{request.namespace}/{request.request_id}/certificate")
        saved = f'<a href="{_text(path)}" download>download</a>'
    state = f'<span class="{request.state}">{request.state}</span>{place}'
    since = _text(request.steps[-1].at[:16].replace("T", " "))
    cells = (_text(request.request_id), days[0], state, since, days[1], deadline, due, saved)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _catalog() -> Catalog:
    catalog = load_catalog(tolerant=True)
    set_environment_keys(catalog.environment)
    return catalog


def _may_read(namespace: str, user: Any) -> bool:
    return may_read_runs(operation("erase").dag_id(namespace), user)


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)
