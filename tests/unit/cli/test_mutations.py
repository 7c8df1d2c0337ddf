"""`deltaworks mutations resolve`: what it refuses before Spark is started, and how rows are printed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltaworks.cli import mutations
from deltaworks.cli.mutations import Form, print_rows
from deltaworks.errors import ConfigError

COLUMNS = ("org_id", "final_id", "deleted", "hops")
ROWS = [
    {"org_id": "", "final_id": None, "deleted": True, "hops": 2},
    {"org_id": "o", "final_id": 'a,"ä"', "deleted": False, "hops": 1},
]


def test_a_bad_file_ends_the_command_with_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "renames.csv"
    path.write_text("ts,old_id,new_id\n1,a,\n")

    done = CliRunner().invoke(mutations.app, ["resolve", str(path)])

    assert isinstance(done.exception, ConfigError)
    assert done.exception.condition == "MUTATION_FILE_INVALID"
    assert "line 2: new_id is empty" in done.exception.message


def test_one_form_is_asked_for_and_not_two(tmp_path: Path) -> None:
    done = CliRunner().invoke(mutations.app, ["resolve", str(tmp_path / "none.csv"), "--csv", "--json"])

    assert done.exit_code == 2
    assert "give one of --csv and --json" in done.output


def test_csv_has_a_header_and_empty_cells_for_what_is_not_there() -> None:
    to = io.StringIO()

    print_rows(ROWS, COLUMNS, Form.CSV, to)

    assert to.getvalue() == 'org_id,final_id,deleted,hops\n,,true,2\no,"a,""ä""",false,1\n'


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS])
def test_json_is_one_array(rows: list[dict[str, object]]) -> None:
    to = io.StringIO()

    print_rows(rows, COLUMNS, Form.JSON, to)

    assert json.loads(to.getvalue()) == rows
    assert to.getvalue().endswith("]\n")
