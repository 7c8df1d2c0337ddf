"""The first start asks once where to send alerts and stores the answer in a private file."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltaworks.cli import app
from sandbox.cli import stack as commands
from sandbox.stack.alert_channel import read_webhook, store_webhook, webhook_variable
from sandbox.stack.home import StackHome
from tests.unit.maintenance.table_data import project

URL = "https://hooks.example.com/T0/secret"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackHome:
    monkeypatch.delenv("DELTAWORKS_ALERTS_WEBHOOK", raising=False)
    project(tmp_path)
    return StackHome.at(tmp_path / "home", project=tmp_path / "project")


def offered(home: StackHome, *, answers: str = "", interactive: bool = True) -> str:
    assert app is not None, "the sandbox's commands are found through it"
    with CliRunner().isolation(input=answers) as (out, *_):
        commands.prompt_for_channel(home, interactive=interactive)
        sys.stdout.flush()
        return out.getvalue().decode()


def test_the_address_is_asked_for_once_and_given_to_the_stacks_processes(home: StackHome) -> None:
    first = offered(home, answers=f"hooks.example.com\n{URL}\n")

    assert "Where are alerts to go?" in first
    assert "'hooks.example.com' is no address" in first
    assert read_webhook(home) == URL
    assert webhook_variable(home) == {"DELTAWORKS_ALERTS_WEBHOOK": URL}
    assert stat.S_IMODE((home.root / "alerts_webhook").stat().st_mode) == 0o600
    assert offered(home) == "", "nothing is asked, nothing is missing"


def test_whoever_wants_none_is_not_asked_again_and_warned_at_each_start(home: StackHome) -> None:
    assert "Where are alerts to go?" in offered(home, answers="\n")

    again = offered(home)

    assert "Where are alerts to go?" not in again
    assert "No alert reaches a person" in again
    assert webhook_variable(home) == {}


def test_where_nobody_can_be_asked_the_setting_to_write_is_named(home: StackHome) -> None:
    said = offered(home, interactive=False)

    assert "No alert reaches a person" in said
    assert "DELTAWORKS_ALERTS_WEBHOOK" in said
    assert read_webhook(home) is None, "it is asked for when somebody is there"


def test_what_the_shell_says_goes_before_what_was_kept(home: StackHome, monkeypatch: pytest.MonkeyPatch) -> None:
    store_webhook(home, URL)
    monkeypatch.setenv("DELTAWORKS_ALERTS_WEBHOOK", "https://other.example.com")

    assert webhook_variable(home) == {"DELTAWORKS_ALERTS_WEBHOOK": "https://other.example.com"}
    assert offered(home) == ""
