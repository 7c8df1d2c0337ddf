"""Which failures are retried, and after which delay."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.airflow.child_process import failure_of, parse_error
from deltaworks.airflow.job_settings import (
    CONTINUOUS_RETRIES,
    ContinuousRetryPolicy,
    JobRetryPolicy,
    continuous_retries,
)
from deltaworks.control.backoff import MAX_WAIT_SECONDS, RestartBackoff
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConfigError, ContractError, FencedError, TransientError
from deltaworks.testing import present

FINAL = ConfigError("SPEC_INVALID", "games: no such key", hint="mend it")
PASSING = TransientError("STORAGE_REFUSED", "503")


def launcher_text(last_lines: str, code: int = 10) -> str:
    """Returns the exception text of the provider's hook."""
    return f"Cannot execute: spark-submit. Error code is: {code}.\nLast spark-submit output:\n{last_lines}"


def action(exception: BaseException, policy: Any = None) -> str:
    decision = (policy or JobRetryPolicy()).evaluate(exception, try_number=1, max_tries=3)
    return str(decision.action.value)


@pytest.mark.parametrize("code", [1, 21])
def test_what_a_job_printed_does_not_decide(code: int) -> None:
    """Its output contains data; the hook has raised the job's own error before."""
    for text in (FINAL.as_line(), PASSING.as_line(), "exit code: 10", "Error code is: 11."):
        assert action(RuntimeError(launcher_text(text, code))) == "default"
        assert action(RuntimeError(launcher_text(text, 11))) == "fail"


def test_the_arguments_of_a_job_do_not_decide() -> None:
    text = launcher_text("Killed", 1).replace("submit", "submit --reason 'Error code is: 10.'", 1)

    assert action(RuntimeError(text)) == "default"


@pytest.mark.parametrize(("error", "expected"), [(FINAL, "fail"), (PASSING, "retry"), (FencedError("X", "m"), "fail")])
def test_an_error_raised_in_the_task_decides_the_retry(error: Exception, expected: str) -> None:
    assert action(error) == expected


@pytest.mark.parametrize("code", [ConfigError.exit_code, ContractError.exit_code, FencedError.exit_code])
def test_without_the_error_line_the_exit_code_decides(code: int) -> None:
    assert action(RuntimeError(launcher_text("Killed", code))) == "fail"


@pytest.mark.parametrize("code", [1, 20, 21, 137])
def test_other_exit_codes_use_airflows_default(code: int) -> None:
    assert action(RuntimeError(launcher_text("Killed", code))) == "default"


def test_a_failure_is_said_without_the_command_of_its_launcher() -> None:
    killed = failure_of(RuntimeError(launcher_text("INFO x\nException in thread main: no memory\n", 1)))
    assert killed.message == "The job ended with exit code 1: Exception in thread main: no memory"
    assert failure_of(FINAL) is FINAL
    assert failure_of(RuntimeError("no\nsuch thing")).message == "no such thing"
    assert failure_of(None).message == "It ended without an error."


def test_an_error_line_damaged_by_masking_is_parsed() -> None:
    from airflow.providers.apache.spark.hooks.spark_submit import _mask_sensitive_values

    error = ConfigError("REFERENCE_UNRESOLVED", 'no value for secret_key "env:KEY"', hint="set it")
    masked = _mask_sensitive_values(json.dumps(error.as_record()))

    assert masked != json.dumps(error.as_record())
    found = present(parse_error(masked))
    assert (found.condition, action(found)) == ("REFERENCE_UNRESOLVED", "fail")


def test_a_continuous_job_is_always_retried_with_growing_delays() -> None:
    policy = ContinuousRetryPolicy()

    delays = [policy.evaluate(RuntimeError("x"), n, 8).retry_delay for n in range(1, 9)]

    assert [delay.total_seconds() for delay in delays if delay] == [5, 10, 20, 40, 80, 160, 300, 300]
    assert action(FINAL, policy) == "retry"
    assert policy.evaluate(FINAL, 1, 8).retry_delay == timedelta(seconds=300)


