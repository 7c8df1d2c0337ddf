"""The declaration that `growth` spreads events over is one that a task can read again."""

from __future__ import annotations

import pytest

from benchmarks import sides
from benchmarks.spread_files import spread_spec
from deltaworks.specs.pipeline import PipelineSpec


@pytest.mark.parametrize("tables", [1, 10])
def test_a_spread_declaration_reads_back_as_itself(tables: int) -> None:
    spec = spread_spec(sides.games_spec(), tables)

    read = PipelineSpec.model_validate_json(spec.model_dump_json())

    assert [table.name for table in read.tables] == [f"type_{number:03d}" for number in range(tables)]
