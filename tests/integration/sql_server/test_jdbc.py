"""The SQL server with Arrow's JDBC driver, as DBeaver, Tableau and other BI tools use it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from deltaworks.build.toolchain import find_java, find_maven
from tests.unit.sql_server.sql_harness import PASSWORD, serving, sql_project

pytestmark = pytest.mark.integration
DRIVER = "org.apache.arrow:flight-sql-jdbc-driver:18.3.0"
CLIENT = Path(__file__).with_name("JdbcClient.java")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    command = [str(find_maven()), "-q", "-B", "dependency:copy", f"-Dartifact={DRIVER}", f"-DoutputDirectory={folder}"]
    copied = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    jars = list(folder.glob("*.jar"))
    if copied.returncode or not jars:
        pytest.skip(f"Maven cannot fetch {DRIVER}: {copied.stdout[-300:]}")
    return jars[0]


def test_a_java_program_lists_reads_prepares_and_fails(tmp_path: Path, driver: Path) -> None:
    with serving(sql_project(tmp_path)) as server:
        url = f"jdbc:arrow-flight-sql://{server.url.partition('://')[2]}/?useEncryption=false"
        java = [str(find_java().home / "bin" / "java"), "--add-opens=java.base/java.nio=ALL-UNNAMED", "-Xmx256m"]
        command = [*java, "-cp", str(driver), str(CLIENT), url, "ana", PASSWORD]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    lines = [line.partition("\t") for line in done.stdout.splitlines()]
    answers = {name: value.strip() for name, _, value in lines}
    failures = [value for name, _, value in lines if name == "failure"]
    expected = {
        "product": "Deltaworks",
        "catalogs": "lake |",
        "schemas": "deltaworks | people | shop |",
        "table types": "TABLE | VIEW |",
        "tables": "shop large_orders VIEW | shop orders TABLE |",
        "views": "shop large_orders VIEW |",
        "columns": "id -5 BIGINT 19 0 | amount 3 DECIMAL 12 2 | shop 12 VARCHAR 65536 null"
        " | sold_at 2014 TIMESTAMP_WITH_TIMEZONE 26 6 |",
        "primary keys": "",
        "imported keys": "",
        "failing properties": "",
        "rows": "0 0.00 a | 1 1.00 b | 2 2.00 a |",
        "personal": "null /home |",
        "quoted": "100 |",
        "prepared 90": "92 | 94 | 96 |",
        "prepared 95": "96 |",
        "parameters": "4",
        "limit": "0 | 1 |",
    }
    assert {name: answers.get(name) for name in expected} == expected
    assert "Did you mean 'orders'?" in failures[0]
    assert "write one SELECT" in failures[1]
    assert "read_text" in failures[2]
    assert "SQL_LOGIN_REFUSED" in answers["wrong password"]
