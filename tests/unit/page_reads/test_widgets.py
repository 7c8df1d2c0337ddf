"""Widgets are queried once per change, with bounded results that have no personal values."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.page_reads import widgets
from deltaworks.page_reads.widgets import WidgetReader, serve
from deltaworks.privacy.tokens.envelope_encryption import TOKEN_LENGTH, TOKEN_PREFIX
from deltaworks.specs.catalog import Catalog
from deltaworks.tables.query import connect
from deltaworks.testing import present
from tests.unit.maintenance.table_data import SHOP, project
from tests.waiting import PATIENCE_SECONDS

POPULAR = ("shop", "popular")
TOKEN = TOKEN_PREFIX + "a" * (TOKEN_LENGTH - len(TOKEN_PREFIX))
SQL = "SELECT title, count(*) AS viewers FROM plays GROUP BY title ORDER BY viewers DESC, title"
PLAYS = """\
tables:
  - name: plays
    when: {name: play}
    columns: [{name: title, path: title, type: string}, {name: email, path: email, type: string}]
"""
PRIVACY = "private: [{path: email, keep: network}]\n"


def views(widget: str = "{every_seconds: 1}", more: str = "") -> str:
    return f"views:\n  - {{name: popular, sql: popular.sql, reads: [plays], widget: {widget}}}\n{more}"


def shop(folder: Path, *, sql: str = SQL, declared: str = "", privacy: str = "") -> Catalog:
    return project(folder, sql={"popular.sql": sql}, shop=SHOP + privacy + PLAYS + (declared or views()))


def play(catalog: Catalog, *titles: str, mode: Any = "append") -> None:
    rows = pa.table({"title": pa.array(titles, pa.string()), "email": pa.array(["a@b.nl"] * len(titles), pa.string())})
    write_deltalake(catalog.environment.lake.uri(paths.table("shop", "plays")), rows, mode=mode)


class Watching:
    """A reader of one widget for which no time has to pass."""

    def __init__(self, catalog: Catalog) -> None:
        self.reader = WidgetReader(lambda pipeline: catalog)
        self.reader.watch({POPULAR: 0})

    def messages(self) -> list[dict[str, Any]]:
        for state in self.reader._states.values():
            state.due_at = 0.0
        return self.reader.read_due()

    def one(self) -> dict[str, Any]:
        (message,) = self.messages()
        return message


def titles_of(message: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [(row["title"], row["viewers"]) for row in message["data"]["rows"]]


@pytest.fixture(autouse=True)
def _without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widgets, "project_root", lambda: tmp_path)


def test_a_view_is_queried_once_per_change_of_its_tables(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    play(catalog, "a", "a", "b")
    watching = Watching(catalog)

    first = watching.one()
    assert [watching.messages() for _ in range(3)] == [[], [], []]
    assert (titles_of(first), watching.reader.queries) == ([("a", 2), ("b", 1)], 1)

    play(catalog, "b", "b")
    second = watching.one()
    assert (titles_of(second), watching.reader.queries) == ([("b", 3), ("a", 2)], 2)
    assert second["id"] != first["id"]
    assert second["data"]["columns"] == [{"name": "title", "number": False}, {"name": "viewers", "number": True}]


def test_equal_rows_have_the_same_id_in_every_process_and_are_sent_once(tmp_path: Path) -> None:
    catalog = shop(tmp_path, sql="SELECT title, count(DISTINCT title) AS viewers FROM plays GROUP BY title")
    play(catalog, "a", "b")
    here, there = Watching(catalog), Watching(catalog)
    first = here.one()

    play(catalog, "b", "a")  # a change of the table and none of the result

    assert here.messages() == []
    assert here.reader.queries == 2
    assert there.one()["id"] == first["id"]


def test_a_widget_that_is_added_again_is_sent_again(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    play(catalog, "a")
    watching = Watching(catalog)
    first = watching.one()

    watching.reader.watch({POPULAR: 0.5})

    assert watching.reader.read_due()[0]["id"] == first["id"]


def test_a_view_that_uses_the_time_is_queried_without_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = shop(tmp_path, sql="SELECT title, epoch_us(now()) AS viewers FROM plays")
    play(catalog, "a")
    watching = Watching(catalog)
    first = watching.one()
    monkeypatch.setattr(widgets, "_REQUERY_SECONDS", 0.0)

    assert titles_of(watching.one()) != titles_of(first)


def test_a_view_is_queried_at_most_once_in_its_interval(tmp_path: Path) -> None:
    catalog = shop(tmp_path, declared=views("{every_seconds: 3600}"))
    play(catalog, "a")
    reader = WidgetReader(lambda pipeline: catalog)
    reader.watch({POPULAR: 0})
    assert len(reader.read_due()) == 1

    play(catalog, "b")

    assert (reader.read_due(), reader.queries) == ([], 1)
    assert (reader.seconds_until_due or 0) > 3000


@pytest.mark.parametrize("source", ["read_text('{file}')", "'{file}'", "read_csv('{file}')"])
def test_a_view_reads_no_files(tmp_path: Path, source: str) -> None:
    (tmp_path / "secret.csv").write_text("secret\nhidden\n")
    read = source.replace("{file}", str(tmp_path / "secret.csv"))
    catalog = shop(tmp_path, sql=f"SELECT s::VARCHAR AS title, 1 AS viewers FROM plays, {read} AS s")
    play(catalog, "a")

    message = Watching(catalog).one()

    assert "hidden" not in json.dumps(message)
    assert "problem" in message


#: A statement with which DuckDB's parser never ends, while it holds the interpreter's lock.
HANGING = """\
import duckdb, sys
from deltaworks.page_reads.widgets import name_and_limit
with name_and_limit(int(sys.argv[1]), ("shop", "popular"), seconds=0.2):
    duckdb.connect().execute("with " + "x as (with " * 40)
