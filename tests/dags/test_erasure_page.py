"""Erasure requests in Airflow's real API server: access, due dates, and certificates to download."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects, open_objects
from deltaworks.control.records.certificate import Certificate, Certificates, CertifiedLanding, CertifiedScan
from deltaworks.control.records.erasure import Erasures
from deltaworks.specs.project import load_catalog
from tests.dags.airflow_project import declare_vault, write_project
from tests.dags.test_console_host import as_user, dags_on_record, server
from tests.records import record_of
from tests.waiting import eventually

__all__ = ["dags_on_record", "server"]

LIST = "/deltaworks/erasures"
SAVED = f"{LIST}/players/e1/certificate"
CHAIN = f"{LIST}/players/certificates"
PRIVACY = "privacy: {namespace: players, fields: [{path: secret, action: drop}]}\n"


@pytest.fixture
def requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with personal data, a certified request, and one near its deadline."""
    root = write_project(tmp_path / "project")
    declared = root / "include" / "pipelines" / "games" / "pipeline.yaml"
    declared.write_text(declared.read_text() + PRIVACY)
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(root))
    monkeypatch.setenv("DELTAWORKS_ENVIRONMENT", "local")
    objects, now = open_objects(load_catalog().environment.lake), dt.datetime.now(dt.UTC)
    erasures = Erasures(objects, "players")
    for name, days_ago in (("e1", 20), ("e2", 28)):
        received = now - dt.timedelta(days=days_ago)
        terms = {"purge_by": received + dt.timedelta(days=21), "deadline_at": received + dt.timedelta(days=30)}
        erasures.create(name, received_at=received, digest="d", by="dpo", **terms)
    erasures.record_state(erasures.request("e1"), "certified", by="tests")
    Certificates(objects, "players", LocalObjects(root / "vault")).append(certificate())
    return root


def certificate() -> Certificate:
    texts = ("received_at", "deadline_at", "tokens_sha256", "mode", "log_clean_after", "landing_clean_after")
    return record_of(
        Certificate,
        namespace="players",
        request_id="e1",
        number=1,
        scan=CertifiedScan(objects=1, bytes=1, hits_before=1, hits=0, log_hits=0, retained=0),
        landing=CertifiedLanding(objects=0, bytes=0, rewritten=0, removed_versions=0, events=0, unreadable_events=0),
        **dict.fromkeys(texts, ""),
    )


def viewer() -> dict[str, str]:
    return {"Accept": "text/html", **as_user("vic", "viewer")}


@pytest.mark.parametrize("page", [LIST, SAVED, CHAIN])
def test_erasure_requests_need_a_login(server: Any, requests: Path, page: str) -> None:
    assert server.get(page).status_code == 401
    assert server.get(page, headers={"Accept": "text/html"}).status_code == 303


def test_requests_are_shown_with_what_is_due(server: Any, requests: Path) -> None:
    page = server.get(LIST, headers=viewer())
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store"
    assert page.text.index(">e2<") < page.text.index(">e1<"), "what is open comes first"
    assert "critical</strong>" in page.text
    assert f'href="{SAVED}"' in page.text


def test_a_certificate_is_served_as_stored(server: Any, requests: Path) -> None:
    saved = server.get(SAVED, headers=viewer())
    assert json.loads(saved.text)["request_id"] == "e1"
    assert saved.headers["content-disposition"] == 'attachment; filename="erasure-players-e1.json"'
    assert server.get(f"{LIST}/players/e2/certificate", headers=viewer()).status_code == 404


def read_chain(server: Any) -> str:
    """Returns the page once its read has ended in time, which a busy machine may need several tries for."""
    pages: list[str] = []

    def is_read() -> bool:
        pages.append(server.get(CHAIN, headers=viewer()).text)
        return "takes longer than the page waits" not in pages[-1]

    eventually(is_read, "the certificates are read")
    return pages[-1]


def test_the_certificate_chain_is_verified(server: Any, requests: Path) -> None:
    declare_vault(requests)

    page = read_chain(server)

    assert "Certificates: 1" in page
    assert "is not verified" not in page


def test_a_removed_newest_certificate_is_noticed(server: Any, requests: Path) -> None:
    declare_vault(requests)
    open_objects(load_catalog().environment.lake).delete(paths.erasure_certificate("players", "e1"))

    assert "CERTIFICATES_BROKEN" in read_chain(server)


def test_a_user_who_may_not_read_the_dag_sees_nothing(server: Any, requests: Path) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    def only_others(*, details: Any, **_: Any) -> bool:
        return details is None or details.id != "players__erase"

    with patch.object(type(get_auth_manager()), "is_authorized_dag", staticmethod(only_others)):
        listed = server.get(LIST, headers=viewer())
        hidden = [server.get(page, headers=viewer()) for page in (SAVED, CHAIN, "/deltaworks/")]
    assert "players" not in listed.text
    assert [answer.status_code for answer in hidden] == [404, 404, 200]
    assert "players" not in hidden[-1].text
