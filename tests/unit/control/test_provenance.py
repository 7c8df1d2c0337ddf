"""Provenance in commit metadata."""

from __future__ import annotations

import json
import os
import pwd

import pytest

from deltaworks.control.provenance import (
    REQUIRED_FIELDS,
    current_person,
    current_run,
    parse_user_metadata,
    system_user,
    user_metadata,
)


def test_a_commit_names_pipeline_batch_run_and_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAWORKS_RUN", "games__stream/run/task/1")

    said = parse_user_metadata(user_metadata(pipeline="games", batch=7, operation="append", step="s"))

    assert set(REQUIRED_FIELDS) <= set(said)
    assert said == {
        "pipeline": "games",
        "batch": "7",
        "run": "games__stream/run/task/1",
        "operation": "append",
        "step": "s",
    }


def test_outside_airflow_a_run_is_manual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DELTAWORKS_RUN", raising=False)

    assert current_run() == "manual"


@pytest.mark.parametrize("text", [None, "", "free text of somebody else", "[1]", "7", json.dumps("x")])
def test_foreign_metadata_is_empty(text: str | None) -> None:
    assert parse_user_metadata(text) == {}


@pytest.mark.parametrize("variable", ["LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER", "DELTAWORKS_PERSON"])
def test_outside_airflow_a_person_is_who_the_operating_system_says(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DELTAWORKS_RUN", raising=False)
    monkeypatch.setenv(variable, "another")

    assert current_person() == system_user() == pwd.getpwuid(os.getuid()).pw_name


def test_in_airflow_a_person_is_who_triggered_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELTAWORKS_RUN", "games__control/manual__1/control/1")
    monkeypatch.setenv("DELTAWORKS_PERSON", "grace")

    assert current_person() == "grace"


def test_a_user_without_a_name_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)

    assert system_user() == f"uid {2**31 - 7}"