"""


def test_a_read_that_cannot_be_interrupted_ends_the_process_and_names_its_widget() -> None:
    with tempfile.TemporaryFile() as file:
        ended = subprocess.run(
            [sys.executable, "-c", HANGING, f"{file.fileno()}"],
            pass_fds=(file.fileno(),),
            timeout=PATIENCE_SECONDS / 2,
            check=False,
        )
        name = os.pread(file.fileno(), 100, 0).decode()

    assert (ended.returncode, name) == (-signal.SIGALRM, "shop popular")


def test_only_the_views_that_a_widget_reads_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = """\
  - {name: by_title, sql: by_title.sql, reads: [plays]}
  - {name: other, sql: by_title.sql, reads: [plays]}
"""
    files = {"popular.sql": "SELECT * FROM by_title", "by_title.sql": SQL}
    declared = views(more=more).replace("reads: [plays], widget", "reads: [by_title], widget")
    catalog = project(tmp_path, sql=files, shop=SHOP + PLAYS + declared)
    play(catalog, "a")
    bound: list[str] = []

    def spying(catalog: Catalog, **options: Any) -> Any:
        bound.extend(view.name for view in catalog.pipeline("shop").views)
        return connect(catalog, **options)

    monkeypatch.setattr(widgets, "connect", spying)

    assert titles_of(Watching(catalog).one()) == [("a", 1)]
    assert sorted(bound) == ["by_title", "popular"]


def test_a_table_that_is_replaced_is_read(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    play(catalog, "a")
    watching = Watching(catalog)
    watching.one()

    play(catalog, "z", mode="overwrite")

    assert titles_of(watching.one()) == [("z", 1)]


def test_problems_are_sent_once_and_rows_after_them_in_any_case(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    watching = Watching(catalog)

    assert "Table plays does not exist yet" in watching.one()["problem"]
    assert watching.messages() == []
    play(catalog, "a")
    first = watching.one()
    file = catalog.folder("shop") / "popular.sql"
    sql = file.read_text()
    file.write_text("SELECT error('a@b.nl') AS title, 1 AS viewers FROM plays")
    play(catalog)
    assert "problem" in watching.one()
    file.write_text(sql)
    assert watching.one()["id"] == first["id"]


def test_rows_and_bytes_are_bounded(tmp_path: Path) -> None:
    catalog = shop(tmp_path, declared=views("{max_rows: 2}"))
    play(catalog, "a", "b", "c")
    message = Watching(catalog).one()
    assert (titles_of(message), message["data"]["is_truncated"]) == ([("a", 1), ("b", 1)], True)

    wide = ", ".join(f"repeat('é', 250) AS c{number}" for number in range(100))
    large = shop(tmp_path / "large", sql=f"SELECT title, {wide} FROM plays", declared=views("{max_rows: 200}"))
    play(large, "a", "b", "c")
    assert "lower its max_rows" in Watching(large).one()["problem"]
    longer = shop(tmp_path / "longer", sql="SELECT repeat('x', 9000) AS title, 1 AS viewers FROM plays")
    play(longer, "a")
    assert len(Watching(longer).one()["data"]["rows"][0]["title"]) == 300


def test_personal_columns_and_tokens_are_null(tmp_path: Path) -> None:
    sql = f"SELECT title, email, '{TOKEN}' AS best_viewer, count(*) AS viewers FROM plays GROUP BY ALL"
    catalog = shop(tmp_path, sql=sql, privacy=PRIVACY)
    play(catalog, "a")

    assert Watching(catalog).one()["data"]["rows"] == [{"title": "a", "email": None, "best_viewer": None, "viewers": 1}]


def test_a_view_that_declares_no_widget_is_not_shown(tmp_path: Path) -> None:
    declared = views(more="  - {name: secret, sql: popular.sql, reads: [plays]}\n")
    catalog = shop(tmp_path, declared=declared)
    play(catalog, "a")
    reader = WidgetReader(lambda pipeline: catalog)
    reader.watch({("shop", "secret"): 0})

    (message,) = reader.read_due()

    assert "declares no widget 'secret'" in message["problem"]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.lists(st.sampled_from("abc"), max_size=4), max_size=5))
def test_the_last_message_is_always_the_result_of_now(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[str]]
) -> None:
    catalog = shop(tmp_path_factory.mktemp("shop"))
    play(catalog, "a")
    watching, sent, played = Watching(catalog), [], ["a"]
    for titles in [[], *steps]:
        if titles:
            play(catalog, *titles)
            played += titles
        sent += watching.messages()
        counted = {title: played.count(title) for title in played}
        assert titles_of(sent[-1]) == sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    ids = [message["id"] for message in sent]
    assert all(one != following for one, following in pairwise(ids)), "nothing is sent twice"
    assert watching.reader.queries <= 1 + len([titles for titles in steps if titles])


class Typed(io.StringIO):
    """An input whose end waits for an event, but not for ever."""

    def __init__(self, lines: str, until: Any) -> None:
        super().__init__(lines)
        self._until = until
        self.has_ended = False

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]
        yield from self.getvalue().splitlines(keepends=True)
        deadline = time.monotonic() + PATIENCE_SECONDS / 4
        while not self._until() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.has_ended = True


def test_the_process_reads_what_its_input_names_until_it_ends(tmp_path: Path) -> None:
    catalog = shop(tmp_path)
    play(catalog, "a")
    written: list[Mapping[str, Any]] = []

    serve(
        Typed("+ shop none 0\n- shop none 0\n+ shop other 900\n+ shop popular 0\n", lambda: written),
        written.append,
        WidgetReader(lambda _: catalog),
    )

    (message,) = [message for message in written if message["view"] != "none"]
    assert message["view"] == "popular"
    assert json.loads(json.dumps(message))["data"]["rows"] == [{"title": "a", "viewers": 1}]
    assert present(message["data"]["at"])


def test_the_process_ends_some_time_after_its_last_widget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widgets, "_IDLE_SECONDS", 0.05)

    ended: list[bool] = []
    lines = Typed("", lambda: ended)

    serve(lines, lambda message: None, WidgetReader(lambda _: shop(tmp_path)))

    assert not lines.has_ended
    ended.append(True)
