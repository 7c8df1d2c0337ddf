"""Fault 11: a stream, OPTIMIZE, VACUUM, DELETE with RESTORE, and two concurrent MERGEs on S3; nothing is lost
or stuck."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.harness.fault_project import FaultProject
from tests.faults.harness.maintenance_load import APPEND_TABLES, MaintenanceLoad, Outcome

MakeStage = Callable[..., FaultProject]
#: Limit for the retries of an operation and for pauses of the stream.
BOUND_SECONDS = 400.0
STREAM_SECONDS = 120.0


def kept_at_work(make_stage: MakeStage, print_result: Callable[..., None], *, minutes: float, off: str = "") -> Outcome:
    """Runs all roles together for a few minutes."""
    stage = make_stage(tables=APPEND_TABLES, storage="s3")
    outcome = MaintenanceLoad(stage, off=(off,) if off else ()).run(minutes)
    retried = {
        f"{role} {condition} {count}"
        for role, tally in outcome.operations.items()
        for condition, count in tally.retried.items()
    }
    done = {f"{role} {tally.done}" for role, tally in outcome.operations.items()}
    print_result(
        "11 stream, OPTIMIZE, VACUUM, DELETE and RESTORE, two MERGEs",
        f"WITHOUT {off}" if off else "protected",
        f"ids {stage.ids}",
        str(outcome),
        f"done: {', '.join(sorted(done))}",
        f"retried: {', '.join(sorted(retried)) or '-'}",
        *(error for tally in outcome.operations.values() for error in tally.errors),
    )
    return outcome


def test_everything_at_once_loses_nothing_and_every_operation_is_done(
    make_stage: MakeStage, print_result: Callable[..., None]
) -> None:
    outcome = kept_at_work(make_stage, print_result, minutes=2.5)

    assert outcome.is_exact, outcome.wrong
    assert outcome.missing == []
    assert outcome.longest_pause < STREAM_SECONDS
    assert max(tally.longest for tally in outcome.operations.values()) < BOUND_SECONDS
    merges = [tally for role, tally in outcome.operations.items() if role.endswith("mutate")]
    assert all("DELTA_CONFLICT" not in tally.retried for tally in merges)
    # Only one merge is admitted at a time, so a retried merge met a conflict.
    assert sum(tally.counts["attempts"] for tally in merges) == sum(tally.counts["merges"] for tally in merges)


def test_a_reader_that_nobody_asks_loses_its_files(make_stage: MakeStage, print_result: Callable[..., None]) -> None:
    outcome = kept_at_work(make_stage, print_result, minutes=4, off="holds")

    assert outcome.operations["read"].failed > 0
    assert "not found" in " ".join(outcome.operations["read"].errors).lower()


def test_without_the_write_turn_merges_meet_the_stream(
    make_stage: MakeStage, print_result: Callable[..., None]
) -> None:
    outcome = kept_at_work(make_stage, print_result, minutes=1, off="turn")

    merges = [tally for role, tally in outcome.operations.items() if role.endswith("mutate")]
    attempts = sum(tally.counts["attempts"] - tally.counts["merges"] for tally in merges)
    assert attempts > 0 or any(tally.retried["DELTA_CONFLICT"] or tally.failed for tally in merges)
