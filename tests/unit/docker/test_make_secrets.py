"""The secrets of the containers: random, kept, for their owner only."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.errors import ConfigError
from deltaworks.specs.project import load_catalog
from deltaworks.specs.weak_secrets import check_write_keys
from tests.unit.docker.secrets_script import FILES, main, make_secrets, prompt_for_webhook


def values_in(folder: Path) -> dict[str, str]:
    lines = [line for path in sorted(folder.glob("*.env")) for line in path.read_text().splitlines()]
    return dict(line.split("=", 1) for line in lines)


def test_every_variable_is_made_once_and_stays(tmp_path: Path) -> None:
    names = {name for makers in FILES.values() for name in makers}

    assert set(make_secrets(tmp_path / "secrets")) == names
    first = values_in(tmp_path / "secrets")
    assert make_secrets(tmp_path / "secrets") == []

    assert values_in(tmp_path / "secrets") == first
    assert set(first) == names


def test_no_two_installations_share_a_secret(tmp_path: Path) -> None:
    make_secrets(tmp_path / "one")
    make_secrets(tmp_path / "two")

    one, two = values_in(tmp_path / "one"), values_in(tmp_path / "two")
    assert [name for name in one if one[name] == two[name]] == []


def test_the_collector_accepts_its_own_keys_instead_of_those_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_secrets(tmp_path)
    variables = values_in(tmp_path)
    demo = load_catalog("compose").collectors["edge"]
    with pytest.raises(ConfigError, match="SECRET_WEAK"):
        check_write_keys(demo, environment="compose")

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    collector = load_catalog("compose").collectors["edge"]

    check_write_keys(collector, environment="compose")
    for name, source in collector.sources.items():
        key = variables[f"DELTAWORKS_WRITE_KEY_{name.upper()}"]
        assert [one.digest() for one in source.keys] == [hashlib.sha256(key.encode()).hexdigest()]


def test_folder_and_files_are_for_their_owner_only_even_if_they_were_not(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    make_secrets(folder)
    folder.chmod(0o755)
    (folder / "spark.env").chmod(0o644)

    make_secrets(folder)

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_what_a_person_wrote_stays_and_what_is_blank_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "lake.env").write_text("DELTAWORKS_LAKE_ACCESS_KEY=mine\nDELTAWORKS_LAKE_SECRET_KEY=\nEXTRA=1\n")

    added = make_secrets(folder)

    values = values_in(folder)
    assert (values["DELTAWORKS_LAKE_ACCESS_KEY"], values["EXTRA"]) == ("mine", "1")
    assert "DELTAWORKS_LAKE_SECRET_KEY" in added
    assert len(values["DELTAWORKS_LAKE_SECRET_KEY"]) >= 32


def test_the_command_prints_names_and_no_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--folder", str(tmp_path / "secrets")]) == 0

    printed = capsys.readouterr().out
    assert "DELTAWORKS_SPARK_SECRET" in printed
    assert not any(value in printed for value in values_in(tmp_path / "secrets").values())


def test_where_alerts_go_is_asked_once_and_kept(tmp_path: Path) -> None:
    folder, questions = tmp_path / "secrets", []
    make_secrets(folder)

    def answers(question: str) -> str:
        questions.append(question)
        return " https://hooks.example.com/secret "

    assert prompt_for_webhook(folder, ask=answers) == prompt_for_webhook(folder, ask=answers) == ""
    assert make_secrets(folder) == []

    assert len(questions) == 1
    assert values_in(folder)["DELTAWORKS_ALERTS_WEBHOOK"] == "https://hooks.example.com/secret"
    assert stat.S_IMODE((folder / "alerts.env").stat().st_mode) == 0o600


@pytest.mark.parametrize("ask", [None, lambda _: ""], ids=["nobody to ask", "for nowhere"])
def test_where_alerts_reach_nobody_the_setting_to_write_is_named_each_time(
    tmp_path: Path, ask: Callable[[str], str] | None
) -> None:
    make_secrets(tmp_path / "secrets")

    for _ in range(2):
        warning = prompt_for_webhook(tmp_path / "secrets", ask=ask)
        assert "No alert reaches a person: write DELTAWORKS_ALERTS_WEBHOOK=https://... into" in warning
