"""Output of commands: no text is interpreted as markup or control characters, and only one module prints."""

from __future__ import annotations

import ast
import contextlib
import csv
import io
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from deltaworks import cli
from deltaworks.cli import output
from deltaworks.cli.commands import command_entries
from deltaworks.control.listing import (
    Cell,
    Listing,
    byte_count_cell,
    count_cell,
    display_width,
    escape_invisible,
    hidden_columns,
    listing_of,
    plain_text,
    wrap,
)
from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import PROJECT_ROOT

HOSTILE = (
    "[/x]",
    "renovate[bot]",
    "[link=http://evil.example]purchase[/link]",
    ":smile:",
    "\x1b]0;pwned\x07\x1b[2Jx",
    "\x9b31mred",
    "abc\u202efdp.exe",
    "one\nOK: nothing is wrong",
    "\u2066left\u2069",
    "lone \ud800 surrogate",
    "a\rb",
)
texts = st.text(max_size=20) | st.sampled_from(HOSTILE)


class Terminal(io.StringIO):
    """Standard output as a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(params=[Terminal, io.StringIO], ids=["terminal", "pipe"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[io.StringIO]:
    monkeypatch.setenv("TERM", "dumb")
    if request.param is Terminal:
        monkeypatch.setenv("COLUMNS", "60")
    else:
        monkeypatch.delenv("COLUMNS", raising=False)
    return request.param


def printed_by(kind: type[io.StringIO], *calls: Callable[[], None]) -> str:
    """Prints with these calls to this kind of standard output; returns the output."""
    with contextlib.redirect_stdout(kind()) as stream:
        for call in calls:
            call()
    return stream.getvalue()


def control_characters(text: str) -> list[str]:
    """Characters that a terminal would interpret or hide; line ends are layout."""
    return [sign for sign in text if unicodedata.category(sign) in {"Cc", "Cf", "Cs", "Zl", "Zp"} and sign != "\n"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=st.lists(st.tuples(texts, texts), min_size=1, max_size=4), layout=st.sampled_from(["table", "blocks"]))
def test_cells_are_neither_markup_nor_control_characters(kind: type[io.StringIO], cells: Any, layout: Any) -> None:
    listing = Listing(("event", "object"), layout=layout)
    for row in cells:
        listing.add(*row)

    shown = printed_by(kind, lambda: output.print_parts([listing, *(name for name, _ in cells)]))

    assert not control_characters(shown)
    for name, key in cells:
        assert "".join(escape_invisible(name).split()) in "".join(shown.split())
        assert kind is Terminal or escape_invisible(key).rstrip() in shown


@pytest.mark.parametrize("text", HOSTILE)
def test_a_line_stays_one_line(kind: type[io.StringIO], text: str) -> None:
    shown = printed_by(kind, lambda: output.print_line(text), lambda: output.print_heading("COND", text))

    assert shown == f"{escape_invisible(text)}\nCOND {escape_invisible(text)}\n"
    assert not control_characters(shown)


@given(text=st.text())
def test_escaped_text_is_printable_and_plain_text_is_unchanged(text: str) -> None:
    shown = escape_invisible(text)

    shown.encode()
    assert not control_characters(shown)
    assert escape_invisible(shown) == shown
    if (
        not control_characters(text)
        and "\n" not in text
        and all(unicodedata.category(sign) not in {"Co", "Cn"} for sign in text)
    ):
        assert shown == text


def test_names_are_complete_in_a_pipe_and_wrapped_on_a_terminal(kind: type[io.StringIO]) -> None:
    listing = Listing(("table", "state"))
    listing.add("github." + "x" * 120, "well")

    shown = printed_by(kind, lambda: output.print_parts([listing]))

    assert ("github." + "x" * 120 in shown) == (kind is io.StringIO)
    assert shown.count("x") == 120, "nothing is cut"
    assert "…" not in shown


#: Names, numbers, paths and sentences as cells have them.
phrases = st.lists(
    st.text(st.characters(categories=["L", "N"], exclude_characters="`"), min_size=1, max_size=14)
    | st.sampled_from(["GOLD_REFRESH_FAILING", "unhealthy", "`deltaworks tables resume games purchase`", "1,204.5"]),
    max_size=25,
).map(" ".join)


@st.composite
def listings(draw: st.DrawFn) -> Listing:
    columns = draw(st.integers(1, 14))
    names = tuple(f"column {number}" for number in range(columns))
    minor = tuple(draw(st.lists(st.sampled_from(names[1:]), unique=True))) if columns > 1 else ()
    details = tuple(draw(st.lists(st.sampled_from(names[1:]), unique=True))) if columns > 1 else ()
    listing = Listing(names, minor=minor, details=details, layout=draw(st.sampled_from(["table", "blocks", "lines"])))
    for _ in range(draw(st.integers(0, 4))):
        listing.add(*(draw(phrases) for _ in names))
    return listing


@settings(max_examples=60, deadline=None)
@given(listing=listings(), width=st.integers(60, 130))
def test_no_line_is_longer_than_the_width_and_no_word_is_broken(listing: Listing, width: int) -> None:
    text = plain_text(listing, width=width)

    assert [line for line in text.split("\n") if display_width(line) > width] == []
    hidden = hidden_columns(listing, width)
    assert set(hidden) <= set(listing.minor)
    words = Counter(text.replace(":", " ").split())
    for row in listing.rows:
        for name, cell in zip(listing.headers, map(escape_invisible, row), strict=True):
            if name not in hidden:
                words.subtract(Counter(word for word in cell.split() if display_width(word) <= 20))
    assert [word for word, count in words.items() if count < 0] == [], "each word of each cell is there, unbroken"


@given(words=st.lists(st.text("abc-/ü漢", min_size=1, max_size=90), max_size=20), width=st.integers(20, 60))
def test_wrapped_text_is_complete_and_fits(words: list[str], width: int) -> None:
    text = " ".join(words)

    lines = wrap(text, width, hanging="  ").split("\n")

    assert "".join("".join(lines).split()) == "".join(words)
    assert all(display_width(line) <= width for line in lines)


def test_a_command_in_backticks_stays_on_one_line() -> None:
    command = "`deltaworks recover files games level_fail`"

    lines = wrap(f"The file is not there any more, so run {command} and wait.", 60).split("\n")

    assert [command in line for line in lines].count(True) == 1


def test_a_long_path_is_broken_behind_separators() -> None:
    path = "s3://lake/pipelines/games/level_fail/event_date=2024-03-06/part-00000-4f3c.parquet"

    assert wrap(path, 60).split("\n") == [
        "s3://lake/pipelines/games/level_fail/event_date=2024-03-06/",
        "part-00000-4f3c.parquet",
    ]


def test_a_pipe_has_one_line_for_each_row_and_no_wide_padding() -> None:
    listing = Listing(("table", "reason", "rows"), details=("reason",), minor=("rows",))
    listing.add("events", "x " * 200, 1)
    listing.add("crash", "nothing to do", 2)

    lines = plain_text(listing).split("\n")

    assert len(lines) == 3
    assert len(lines[2]) < 80


def test_wide_prints_all_columns_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    listing = Listing(("table", "run", "reason"), details=("reason",), minor=("run",))
    listing.add("events", "scheduled_by_maintenance__manual__2026-11-28T21:08:00+00:00", "files are small " * 5)

    narrow = printed_by(io.StringIO, lambda: output.print_parts([listing]))
    wide = printed_by(io.StringIO, lambda: output.print_parts([listing], output_format="wide"))

    assert "manual__" not in narrow
    assert narrow.endswith("(--wide also shows: run)\n")
    assert wide.splitlines()[1].split()[:2] == ["events", "scheduled_by_maintenance__manual__2026-11-28T21:08:00+00:00"]
    assert len(wide.splitlines()) == 2


def declared_listings() -> Iterator[tuple[str, Listing]]:
    """The listings that the product declares with literal columns, with rows of long cells."""
    for path in modules_of_commands():
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "Listing(" in text else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Listing" and node.args:
                values = {keyword.arg: keyword.value for keyword in node.keywords}
                named = {name: values[name] for name in ("layout", "details", "minor") if name in values}
                try:
                    headers = ast.literal_eval(node.args[0])
                    listing = Listing(headers, **{name: ast.literal_eval(value) for name, value in named.items()})
                except ValueError:
                    continue
                long = ("video_qos.latency_histogram_per_minute", "manual__2026-11-28T21:08:00.123456+00:00")
                for sentence in ("", "The file part-00000.parquet is not there although the log names it. " * 3):
                    listing.add(*(sentence if n % 3 == 2 else long[n % 3] for n in range(len(headers))))
                yield f"{path.name}:{node.lineno}", listing


@pytest.mark.parametrize("width", [80, 120])
def test_every_declared_listing_fits_terminals(width: int) -> None:
    found = dict(declared_listings())

    assert len(found) > 40
    for place, listing in found.items():
        text = plain_text(listing, width=width)
        hidden = hidden_columns(listing, width)
        assert [line for line in text.split("\n") if len(line) > width] == [], place
        shown = [cell for row in listing.rows for name, cell in zip(listing.headers, row, strict=True)
                 if name not in hidden]  # fmt: skip
        assert {word for cell in shown for word in cell.split()} <= {word.removesuffix(":") for word in text.split()}, (
            place
        )


def test_columns_that_do_not_exist_cannot_be_folded() -> None:
    with pytest.raises(ValueError, match="there is no column state"):
        Listing(("a", "b"), details=("state",))


@given(rows=st.lists(st.tuples(st.text(), st.integers(), st.none() | st.booleans()), max_size=4))
def test_json_and_csv_have_every_row_with_its_values(rows: Any) -> None:
    listing = Listing(("event name", "rows", "held"))
    for name, number, held in rows:
        listing.add(name, count_cell(number), held)

    records = listing.as_records()

    assert records == [{"event_name": name, "rows": number, "held": held} for name, number, held in rows]
    read = list(csv.DictReader(io.StringIO(output.csv_text(listing))))
    assert [(row["event_name"], row["rows"]) for row in read] == [
        (escape_invisible(name), str(n)) for name, n, _ in rows
    ]
    assert json.loads(output.json_text(records)) == records
    assert not control_characters(output.json_text(records))


def test_a_cell_has_a_text_for_people_and_a_value_for_programs() -> None:
    listing = Listing(("rows", "size", "state"))
    listing.add(count_cell(12_345), byte_count_cell(2_048), Cell(True, "yes"))

    assert listing.rows == [("12,345", "2.0 KiB", "yes")]
    assert listing.as_records() == [{"rows": 12_345, "size": 2_048, "state": True}]


@pytest.mark.parametrize("headers", [("a day", "a_day"), ("", "note"), ("size", "Size")])
def test_duplicate_columns_are_rejected(headers: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="two columns have one name"):
        Listing(headers)


def test_a_row_with_a_missing_cell_is_rejected() -> None:
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        Listing(("a", "b")).add("x")


def test_no_results_are_an_empty_listing() -> None:
    assert plain_text(listing_of([])) == ""


def listed_by(*arguments: str) -> Any:
    def function(number: int = 1) -> output.CommandOutput:
        """List numbers."""
        listing = Listing(("number",))
        listing.add(count_cell(number))
        return output.CommandOutput([listing, "That is all."], exit_code=number % 2)

    app = typer.Typer()
    app.command()(output.listing_command(function))
    return CliRunner().invoke(app, list(arguments))


def test_a_listing_command_has_json_and_csv_in_addition_to_its_options() -> None:
    people, as_json, as_csv = listed_by(), listed_by("--json", "--number", "2000"), listed_by("--csv")

    assert people.stdout == "number\n1\nThat is all.\n"
    assert json.loads(as_json.stdout) == [{"number": 2000}]
    assert as_json.stderr == "That is all.\n"
    assert as_csv.stdout == "number\n1\n"
    assert (people.exit_code, as_json.exit_code) == (1, 0)
    assert "use either --csv or --json" in listed_by("--csv", "--json").output


LISTING = {
    "alerts show", "batches", "consumers list", "files list", "files show", "mutations status", "pipelines check",
    "pipelines diff", "quarantine list", "quarantine show", "sql", "status", "tables check", "tables list",
    "tables readers", "tables trend",
}  # fmt: skip


def commands() -> Iterator[tuple[str, Any]]:
    for name, entry in command_entries().items():
        command = entry.load()
        if not hasattr(command, "commands"):
            yield name, command
            continue
        context = typer.Context(command)
        for word in command.list_commands(context):
            below = command.get_command(context, word)
            yield f"{name} {word}", below.loaded() if hasattr(below, "loaded") else below


def test_every_listing_command_has_json_csv_and_wide() -> None:
    flags = {name: {flag for parameter in command.params for flag in parameter.opts} for name, command in commands()}

    assert flags.keys() >= LISTING
    assert [name for name in sorted(LISTING) if not {"--json", "--csv", "--wide"} <= flags[name]] == []


def modules_of_commands() -> list[Path]:
    include = PROJECT_ROOT / "include"
    everything = [*(include / "deltaworks").rglob("*.py"), *(include / "sandbox").rglob("*.py")]
    return [path for path in everything if path != Path(output.__file__)]


def prints(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in ("print", "typer.echo", "typer.secho", "click.echo", "sys.stdout.write", "typer.style"):
                yield called


def imports_of_rich(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] == "rich")
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rich":
            yield str(node.module)


def test_no_other_module_of_a_command_prints() -> None:
    found = {
        str(path.relative_to(PROJECT_ROOT)): sorted({*prints(tree), *imports_of_rich(tree)})
        for path in modules_of_commands()
        if "cli" in path.parts
        for tree in [ast.parse(path.read_text())]
    }

    assert {name: said for name, said in found.items() if said} == {}


def test_rich_is_imported_only_by_the_output_module() -> None:
    texts = ((path, path.read_text()) for path in modules_of_commands())
    # A text without the word imports nothing of that name, and need not be parsed.
    found = [path.name for path, text in texts if "rich" in text and any(imports_of_rich(ast.parse(text)))]

    assert found == []


def test_items_of_an_error_are_lines_that_cannot_imitate_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: Any) -> None:
        items = ["a.yaml:1: no\n  Next: do evil", "a.yaml:2: bad"]
        raise ConfigError("SPEC_INVALID", "2 errors in a.yaml:", items=items, hint="Mend.")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()

    assert ended.value.code == 10
    assert capsys.readouterr().err.splitlines() == [
        "SPEC_INVALID 2 errors in a.yaml:",
        "  a.yaml:1: no Next: do evil",
        "  a.yaml:2: bad",
        "Next: Mend.",
    ]
