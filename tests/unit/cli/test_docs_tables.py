"""The generated pages of commands and DAGs are current, and list every command and operation."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.cli.docs_tables import PAGES, commands_table, operations_table, page_with_tables
from deltaworks.operations.registry import OPERATIONS
from tests.unit.cli.command_tree import all_commands

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize("page", PAGES)
def test_a_generated_page_is_current(page: str) -> None:
    text = (DOCS / page).read_text()

    assert page_with_tables(text) == text, "run: make tables"


def test_every_operation_has_its_command_and_its_dag_in_the_tables() -> None:
    commands, dags = commands_table(), operations_table()

    assert [operation.command for operation in OPERATIONS.values() if f"| `{operation.command}" not in commands] == []
    assert [
        name for name, operation in OPERATIONS.items() if f"| `{operation.dag_id(f'<{operation.scope}>')}`" not in dags
    ] == []


def test_every_leaf_command_is_listed_with_its_options() -> None:
    table = commands_table()
    words = [name for name, command in all_commands().items() if not hasattr(command, "commands")]

    assert [name for name in words if f"| `{name}" not in table] == []
    assert "`--retention-hours`" in table
