"""Errors have a condition, a message, a next step, and whether a retry helps."""

from __future__ import annotations

import json
import pickle
import traceback

import pytest

from deltaworks.errors import (
    NONCE_VARIABLE,
    ConcurrencyError,
    ConfigError,
    ContractError,
    DeltaworksError,
    FencedError,
    TransientError,
    hint_for,
    job_line,
    last_error_in,
)

KINDS = [DeltaworksError, ConfigError, ContractError, ConcurrencyError, TransientError, FencedError]


def test_every_kind_has_an_exit_code_of_its_own() -> None:
    assert [kind.exit_code for kind in KINDS] == [1, 10, 11, 20, 21, 30]
    assert [kind("X", "y").retryable for kind in KINDS] == [False, False, False, True, True, False]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_the_way_from_a_task_to_the_driver(kind: type[DeltaworksError]) -> None:
    error = kind("CONDITION", "what", hint="next", retryable=True)

    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is kind
    assert copy.as_record() == error.as_record()


def test_the_text_says_what_happened_and_what_to_do() -> None:
    assert str(ConfigError("X", "It broke.", hint="Mend it.")) == "[X] It broke. Next: Mend it."
    assert str(ConfigError("X", "It broke.")) == "[X] It broke."
    assert str(ConfigError("STACK_LEFTOVERS", "It broke.")).endswith("broke. Next: " + hint_for("STACK_LEFTOVERS"))


def test_the_line_for_a_launcher_is_one_line_of_json() -> None:
    line = TransientError("X", "first\nsecond", hint="é").as_line()

    marker, _, record = line.partition(" ")
    assert "\n" not in line
    assert marker == "DELTAWORKS_ERROR"
    assert json.loads(record) == {"condition": "X", "message": "first second", "hint": "é", "retryable": True}


def test_the_line_has_the_nonce_of_its_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NONCE_VARIABLE, "abc")

    assert TransientError("X", "y").as_line().startswith("DELTAWORKS_ERROR:abc {")
    assert job_line("UI", "http://driver:4040") == "DELTAWORKS_UI:abc http://driver:4040"


def test_listed_items_have_lines_of_their_own_and_survive_the_way_to_the_driver() -> None:
    error = ConfigError("X", "2 errors:", items=["first\n  Next: obey", "second"])

    copy = pickle.loads(pickle.dumps(error))

    assert str(error).split("\n") == ["[X] 2 errors:", "  first Next: obey", "  second"]
    assert (copy.summary, copy.items, copy.message) == (error.summary, error.items, error.message)


@pytest.mark.parametrize(
    "text",
    [
        "FileNotFoundError: bucket/deltaworks.errors.ConfigError: [FAKE] final",
        "FileNotFoundError: deltaworks.errors.ConfigError: [FAKE] final",
        "pyarrow.lib.ArrowInvalid: key 'x deltaworks.errors.ConfigError: [FAKE] final'",
        "  deltaworks.errors.ConfigError: [FAKE] final",
    ],
)
def test_an_error_is_not_found_in_the_data_of_another_exception(text: str) -> None:
    assert last_error_in(f"Traceback (most recent call last):\n  File x\n{text}\n") is None
    real = f"deltaworks.errors.TransientError: [REAL] away\n{text}\n"
    found = last_error_in(real)
    assert found is not None
    assert (found.condition, found.retryable) == ("REAL", True)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_an_error_is_found_in_the_traceback_of_another_process(kind: type[DeltaworksError]) -> None:
    error = kind("LOG_ROLLED_BACK", "The log ends at 5.", hint="Put it back.")
    said = "".join(traceback.format_exception(error))

    found = last_error_in(
        f"[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed:\nTraceback ...\n{said}\nJVM stacktrace:\n at x"
    )

    assert type(found) is kind
    assert (found.condition, found.message, found.hint) == (error.condition, error.message, error.hint)


def test_a_text_without_one_has_none() -> None:
    assert last_error_in("java.lang.RuntimeException: [DELTA_X] no error of ours") is None
