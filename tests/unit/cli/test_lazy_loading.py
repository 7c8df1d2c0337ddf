"""`deltaworks` imports only help texts for its help, and for a command only what it needs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest
from typer.core import TyperGroup

from deltaworks.cli.commands import command_entries
from deltaworks.specs.catalog import PROJECT_ROOT
from tests.processes import run_process
from tests.unit.cli.command_tree import all_commands

ENGINES = {"pyspark", "delta", "deltalake", "pyarrow", "boto3", "botocore", "duckdb", "numpy", "pandas", "airflow"}
DECLARATIONS = {"pydantic", "yaml"}


def run(*words: str) -> tuple[str, set[str]]:
    """Output of a command in a new interpreter, and its imported packages."""
    return run_in_turn(words)


def run_in_turn(*commands: tuple[str, ...]) -> tuple[str, set[str]]:
    """Output of commands run in sequence in a new interpreter, and its imported packages."""
    program = f"""
import json, sys
from deltaworks.cli import main
for words in {commands!r}:
    sys.argv = ["deltaworks", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
print(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""
    done = run_process([sys.executable, "-c", program], cwd=PROJECT_ROOT / "include")
    assert done.returncode == 0, done.stdout + done.stderr
    *printed, modules = done.stdout.splitlines()
    return "\n".join(printed), set(json.loads(modules))


def test_the_help_lists_every_command_and_loads_only_help_texts() -> None:
    printed, modules = run("--help")

    assert modules & (ENGINES | DECLARATIONS) == set()
    listed = {line.split()[0] for line in printed.splitlines() if line.startswith("  ") and line.strip()}
    assert set(command_entries()) <= listed


@pytest.mark.parametrize(
    "words",
    [("pipelines", "check"), ("pipelines", "--help"), ("restore", "--help"), ("land", "--help")],
    ids=" ".join,
)
def test_commands_that_only_read_specs_load_no_engine(words: tuple[str, ...]) -> None:
    # Rules are DuckDB's, so what says whether one is sound is DuckDB; those that were sound are remembered.
    needed = {"duckdb"} if words == ("pipelines", "check") else set()
    assert run(*words)[1] & ENGINES <= needed


def single_commands() -> Iterator[str]:
    return (words for words, command in all_commands().items() if not isinstance(command, TyperGroup))


def test_the_help_of_a_command_is_the_first_line_of_its_own() -> None:
    commands, entries = all_commands(), command_entries()
    own = {
        name: (commands[name].help or "").strip().partition("\n")[0] for name in single_commands() if name in entries
    }

    assert len(own) > 10
    assert {name: (entries[name].help, line) for name, line in own.items() if entries[name].help != line} == {}


def test_every_command_and_group_has_a_help_text() -> None:
    helps = {words: (command.help or "").strip().partition("\n")[0] for words, command in all_commands().items()}

    assert len(helps) > 100
    assert [words for words, line in helps.items() if not line.endswith(".")] == []