def test_a_continuous_job_that_ran_for_long_restarts_within_seconds() -> None:
    context: Any = {"ti": SimpleNamespace(start_date=datetime.now(UTC) - timedelta(hours=2))}

    decision = ContinuousRetryPolicy().evaluate(PASSING, 7, 8, context)

    assert decision.retry_delay == timedelta(seconds=5)


def test_policies_survive_serialization() -> None:
    policy = ContinuousRetryPolicy()

    assert isinstance(ContinuousRetryPolicy.deserialize(policy.serialize()), ContinuousRetryPolicy)
    assert isinstance(JobRetryPolicy.deserialize(JobRetryPolicy().serialize()), JobRetryPolicy)
    former = {"__type": "ContinuousRetryPolicy", "first_seconds": 5, "longest_seconds": 300, "healthy_seconds": 600}
    assert isinstance(ContinuousRetryPolicy.deserialize(former), ContinuousRetryPolicy)


def killed_task_seconds(try_number: int) -> float:
    """Returns Airflow's own retry delay of a killed task, which no policy sees, with jitter."""
    settings = continuous_retries()
    seconds: float = settings["retry_delay"].total_seconds() * settings["retry_exponential_backoff"] ** (try_number - 1)
    return min(2 * seconds, float(settings["max_retry_delay"].total_seconds()))


class Clock:
    """A clock that only `sleep` advances."""

    def __init__(self) -> None:
        self.now = datetime(2026, 3, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def restart_gaps(objects: LocalObjects, outcomes: list[str]) -> list[float]:
    """Returns seconds between the end of each run of a stream and the next run's first access to storage.

    Every layer waits as in production: Airflow by the retry policy, or by its own settings if the task was killed; no
    wait between the last try of a DAG run and the next run, which `@continuous` starts immediately; then the stream
    itself, for the rest of its recorded delay.
    """
    clock, ends, starts, try_number = Clock(), [], [], 1
    for outcome in outcomes:
        backoff = RestartBackoff(objects, "failures.json", clock=clock, sleep=clock.sleep)
        backoff.wait()
        starts.append(clock.now)
        clock.sleep(30)
        ends.append(clock.now)
        if outcome == "killed":
            airflow_seconds = killed_task_seconds(try_number)
        else:
            error = FINAL if outcome == "final" else PASSING
            backoff.record_failure(retryable=error.retryable)
            decision = ContinuousRetryPolicy().evaluate(error, try_number, 8)
            assert decision.retry_delay is not None
            airflow_seconds = decision.retry_delay.total_seconds()
        is_last_try = try_number > CONTINUOUS_RETRIES
        clock.sleep(0 if is_last_try else airflow_seconds)
        try_number = 1 if is_last_try else try_number + 1
    return [(start - end).total_seconds() for end, start in zip(ends, starts[1:], strict=False)]


@pytest.mark.parametrize("outcome", ["final", "passing"])
def test_all_waits_between_two_tries_of_a_stream_are_at_most_300_s_and_outlive_dag_runs(
    tmp_path: Path, outcome: str
) -> None:
    gaps = restart_gaps(LocalObjects(tmp_path), [outcome] * 40)

    assert max(gaps) <= MAX_WAIT_SECONDS
    assert min(gaps[7:]) == MAX_WAIT_SECONDS, "a new DAG run starts no new count"
    if outcome == "passing":
        assert all(5 * 2**n <= gap <= 6 * 2**n for n, gap in enumerate(gaps[:6]))
    else:
        assert min(gaps) == MAX_WAIT_SECONDS


def test_no_mixture_of_failures_and_kills_waits_longer(tmp_path: Path) -> None:
    chosen = random.Random(7)
    for run in range(20):
        outcomes = chosen.choices(["final", "passing", "killed"], k=40)

        assert max(restart_gaps(LocalObjects(tmp_path / str(run)), outcomes)) <= MAX_WAIT_SECONDS
