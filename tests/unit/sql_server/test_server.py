"""The SQL server with a real client: ADBC's driver for Flight SQL."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from adbc_driver_flightsql import dbapi
from pyarrow import flight

from deltaworks.control import paths
from deltaworks.specs.catalog import Catalog
from deltaworks.sql_server import messages
from deltaworks.sql_server.process import OpenServer
from deltaworks.tables.lake import Lake
from deltaworks.testing import append_rows
from tests.unit.sql_server.sql_harness import (
    PASSWORD,
    TOKEN,
    append_orders,
    connect,
    query,
    serving,
    sql_project,
    write_users,
)
from tests.waiting import eventually

ENDLESS = "SELECT count(*) FROM range(100000000) AS a, range(1000000) AS b WHERE a.range % 7 = b.range % 11"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    limits = {"rows": 5_000, "queries": 4, "queries_per_user": 2, "memory": "64MiB"}
    return sql_project(tmp_path_factory.mktemp("sql"), limits=limits)


@pytest.fixture(scope="module")
def server(catalog: Catalog) -> Iterator[OpenServer]:
    with serving(catalog) as opened:
        yield opened


@pytest.fixture
def login(server: OpenServer) -> Iterator[tuple[flight.FlightClient, flight.FlightCallOptions]]:
    """A client of bare Flight, logged in as sam."""
    client = flight.connect(server.url)
    yield client, flight.FlightCallOptions(headers=[client.authenticate_basic_token("sam", PASSWORD)])
    client.close()


def test_tables_and_views_have_the_names_of_the_command(server: OpenServer) -> None:
    assert query(server, "SELECT count(*) AS n, sum(amount) AS total FROM shop.orders").to_pylist() == [
        {"n": 100, "total": Decimal("4950.00")}
    ]
    assert query(server, 'SELECT min(id) AS id FROM "lake"."shop"."large_orders"').to_pylist() == [{"id": 51}]


@pytest.mark.integration
def test_a_query_reads_the_newest_commit_and_new_columns(tmp_path: Path) -> None:
    catalog = sql_project(tmp_path)
    with serving(catalog) as server:
        count = "SELECT count(*) AS n FROM shop.orders"
        assert query(server, count).to_pylist() == [{"n": 100}]
        append_orders(catalog, range(100, 110), number=2)
        assert query(server, count).to_pylist() == [{"n": 110}]
        with pytest.raises(dbapi.Error, match=r"shop\.refunds is declared but does not exist yet"):
            query(server, "SELECT * FROM shop.refunds")
        append_rows(Lake(catalog.environment.lake), paths.table("shop", "refunds"), [{"id": 1}])
        assert query(server, "SELECT * FROM shop.refunds").to_pylist() == [{"id": 1}]


def test_a_planned_query_reads_the_version_of_its_plan(
    server: OpenServer, catalog: Catalog, login: tuple[flight.FlightClient, flight.FlightCallOptions]
) -> None:
    client, options = login
    text = "SELECT count(*) AS n FROM people.visits"
    client.close()
    client = flight.connect(server.url)
    options = flight.FlightCallOptions(headers=[client.authenticate_basic_token("ana", PASSWORD)])
    command = messages.encode("CommandStatementQuery", query=text)
    info = client.get_flight_info(flight.FlightDescriptor.for_command(command), options)
    visit = [{"person": TOKEN, "page": "/late", "at": dt.datetime(2026, 3, 2, tzinfo=dt.UTC)}]
    append_rows(Lake(catalog.environment.lake), paths.table("people", "visits"), visit, number=2)
    assert client.do_get(info.endpoints[0].ticket, options).read_all().to_pylist() == [{"n": 1}]
    assert query(server, text, user="ana").to_pylist() == [{"n": 2}]
    client.close()


def test_a_user_reads_the_pipelines_of_its_roles_only(server: OpenServer) -> None:
    assert query(server, "SELECT count(*) AS n FROM people.visits", user="pia").num_rows == 1
    for text in ("SELECT * FROM people.visits", "SELECT * FROM nothing.visits", "DESCRIBE people.visits"):
        with pytest.raises(dbapi.Error, match="SQL_ACCESS_DENIED"):
            query(server, text)
    text = "SELECT DISTINCT table_schema AS name FROM information_schema.tables WHERE table_catalog = 'lake'"
    assert query(server, text).to_pylist() == [{"name": "shop"}]
    with connect(server) as connection:
        objects = connection.adbc_get_objects(depth="tables").read_all().to_pylist()
    assert [schema["db_schema_name"] for schema in objects[0]["catalog_db_schemas"]] == ["shop"]


def test_a_ticket_gives_no_more_than_the_roles_of_its_user_when_it_is_used(tmp_path: Path) -> None:
    command = messages.encode("CommandStatementQuery", query="SELECT person, page FROM people.visits")
    with serving(sql_project(tmp_path)) as server, flight.connect(server.url) as client:
        options = flight.FlightCallOptions(headers=[client.authenticate_basic_token("pia", PASSWORD)])

        def planned() -> flight.Ticket:
            return client.get_flight_info(flight.FlightDescriptor.for_command(command), options).endpoints[0].ticket

        tickets = [planned() for _ in range(3)]
        assert client.do_get(tickets[0], options).read_all().to_pylist() == [{"person": TOKEN, "page": "/home"}]
        write_users(tmp_path, {"pia": ["analyst"]})
        server.users.reload()
        assert client.do_get(tickets[1], options).read_all().to_pylist() == [{"person": None, "page": "/home"}]
        write_users(tmp_path, {"pia": ["seller"]})
        server.users.reload()
        with pytest.raises(flight.FlightError, match="SQL_ACCESS_DENIED"):
            client.do_get(tickets[2], options).read_all()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT person, page FROM people.visits WHERE page = '/home'",
        "SELECT who AS person, note AS page FROM people.visitors",
        "SELECT raw AS person, raw AS page FROM people.quarantine",
    ],
)
def test_personal_columns_are_null_without_the_role(server: OpenServer, text: str) -> None:
    (shown,) = query(server, text, user="pia").to_pylist()
    assert TOKEN in shown["person"]
    hidden = query(server, text, user="ana")
    assert hidden.schema.field("person").type == pa.string()
    assert [row["person"] for row in hidden.to_pylist()] == [None]
    assert TOKEN not in str(hidden.to_pylist())


@pytest.mark.parametrize(
    "condition", ["person LIKE 'p1_%'", f"person = '{TOKEN}'", "person IS NOT NULL", "length(person) = 29"]
)
def test_personal_columns_cannot_be_found_by_conditions(server: OpenServer, condition: str) -> None:
    assert query(server, f"SELECT count(*) AS n FROM people.visits WHERE {condition}", user="ana").to_pylist() == [
        {"n": 0}
    ]


def test_prepared_statements_take_parameters(server: OpenServer) -> None:
    text = "SELECT id FROM shop.orders WHERE id > ? AND shop = ? AND sold_at >= ? ORDER BY id LIMIT 2"
    began = dt.datetime(2026, 3, 1, 1, tzinfo=dt.UTC)
    assert query(server, text, parameters=[5, "a", began]).to_pylist() == [{"id": 60}, {"id": 62}]
    assert query(server, "SELECT ? AS x, ? + 1 AS y", parameters=["u", 3]).to_pylist() == [{"x": "u", "y": 4}]
    with connect(server) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM shop.orders WHERE shop = ?", ["'; DROP TABLE orders; --"])
        assert cursor.fetchall() == [(0,)]
        with pytest.raises(dbapi.Error, match="Bind one row"):
            cursor.execute("SELECT ?", pa.table({"a": [1, 2]}))


def test_pandas_and_polars_read_a_result(server: OpenServer) -> None:
    text = "SELECT id, amount, shop, sold_at FROM shop.orders ORDER BY id"
    with connect(server) as connection:
        frame = pl.read_database(text, connection)
        with connection.cursor() as cursor:
            cursor.execute(text)
            pandas = cursor.fetch_df()
    assert frame["id"].to_list() == pandas["id"].to_list() == list(range(100))
    assert frame.schema["sold_at"] == pl.Datetime("us", "UTC")


def test_clients_see_catalog_schemas_tables_and_columns(server: OpenServer) -> None:
    with connect(server) as connection:
        assert connection.adbc_get_table_types() == ["TABLE", "VIEW"]
        assert connection.adbc_get_info()["vendor_name"] == "Deltaworks"
        assert connection.adbc_get_table_schema("orders", db_schema_filter="shop").names == [
            *("id", "amount", "shop", "sold_at")
        ]
        (catalog,) = connection.adbc_get_objects(depth="all").read_all().to_pylist()
    (schema,) = catalog["catalog_db_schemas"]
    kinds = {table["table_name"]: table["table_type"] for table in schema["db_schema_tables"]}
    assert catalog["catalog_name"] == "lake"
    assert kinds == {"large_orders": "VIEW", "orders": "TABLE"}


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("SELECT * FROM shop.order", r"SQL_REFUSED.*Did you mean 'orders'"),
        ("SELECT nothing FROM shop.orders", r"SQL_REFUSED.*nothing"),
        ("SELECT 1 / 'x'::INT", "SQL_REFUSED"),
        ("SELECT * FROM range(6000)", r"SQL_LIMIT_EXCEEDED.*5,000 rows"),
        ("SELECT count(DISTINCT range::VARCHAR || repeat('x', 200)) FROM range(5000000)", r"SQL_LIMIT.*64 MiB"),
        ("COPY shop.orders TO '/tmp/x'", "SQL_REFUSED"),
    ],
)
def test_errors_have_condition_and_next_step_and_no_traceback(server: OpenServer, text: str, condition: str) -> None:
    with pytest.raises(dbapi.Error, match=condition) as caught:
        query(server, text)
    assert "Traceback" not in str(caught.value)
    assert ".py" not in str(caught.value)


def test_a_session_is_clean_after_a_failure(server: OpenServer) -> None:
    for _ in range(3):
        with pytest.raises(dbapi.Error):
            query(server, "SELECT * FROM range(6000)")
        assert query(server, "SELECT count(*) AS n FROM shop.orders").to_pylist() == [{"n": 100}]


def test_a_cancelled_query_stops(server: OpenServer) -> None:
    with connect(server) as connection, connection.cursor() as cursor:
        cancelled = threading.Thread(
            target=lambda: (eventually(lambda: server.engine.running == 1, "it runs"), cursor.adbc_cancel())
        )
        cancelled.start()
        with pytest.raises(dbapi.Error):
            _run(cursor, ENDLESS)
        cancelled.join(60)
        eventually(lambda: server.engine.running == 0, "the query has stopped")


@pytest.mark.integration
def test_a_query_ends_with_its_time(tmp_path: Path) -> None:
    with serving(sql_project(tmp_path, limits={"seconds": 1})) as server:
        with pytest.raises(dbapi.Error, match=r"SQL_LIMIT_EXCEEDED.*longer than 1 s"):
            query(server, ENDLESS)
        eventually(lambda: server.engine.running == 0, "the query has stopped")


@pytest.mark.integration
def test_a_client_that_does_not_read_gives_its_slot_back(tmp_path: Path) -> None:
    with serving(sql_project(tmp_path, limits={"seconds": 5, "queries": 1, "queries_per_user": 1})) as server:
        client = flight.connect(server.url)
        options = flight.FlightCallOptions(headers=[client.authenticate_basic_token("sam", PASSWORD)])
        command = messages.encode("CommandStatementQuery", query="SELECT repeat('x', 1000) FROM range(9000000)")
        info = client.get_flight_info(flight.FlightDescriptor.for_command(command), options)
        reader = client.do_get(info.endpoints[0].ticket, options)
        assert query(server, "SELECT 1 AS n").to_pylist() == [{"n": 1}]
        with pytest.raises(flight.FlightServerError, match="SQL_LIMIT_EXCEEDED"):
            reader.read_all()
        client.close()


@pytest.mark.integration
def test_twenty_clients_are_served_at_once(server: OpenServer) -> None:
    answers = list[object]()

    def read(number: int) -> None:
        text = f"SELECT {number} AS number, count(*) AS n FROM shop.orders"
        answers.append(query(server, text, user="sam" if number % 2 else "ana").to_pylist()[0])

    threads = [threading.Thread(target=read, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert sorted(answers, key=str) == sorted(({"number": number, "n": 100} for number in range(20)), key=str)


@pytest.mark.parametrize("kind", ["TicketStatementQuery", "CommandPreparedStatementQuery"])
def test_a_handle_of_another_user_or_a_forged_one_is_unknown(
    server: OpenServer, login: tuple[flight.FlightClient, flight.FlightCallOptions], kind: str
) -> None:
    client, options = login
    other = flight.connect(server.url)
    as_ana = flight.FlightCallOptions(headers=[other.authenticate_basic_token("ana", PASSWORD)])
    if kind == "TicketStatementQuery":
        command = messages.encode("CommandStatementQuery", query="SELECT 1")
        info = other.get_flight_info(flight.FlightDescriptor.for_command(command), as_ana)
        ticket = info.endpoints[0].ticket
    else:
        request = messages.encode("ActionCreatePreparedStatementRequest", query="SELECT 1")
        (result,) = other.do_action(flight.Action("CreatePreparedStatement", request), as_ana)
        _, created = messages.decode(result.body.to_pybytes())
        handle = created.prepared_statement_handle
        ticket = flight.Ticket(messages.encode(kind, prepared_statement_handle=handle))
    assert other.do_get(ticket, as_ana).read_all().num_rows == 1
    field = "statement_handle" if kind == "TicketStatementQuery" else "prepared_statement_handle"
    forged = flight.Ticket(messages.encode(kind, **{field: b"\x00" * 16}))
    for stolen in (ticket, forged):
        with pytest.raises(flight.FlightServerError, match="SQL_HANDLE_UNKNOWN"):
            client.do_get(stolen, options).read_all()
    other.close()


@pytest.mark.parametrize(
    "data", [b"", b"x", b"\xff" * 100, b"\x0a\x05hello", messages.encode("CommandStatementUpdate")]
)
def test_malformed_requests_are_refused(
    login: tuple[flight.FlightClient, flight.FlightCallOptions], data: bytes
) -> None:
    client, options = login
    descriptor = flight.FlightDescriptor.for_command(data)
    requests = [
        lambda: client.do_get(flight.Ticket(data), options).read_all(),
        lambda: client.get_flight_info(descriptor, options),
        lambda: list(client.do_action(flight.Action("CreatePreparedStatement", data), options)),
        lambda: list(client.do_action(flight.Action("CancelQuery", data), options)),
        lambda: list(client.do_action(flight.Action("BeginTransaction", data), options)),
    ]
    for request in requests:
        with pytest.raises(flight.FlightError) as caught:
            request()
        assert "Traceback" not in str(caught.value)
    # pyarrow reports errors of this request in its own way.
    with pytest.raises(pa.ArrowException, match="SQL_REFUSED"):
        client.get_schema(descriptor, options)


def test_uploads_are_refused(login: tuple[flight.FlightClient, flight.FlightCallOptions]) -> None:
    client, options = login
    descriptor = flight.FlightDescriptor.for_command(messages.encode("CommandStatementUpdate", query="DELETE FROM x"))
    rows = pa.table({"a": [1]})
    with pytest.raises(flight.FlightServerError, match="SQL_REFUSED"):
        _upload(client, descriptor, rows, options)


def test_nothing_is_answered_without_a_login(server: OpenServer) -> None:
    client = flight.connect(server.url)
    command = messages.encode("CommandGetCatalogs")
    for options in (None, flight.FlightCallOptions(headers=[(b"authorization", b"Bearer x")])):
        with pytest.raises(flight.FlightUnauthenticatedError, match="SQL_LOGIN_REFUSED"):
            client.do_get(flight.Ticket(command), options).read_all()
        with pytest.raises(flight.FlightUnauthenticatedError, match="SQL_LOGIN_REFUSED"):
            list(client.do_action(flight.Action("CreatePreparedStatement", b""), options))
    client.close()


def test_errors_carry_their_condition_for_programs(
    login: tuple[flight.FlightClient, flight.FlightCallOptions],
) -> None:
    client, options = login
    command = messages.encode("CommandStatementQuery", query="SELECT * FROM people.visits")
    with pytest.raises(flight.FlightUnauthorizedError) as caught:
        client.get_flight_info(flight.FlightDescriptor.for_command(command), options)
    assert json.loads(caught.value.extra_info)["condition"] == "SQL_ACCESS_DENIED"


@pytest.mark.integration
def test_the_log_has_each_query_and_only_its_role_reads_it(tmp_path: Path) -> None:
    catalog = sql_project(tmp_path)
    with serving(catalog) as server:
        query(server, "SELECT id FROM shop.orders LIMIT 3")
        with pytest.raises(dbapi.Error):
            query(server, "SELECT * FROM people.visits")
    with serving(catalog) as server:
        text = "SELECT user, statement, tables, outcome, condition, rows FROM deltaworks.queries ORDER BY started_at"
        assert query(server, text, user="ana").to_pylist() == [
            {
                "user": "sam",
                "statement": "SELECT id FROM shop.orders LIMIT 3",
                "tables": ["shop.orders"],
                "outcome": "succeeded",
                "condition": "",
                "rows": 3,
            },
            {
                "user": "sam",
                "statement": "SELECT * FROM people.visits",
                "tables": [],
                "outcome": "refused",
                "condition": "SQL_ACCESS_DENIED",
                "rows": 0,
            },
        ]
        with pytest.raises(dbapi.Error, match="SQL_ACCESS_DENIED"):
            query(server, "SELECT * FROM deltaworks.queries")


def _run(cursor: dbapi.Cursor, text: str) -> None:
    cursor.execute(text)
    cursor.fetchall()


def _upload(
    client: flight.FlightClient,
    descriptor: flight.FlightDescriptor,
    rows: pa.Table,
    options: flight.FlightCallOptions,
) -> None:
    writer, reader = client.do_put(descriptor, rows.schema, options)
    writer.write_table(rows)
    writer.done_writing()
    reader.read()
    writer.close()
