"""The command line itself: version, help, suggestions for mistyped names, and errors without traces."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from deltaworks import __version__, cli
from deltaworks.cli import context as cli_context
from deltaworks.errors import ConfigError, ContractError
from deltaworks.operations.registry import OPERATIONS
from deltaworks.testing import declare_pipeline, declare_table, load_project, write_files
from tests.commands import invoke, output_of
from tests.unit.cli.command_tree import all_commands

TABLES = [declare_table(f"table_{number:02}", "level int", when=f"t{number}") for number in range(43)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    load_project(tmp_path, declare_pipeline(declare_table("orders", "level int"), *TABLES))
    monkeypatch.setenv("DELTAWORKS_PROJECT", str(tmp_path))
    monkeypatch.setattr(cli_context, "apply_settings", lambda: None)
    monkeypatch.setenv("COLUMNS", "240")
    return tmp_path


def test_the_version_is_printed() -> None:
    assert output_of("--version") == f"deltaworks {__version__}\n"


@pytest.mark.parametrize("words", [name.split() for name in ("", *sorted(all_commands()))], ids=" ".join)
def test_every_command_has_the_short_help_option(words: list[str]) -> None:
    assert output_of(*words, "-h") == output_of(*words, "--help")


def mistyped(name: str) -> set[str]:
    """Returns the name with one letter missing, and with two letters swapped."""
    middle = len(name) // 2
    swapped = name[: middle - 1] + name[middle] + name[middle - 1] + name[middle + 1 :]
    return {name[:middle] + name[middle + 1 :], swapped}


@pytest.mark.parametrize("name", sorted(name for name in all_commands() if " " not in name and len(name) > 3))
def test_a_mistyped_command_is_answered_with_the_nearest(name: str) -> None:
    for word in mistyped(name) - set(all_commands()):
        result = invoke(word)

        assert result.exit_code == 2
        assert f"'{name}'" in result.output, word


@pytest.mark.parametrize("name", sorted(name for name in all_commands() if " " in name and len(name.split()[1]) > 3))
def test_a_mistyped_command_of_a_group_is_answered_with_the_nearest(name: str) -> None:
    group, command = name.split()
    for word in mistyped(command):
        # `tables NAME` lists the tables of a pipeline, so only a name very near to a command is one.
        if f"{group} {word}" not in all_commands() and (group != "tables" or len(word) < len(command)):
            assert f"'{command}'" in invoke(group, word).output, word


@pytest.mark.parametrize(
    "command", sorted(item.command for item in OPERATIONS.values() if item.command.split()[-1] not in all_commands())
)
def test_a_command_of_a_group_is_found_by_its_own_name(command: str) -> None:
    word = command.rsplit(maxsplit=1)[-1]
    same = {item.command for item in OPERATIONS.values() if item.command.split()[-1] == word}

    output = invoke(word).output

    assert any(f"Did you mean '{name}'" in output for name in same)


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (("stop", "landng"), "landing"),
        (("start", "shp"), "shop"),
        (("restart", "rulse"), "rules"),
        (("stop", "landing__realy"), "landing"),
        (("pipelines", "show", "shp"), "shop"),
        (("optimize", "shop", "--tables", "ordrs"), "orders"),
        (("vacuum", "shop", "--tables", "ordrs"), "orders"),
        (("tables", "show", "shop.ordrs"), "shop.orders"),
        (("tables", "pin", "shop.ordrs", "me"), "shop.orders"),
        (("tables", "orphans", "shop", "--tables", "ordrs"), "orders"),
        (("explain", "spec_change_unsfe"), "SPEC_CHANGE_UNSAFE"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest_only(project: Path, words: tuple[str, ...], nearest: str) -> None:
    error = invoke(*words).exception

    assert isinstance(error, ConfigError), error
    assert repr(nearest) in error.hint
    assert error.hint.count("table_") == 0


def test_names_without_a_near_one_list_some_and_count_the_others(project: Path) -> None:
    error = invoke("optimize", "shop", "--tables", "zzzz").exception

    assert isinstance(error, ConfigError)
    assert "and 37 more" in error.hint
    assert len(error.hint) < 200


def test_pipelines_are_listed_with_invalid_ones(project: Path) -> None:
    folder = project / "include" / "pipelines" / "broken"
    folder.mkdir()
    (folder / "pipeline.yaml").write_text("pipeline: broken\n")

    listed = output_of("pipelines", "list")

    assert "shop" in listed
    assert "invalid: " in listed


@pytest.mark.parametrize("code", ["SPEC_CHANGE_UNSAFE", "gold-overtaken", "NOT_RESTARTED", "RULE_UNKNOWN"])
def test_a_code_is_explained(code: str) -> None:
    text = output_of("explain", code)

    assert code.upper().replace("-", "_") in text
    assert "next step" in text


def test_random_bytes_land_and_fail(project: Path) -> None:
    data = random.Random(1).randbytes(4_096)
    write_files(project / "input", {"good.json": '{"name": "orders"}'})
    (project / "input" / "random.json").write_bytes(data)
    (project / "input" / "text.json").write_text("neither JSON\nnor events\n")

    assert invoke("land", "shop", str(project / "input" / "good.json")).exit_code == 0
    for name in ("random.json", "text.json"):
        result = invoke("land", "shop", str(project / "input" / name))
        assert result.exit_code == ContractError.exit_code, result.output
        assert f"{name} can be read as json" in result.output
    assert invoke("land", "shop", str(project / "input"), "--force").exit_code == ContractError.exit_code


def test_an_object_that_is_unknown_fails(project: Path) -> None:
    result = invoke("files", "show", "landing", "nothing.json")

    assert result.exit_code == ContractError.exit_code
    assert "is in no file event of landing" in result.output


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("io.delta.exceptions.ConcurrentAppendException: Files were added", "DELTA_CONFLICT"),
        ("java.net.ConnectException: Connection refused", "STORAGE_UNREACHABLE"),
    ],
)
def test_known_errors_of_clients_are_printed_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], text: str, condition: str
) -> None:
    def fail(**options: object) -> None:
        raise RuntimeError(f"An error occurred while calling o1.save.\n: {text}\n\tat org.apache.spark…")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "argv", ["deltaworks", "status"])

    with pytest.raises(SystemExit) as ended:
        cli.main()

    printed = capsys.readouterr().err
    assert ended.value.code not in (0, 1)
    assert condition in printed
    assert "Traceback" not in printed
    assert "org.apache" not in printed
