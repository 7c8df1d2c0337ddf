"""The demo compares the engagement pipeline's results with the generator's replay: equal ones pass, others are
shown."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import duckdb
import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.project import load_catalog
from deltaworks.specs.project_folder import PROJECT_ROOT
from generator.engagement import generate_engagement
from generator.engagement_settings import EngagementSettings
from generator.engagement_truth import EngagementTruth
from sandbox.demo.answers import Answer, AnswerSheet
from sandbox.demo.earlier_declaration import CHANGED_TABLE, NEW_COLUMN, NEW_TABLE, PIPELINE, EarlierDeclaration
from sandbox.demo.engagement_answers import answer_engagement

SETTINGS = EngagementSettings(activities=400, organisations=3, days=5, seed=2)
_ONE = "event_id = (SELECT min(event_id) FROM engagement.activities)"
WRONG = {
    "activities after renames, merges, updates": f"UPDATE engagement.activities SET contact_id = 'no' WHERE {_ONE}",
    "activities deleted": f"DELETE FROM engagement.activities WHERE {_ONE}",
    "activities per organisation": "UPDATE engagement.activities_per_day SET activities = activities + 1",
    "busiest contacts, by their names": "UPDATE engagement.top_contacts SET contact_name = 'Somebody' WHERE place = 1",
    "requests by kind": "DELETE FROM engagement.requests WHERE op = 'rename'",
    "quarantined rows": "INSERT INTO engagement.quarantine VALUES (1)",
}


@pytest.fixture(scope="module")
def truth() -> EngagementTruth:
    return generate_engagement(SETTINGS, lambda _topic, _key, _value: None)


def lake(truth: EngagementTruth) -> duckdb.DuckDBPyConnection:
    """Tables as the pipeline would leave them."""
    alive = [row for row in truth.rows.to_pylist() if not row["deleted"]]
    names = {(row["org_id"], row["id"]): row["name"] for row in truth.names.to_pylist()}
    connection = duckdb.connect()
    connection.execute("CREATE SCHEMA engagement")
    columns = ("org_id", "event_id", "origin_contact_id", "contact_id", "template_id")
    connection.execute(f"CREATE TABLE engagement.activities ({', '.join(f'{name} VARCHAR' for name in columns)})")
    for row in alive:
        for _ in range(row["copies"]):
            connection.execute(
                "INSERT INTO engagement.activities VALUES (?, ?, ?, ?, ?)", [row[name] for name in columns]
            )
    connection.execute("CREATE TABLE engagement.requests (op VARCHAR)")
    for op, count in truth.requests_by_op.items():
        connection.execute("INSERT INTO engagement.requests SELECT ? FROM range(?)", [op, count])
    connection.execute(f"CREATE TABLE engagement.quarantine AS SELECT * FROM range({truth.malformed})")
    connection.execute("CREATE TABLE engagement.activities_per_day (org_id VARCHAR, activities BIGINT)")
    for org_id, count in Counter(row["org_id"] for row in alive).items():
        connection.execute("INSERT INTO engagement.activities_per_day VALUES (?, ?)", [org_id, count])
    connection.execute(
        "CREATE TABLE engagement.top_contacts"
        " (org_id VARCHAR, place INT, contact_id VARCHAR, contact_name VARCHAR, activities BIGINT)"
    )
    for org_id in {row["org_id"] for row in alive}:
        counts = Counter(row["contact_id"] for row in alive if row["org_id"] == org_id)
        for place, (contact, count) in enumerate(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:20], 1):
            name = names.get((org_id, contact), contact)
            connection.execute(
                "INSERT INTO engagement.top_contacts VALUES (?, ?, ?, ?, ?)", [org_id, place, contact, name, count]
            )
    return connection


def answered(connection: duckdb.DuckDBPyConnection, truth: EngagementTruth) -> dict[str, Answer]:
    sheet = AnswerSheet(connection, ["engagement.quarantine"])
    answer_engagement(sheet, truth)
    return {answer.question: answer for answer in sheet.answers}


def test_tables_as_the_replay_leaves_them_are_right(truth: EngagementTruth) -> None:
    answers = answered(lake(truth), truth)

    assert [question for question, answer in answers.items() if not answer.is_right] == []
    assert answers["activities deleted"].truth > 0
    assert answers["activities under another id than they came"].truth > 0


@pytest.mark.parametrize(("question", "change"), WRONG.items())
def test_what_is_wrong_is_told(truth: EngagementTruth, question: str, change: str) -> None:
    connection = lake(truth)
    connection.execute(change)

    assert not answered(connection, truth)[question].is_right


def _declared(folder: Path) -> tuple[bool, bool]:
    """Returns whether the table and the column are declared."""
    tables = {table.name: table for table in load_catalog(root=folder, only=[PIPELINE]).pipeline(PIPELINE).tables}
    return NEW_TABLE in tables, NEW_COLUMN in {column.name for column in tables[CHANGED_TABLE].columns}


def test_the_earlier_declaration_is_valid_and_becomes_the_shipped_one(tmp_path: Path) -> None:
    earlier = EarlierDeclaration(PROJECT_ROOT, tmp_path / ".deltaworks" / "project")
    earlier.create()
    assert _declared(earlier.folder) == (False, False)
    earlier.complete()
    earlier.complete()
    assert _declared(earlier.folder) == (True, True)
    assert (earlier.folder / "include" / "pipelines").resolve() == PROJECT_ROOT / "include" / "pipelines"
    assert (earlier.folder / "dags").resolve() == PROJECT_ROOT / "dags"


def test_an_earlier_project_is_replaced(tmp_path: Path) -> None:
    earlier = EarlierDeclaration(PROJECT_ROOT, tmp_path / ".deltaworks" / "project")
    earlier.complete()
    assert not earlier.folder.exists()
    for _ in range(2):
        earlier.create()
        assert _declared(earlier.folder) == (False, False)
        earlier.complete()
    assert (PROJECT_ROOT / "include" / "pipelines" / PIPELINE / "pipeline.yaml").is_file()


def test_a_declaration_without_the_table_is_an_error(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    folder = checkout / "include" / "pipelines" / PIPELINE
    folder.mkdir(parents=True)
    (folder / "pipeline.yaml").write_text("pipeline: games\ntables:\n  - name: other\n")
    with pytest.raises(ConfigError, match="DEMO_DECLARATION_CHANGED"):
        EarlierDeclaration(checkout, tmp_path / "project").create()
