"""Which failures are tried again, and how soon."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from deltaworks.airflow.retry_policy import EndlessRetryPolicy, JobRetryPolicy
from deltaworks.errors import ConfigError, ContractError, FencedError, TransientError

FINAL = ConfigError("SPEC_INVALID", "games: no such key", hint="mend it")
PASSING = TransientError("STORAGE_REFUSED", "503")


def launcher_text(last_lines: str, code: int = 10) -> str:
    """What the provider's hook raises."""
    return f"Cannot execute: spark-submit. Error code is: {code}.\nLast spark-submit output:\n{last_lines}"


def action(exception: BaseException, policy: Any = None) -> str:
    decision = (policy or JobRetryPolicy()).evaluate(exception, try_number=1, max_tries=3)
    return str(decision.action.value)


def test_a_job_that_names_a_final_condition_is_not_tried_again() -> None:
    assert action(RuntimeError(launcher_text(FINAL.as_line()))) == "fail"
    assert action(RuntimeError(launcher_text(PASSING.as_line(), 21))) == "retry"


def test_lines_that_follow_the_error_line_do_not_hide_it() -> None:
    noise = "\n".join(f"WARN ShutdownHookManager: {n}" for n in range(15))

    assert action(RuntimeError(launcher_text(f"before\n{FINAL.as_line()}\n{noise}"))) == "fail"


def test_the_last_of_several_error_lines_counts() -> None:
    both = f"{FINAL.as_line()}\n{PASSING.as_line()}"

    assert action(RuntimeError(launcher_text(both, 21))) == "retry"


@pytest.mark.parametrize(("error", "expected"), [(FINAL, "fail"), (PASSING, "retry"), (FencedError("X", "m"), "fail")])
def test_an_error_raised_in_the_task_itself_carries_its_own_verdict(error: Exception, expected: str) -> None:
    assert action(error) == expected


@pytest.mark.parametrize("code", [ConfigError.exit_code, ContractError.exit_code, FencedError.exit_code])
def test_where_the_line_was_lost_the_exit_code_tells(code: int) -> None:
    assert action(RuntimeError(launcher_text("Killed", code))) == "fail"


@pytest.mark.parametrize("code", [1, 20, 21, 137])
def test_other_exit_codes_leave_it_to_airflow(code: int) -> None:
    assert action(RuntimeError(launcher_text("Killed", code))) == "default"


def test_a_line_damaged_by_masking_is_still_understood() -> None:
    from airflow.providers.apache.spark.hooks.spark_submit import _mask_sensitive_values

    error = ConfigError("REFERENCE_UNRESOLVED", 'no value for secret_key "env:KEY"', hint="set it")
    masked = _mask_sensitive_values(error.as_line())

    assert masked != error.as_line()
    assert action(RuntimeError(launcher_text(masked, 1))) == "fail"


def test_an_endless_job_is_always_started_again_and_waits_longer_with_each_early_failure() -> None:
    policy = EndlessRetryPolicy()

    delays = [policy.evaluate(RuntimeError("x"), n, 8).retry_delay for n in range(1, 9)]

    assert [delay.total_seconds() for delay in delays if delay] == [5, 10, 20, 40, 80, 160, 300, 300]
    assert action(FINAL, policy) == "retry"
    assert policy.evaluate(FINAL, 1, 8).retry_delay == timedelta(seconds=300)


def test_an_endless_job_that_ran_well_for_long_is_back_within_seconds() -> None:
    context: Any = {"ti": SimpleNamespace(start_date=datetime.now(UTC) - timedelta(hours=2))}

    decision = EndlessRetryPolicy().evaluate(PASSING, 7, 8, context)

    assert decision.retry_delay == timedelta(seconds=5)


def test_policies_survive_serialization() -> None:
    policy = EndlessRetryPolicy(first_seconds=1, longest_seconds=9, healthy_seconds=3)

    assert vars(EndlessRetryPolicy.deserialize(policy.serialize())) == vars(policy)
    assert isinstance(JobRetryPolicy.deserialize(JobRetryPolicy().serialize()), JobRetryPolicy)
