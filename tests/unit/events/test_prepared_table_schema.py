"""Held-back files are compared with the table's schema when they are committed."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pytest

from deltaworks.control import paths
from deltaworks.control.records.prepared import PreparedBatch, PreparedTable
from deltaworks.engine.table_set import TableSet
from deltaworks.errors import ContractError
from deltaworks.events.evolution import EvolvedColumn, to_records
from deltaworks.events.table_columns import conform_prepared_table
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.tables.files import write_file
from deltaworks.tables.lake import arrow_path
from deltaworks.testing import local_lake
from tests.unit.engine.batch_records import prepared_batch


def prepared(share: PreparedTable) -> PreparedBatch:
    return prepared_batch(4, tables=(share,))


@pytest.mark.parametrize("declared", [True, False])
def test_columns_added_by_the_share_are_not_missing_in_the_table(
    make_spec: Callable[..., PipelineSpec], tmp_path: Path, declared: bool
) -> None:
    spec = make_spec(tables=[{"name": "orders", "catch_all": True, "evolve": "add_columns"}])
    lake = local_lake(tmp_path)
    tables = TableSet(lake, spec)
    tables.open()
    rows = pa.table({"_seq": [1], "_position": [0], "color": ["red"]})
    file = write_file(lake.filesystem, arrow_path(lake.storage, paths.table("shop", "orders")), rows, partition={})
    new = to_records([EvolvedColumn("color", ("color",), "string")]) if declared else ()
    share = PreparedTable(table="orders", writer="fan_out", rows=1, files=(asdict(file),), new_columns=new)

    if declared:
        assert conform_prepared_table(lake, tables.handles["orders"], prepared(share), share) == share
    else:
        with pytest.raises(ContractError, match="PREPARED_FILES_INCOMPATIBLE"):
            conform_prepared_table(lake, tables.handles["orders"], prepared(share), share)


def test_a_value_that_does_not_fit_the_table_is_not_in_the_error(
    make_spec: Callable[..., PipelineSpec], tmp_path: Path
) -> None:
    spec = make_spec(
        tables=[{"name": "orders", "catch_all": True, "columns": [{"name": "n", "path": "n", "type": "int"}]}]
    )
    lake = local_lake(tmp_path)
    tables = TableSet(lake, spec)
    tables.open()
    rows = pa.table({"_seq": [1], "_position": [0], "n": ["jane.doe@example.org"]})
    file = write_file(lake.filesystem, arrow_path(lake.storage, paths.table("shop", "orders")), rows, partition={})
    share = PreparedTable(table="orders", writer="fan_out", rows=1, files=(asdict(file),))

    with pytest.raises(ContractError) as refused:
        conform_prepared_table(lake, tables.handles["orders"], prepared(share), share)

    assert "n has a value that does not fit" in refused.value.message
    assert "jane" not in "".join(traceback.format_exception(refused.value))
