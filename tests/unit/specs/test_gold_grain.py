"""Gold tables that are rebuilt by hours: defaults, and rejected combinations with advice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltaworks.gold.input_views import fingerprint
from deltaworks.specs.checks.gold_sql import gold_sql_errors
from deltaworks.specs.gold import AffectsSpec, DedupeSpec, GoldTableSpec, GrainSpec
from deltaworks.specs.loading import read_declaration
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.testing import pipeline_spec

MINUTES = {
    "name": "minutes",
    "sql": "m.sql",
    "reads": ["requests"],
    "partition_by": "event_date",
    "grain": {"column": "minute", "part": "hour"},
}
DEDUPE = {"by": "event_id", "within_hours": 1}


def declared(*, dedupe: Any = DEDUPE, **changes: Any) -> PipelineSpec:
    return pipeline_spec(
        {"name": "requests", "catch_all": True},
        pipeline="traffic",
        event={"name": {"path": "name"}, "time": {"path": "time"}},
        gold={"dedupe": dedupe, "tables": [MINUTES | changes]},
    )


def test_an_hour_affects_itself_by_default() -> None:
    spec = declared(refresh_seconds=60)
    (table,) = spec.gold.tables

    assert (table.grain, table.affects) == (GrainSpec(column="minute"), AffectsSpec(hours=(0,)))
    assert spec.gold.stream_refreshed_tables == (table,)
    assert PipelineSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert declared(affects={"hours": [0, -1]}).gold.tables[0].affects == AffectsSpec(hours=(0, -1))
    assert declared(dedupe=None).gold.stream_refreshed_tables == ()


@pytest.mark.parametrize(
    ("changes", "rejection_of"),
    [
        ({"grain": {"column": "event_date"}}, "'event_date' is the partition date of 'minutes'; use a time"),
        ({"affects": "all"}, "`affects: all` does not rebuild by hours; remove `grain`, or write hours"),
        ({"affects": "same"}, "`affects: same` does not rebuild by hours"),
        ({"affects": {"days": [0]}}, r"complete dates would be rebuilt despite `grain`; write hours: \[0\]"),
        ({"affects": {"days": [-1], "hours": [0]}}, r"either hours or days; write days as hours: \[-24\]"),
        ({"affects": {"requests": {"days": [-1], "hours": [0]}}}, "either hours or days"),
        ({"grain": None, "affects": {"hours": [0]}}, "'minutes' is rebuilt by dates; write days"),
        ({"grain": None, "affects": {"requests": {"hours": [0]}}}, "'minutes' is rebuilt by dates; write days"),
        (
            {"dedupe": {"by": "event_id"}},
            "duplicates that are dates apart would rebuild complete dates",
        ),
        ({"grain": {"column": "minute", "part": "day"}}, "Input should be 'hour'"),
        ({"refresh_seconds": 14}, "greater than or equal to 15"),
        ({"dedupe": {"by": "event_id", "within_hours": -1}}, "greater than or equal to 0"),
    ],
)
def test_conflicts_with_a_grain_are_rejected_with_advice(changes: dict[str, Any], rejection_of: str) -> None:
    with pytest.raises(ValueError, match=rejection_of):
        declared(**changes)


def test_a_missing_grain_column_is_found_in_the_sql(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text("pipeline: traffic\ngold:\n  tables:\n    - name: minutes\n      grain: {column: minute}\n")
    (tmp_path / "m.sql").write_text("SELECT event_date, date_trunc('MINUTE', event_time) AS minutes FROM requests")

    (spec_error,) = gold_sql_errors(declared(), read_declaration(path))

    assert spec_error.text.startswith("the result of m.sql has no column 'minute'; did you mean 'minutes'?")
    assert (spec_error.key, spec_error.line) == ("gold.tables.0.grain.column", 5)


def test_fingerprints_do_not_depend_on_the_refresh_interval_or_the_unused_dedupe_window() -> None:
    daily = GoldTableSpec(name="daily", sql="d.sql", reads=("requests",), partition_by="event_date")
    minutes = GoldTableSpec.model_validate(MINUTES)

    def digest(table: GoldTableSpec, **dedupe: int) -> str:
        return fingerprint(table, "SELECT 1", DedupeSpec(**dedupe), {})

    assert digest(daily) == digest(daily, within_hours=3) != digest(daily, within_days=2)
    assert digest(minutes, within_hours=1) == digest(minutes, within_hours=1, within_days=2) != digest(minutes)
    often = minutes.model_copy(update={"refresh_seconds": 60})
    assert digest(often, within_hours=1) == digest(minutes, within_hours=1)
