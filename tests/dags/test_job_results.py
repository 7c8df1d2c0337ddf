"""A job's results are in its task's XCom, truncated to a size for Airflow's database."""

from __future__ import annotations

import json
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.airflow.child_process import JobOutput, parse_results
from deltaworks.airflow.maintenance_dags import round_template
from deltaworks.errors import ConfigError, TransientError
from deltaworks.specs.maintenance import MaintenanceSpec


def heard(lines: Iterable[str], *, nonce: str = "") -> tuple[list[Any], list[str], Any]:
    """Returns the results, addresses and error that a task takes from a job's output."""
    results: list[Any] = []
    addresses: list[str] = []
    output = JobOutput(on_results=results.append, on_ui_address=addresses.append, **({"nonce": nonce} if nonce else {}))
    results_line = f"DELTAWORKS_RESULTS:{output.nonce} "
    assert list(output.parse_lines(lines)) == [line for line in lines if not line.startswith(results_line)]
    return results, addresses, output.error


def test_only_the_results_line_is_parsed() -> None:
    prefix = "DELTAWORKS_RESULTS:abc "
    lines = (
        "table  files",
        '[{"files": 9}]',
        f'{prefix}[{{"table": "events", "files_after": 3}}]',
        f"{prefix}[{{broken",
    )
    more = (f"{prefix}[1, 2]", f"{prefix}[]", f"{prefix}{{}}", f"{prefix}null")

    assert heard([f"{line}\n" for line in (*lines, *more)], nonce="abc")[0] == [[{"table": "events", "files_after": 3}]]


MARKERS = st.sampled_from(["DELTAWORKS_ERROR", "DELTAWORKS_UI", "DELTAWORKS_RESULTS", "[{", "deltaworks.errors."])
BREAKS = st.sampled_from(
    ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\n  ", "\x1b[2K", "\b"]
)
DATA = st.lists(
    st.one_of(MARKERS, BREAKS, st.sampled_from([":", " ", "https://evil.example", '{"a":1}', "x"])), max_size=8
)


@given(parts=DATA)
def test_data_of_a_producer_are_neither_lines_nor_obeyed(parts: list[str]) -> None:
    key = "".join(parts)
    error = TransientError("OBJECT_UNREADABLE", f"{key} cannot be read", items=[key], hint=f"send {key} again")

    assert all(len(text.splitlines()) <= 1 for text in (error.summary, *error.items, error.hint))
    assert len(str(error).splitlines()) == 2, "the item has its own line"
    assert len(error.as_line().splitlines()) == 1
    # Whatever another program prints of the data.
    assert heard([f"{line}\n" for line in f"{key}\n{error}".splitlines()]) == ([], [], None)


def test_an_error_survives_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    output = JobOutput()
    for name, value in output.variables.items():
        monkeypatch.setenv(name, value)
    error = ConfigError("SPEC_INVALID", "2 errors in shop.yaml:", items=["a: b", "c\nd: e"], hint="Mend it.")

    output.parse_line(error.as_line() + "\n")

    assert output.error is not None
    assert output.error.as_record() == error.as_record()
    assert output.error.items == ("a: b", "c\\nd: e")


def test_results_that_are_too_long_are_truncated_and_marked() -> None:
    records = [{"table": f"t{number}", "reason": "x" * 1_000} for number in range(100)]

    kept = parse_results(json.dumps(records))

    assert kept[-1] == {"omitted": 100 - (len(kept) - 1)}
    assert kept[:-1] == records[: len(kept) - 1]
    assert len(json.dumps(kept)) < 50_000


def test_the_second_round_runs_on_its_weekday_or_by_form() -> None:
    import datetime as dt

    from jinja2 import Template

    def rendered(day: int, chosen: str | None = None, upkeep: MaintenanceSpec | None = None) -> str:
        run = SimpleNamespace(run_after=dt.datetime(2026, 11, day, 3, 30, tzinfo=dt.UTC))
        template = Template(round_template(upkeep or MaintenanceSpec()))
        return template.render(params=SimpleNamespace(round=chosen), dag_run=run)

    assert [rendered(day) for day in (21, 22, 23)] == ["daily", "weekly", "daily"]
    assert rendered(23, "weekly") == "weekly"
    assert rendered(22, "daily") == "daily"
    assert rendered(22, upkeep=MaintenanceSpec(weekly_day=None)) == "daily"
