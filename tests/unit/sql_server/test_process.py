"""The process of the SQL server: lease, heartbeat, health, changed files, and the declaration."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from adbc_driver_flightsql import dbapi

from deltaworks.control import paths
from deltaworks.control.health.heartbeat import StopFlag
from deltaworks.control.health.report import check_subject, subjects
from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError
from deltaworks.operations.continuous_jobs import _parse_job_name
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.sql_server import SqlListenSpec
from deltaworks.sql_server import process
from deltaworks.sql_server.process import SqlServerProcess, open_own_server, open_server
from deltaworks.testing import present
from tests.unit.sql_server.sql_harness import PASSWORD, sql_project, write_users
from tests.waiting import eventually


@contextmanager
def running(catalog: Catalog) -> Iterator[SqlServerProcess]:
    """The process in a thread of this one, stopped by its flag."""
    server = SqlServerProcess(catalog)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.url != "", "it listens")
        yield server
    finally:
        flag = StopFlag(open_objects(catalog.environment.lake), paths.stop_request(paths.sql_server_control()))
        flag.set(by="me", reason="over")
        thread.join(120)
        assert not thread.is_alive()


def connects(server: SqlServerProcess, user: str) -> bool:
    try:
        with dbapi.connect(server.url, db_kwargs={"username": user, "password": PASSWORD}, autocommit=True):
            return True
    except dbapi.Error:
        return False


@pytest.mark.integration
def test_it_serves_with_a_heartbeat_reads_changed_users_and_stops_by_its_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "CHECK_INTERVAL_SECONDS", 0.1)
    catalog = sql_project(tmp_path)
    objects = open_objects(catalog.environment.lake)
    (subject,) = [item for item in subjects(catalog) if item.kind == "sql_server"]
    assert (subject.dag_id, subject.argument) == ("deltaworks__sql_server", "sql_server")
    with running(catalog) as server:
        assert connects(server, "sam")
        assert not connects(server, "eve")
        eventually(lambda: check_subject(subject, objects).verdict.state == "healthy", "its heartbeat is written")
        write_users(tmp_path, {"eve": ["seller"]})
        eventually(lambda: connects(server, "eve"), "the new user may log in")
        assert not connects(server, "sam")
    assert check_subject(subject, objects).verdict.state == "stopped"


@pytest.mark.parametrize("name", ["sql_server", "deltaworks__sql_server"])
def test_it_is_stopped_and_started_by_name(tmp_path: Path, name: str) -> None:
    assert _parse_job_name(sql_project(tmp_path), name) == ("sql_server", "sql_server")


@pytest.mark.integration
def test_a_server_of_ones_own_needs_no_declaration_and_writes_nothing(tmp_path: Path) -> None:
    catalog = sql_project(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "lake").rglob("*")}
    opened, password = open_own_server(catalog, SqlListenSpec(port=0))
    try:
        login = {"username": "deltaworks", "password": password}
        with dbapi.connect(opened.url, db_kwargs=login, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM shop.orders")
            assert cursor.fetchall() == [(100,)]
    finally:
        opened.close()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "lake").rglob("*")} == before


@pytest.mark.integration
def test_a_port_in_use_is_an_error_with_its_number(tmp_path: Path) -> None:
    catalog = sql_project(tmp_path)
    opened, _ = open_own_server(catalog, SqlListenSpec(port=0))
    try:
        with pytest.raises(ConfigError, match=f"SQL_SERVER_ADDRESS_UNAVAILABLE.*{opened.server.port}"):
            open_own_server(catalog, SqlListenSpec(port=opened.server.port))
    finally:
        opened.close()


@pytest.mark.parametrize("content", [None, "no pem"])
def test_an_invalid_certificate_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "server.pem"
    if content is not None:
        file.write_text(content)
    listen = {"port": 0, "tls": {"certificate": str(file), "key": str(file)}}
    catalog = sql_project(tmp_path, listen=listen)
    with pytest.raises(ConfigError, match=r"SQL_SERVER_CERTIFICATE_INVALID.*server\.pem"):
        open_server(catalog, present(catalog.environment.sql_server))


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ({"listen": {"host": "0.0.0.0"}}, "passwords in plain text: declare tls"),
        ({"listen": {"plaintext": True, "tls": {"certificate": "a", "key": "b"}}}, "plaintext has no effect"),
        ({"roles": {"seller": {"pipelines": ["shp"]}}}, "unknown pipeline 'shp'; did you mean 'shop'"),
        ({"limits": {"second": 1}}, "seconds"),
    ],
)
def test_a_wrong_declaration_is_rejected_with_its_key(tmp_path: Path, section: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match="SPEC_INVALID") as caught:
        sql_project(tmp_path, **section)
    assert problem in str(caught.value)
    assert "local.yaml" in str(caught.value)


@pytest.mark.parametrize("listen", [{"host": "::1"}, {"host": "localhost"}, {"host": "0.0.0.0", "plaintext": True}])
def test_plain_text_needs_this_machine_or_a_declaration(listen: dict[str, Any]) -> None:
    assert SqlListenSpec.model_validate(listen).tls is None


@pytest.mark.integration
def test_a_server_with_tls_needs_its_certificate(tmp_path: Path) -> None:
    certificate, key = tmp_path / "server.crt", tmp_path / "server.key"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    tls = {"certificate": str(certificate), "key": str(key)}
    catalog = sql_project(tmp_path, listen={"host": "localhost", "port": 0, "tls": tls})
    opened = open_server(catalog, present(catalog.environment.sql_server))
    try:
        assert opened.url.startswith("grpc+tls://localhost:")
        login = {"username": "sam", "password": PASSWORD}
        trusted = {**login, "adbc.flight.sql.client_option.tls_root_certs": certificate.read_text()}
        with dbapi.connect(opened.url, db_kwargs=trusted, autocommit=True) as connection:
            assert connection.adbc_get_table_types() == ["TABLE", "VIEW"]
        for url in (opened.url, opened.url.replace("grpc+tls", "grpc")):
            with pytest.raises(dbapi.Error):
                dbapi.connect(url, db_kwargs=login, autocommit=True)
    finally:
        opened.close()
