"""Folders on S3: a table swap that the storage copies, and an experiment; other objects are not touched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError
from deltaworks.tables.commit import Step
from deltaworks.tables.files_commit import FilesCommit
from deltaworks.tables.lake import Lake, remove_folder
from deltaworks.tables.log import state_at
from deltaworks.tables.table_swap import swap_content, verify_swap
from deltaworks.testing import present
from sandbox.experiments.scratch_folder import scratch_folder
from sandbox.servers.object_store import lake_storage, running_object_store

TABLE, SHADOW = "tables/shop/daily", "control/pipelines/shop/gold_shadows/daily/000001"
COMMIT = FilesCommit(step=Step("shop/gold_refresh/daily", 1), user_metadata="{}", operation="WRITE")
AWKWARD = ["plain", "a b", "50%", "a+b", "ü", "a/b", "x=y", "a%20b"]


def write(lake: Lake, key: str, rows: list[dict[str, Any]]) -> None:
    options = lake.storage.deltalake_options()
    write_deltalake(lake.storage.uri(key), pa.Table.from_pylist(rows), partition_by=["org"], storage_options=options)


def content(lake: Lake) -> list[tuple[str, int]]:
    rows = present(lake.rows(TABLE))
    return sorted((row["org"], row["n"]) for row in rows.to_pylist())


def test_a_table_is_swapped_and_its_shadow_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_object_store(tmp_path, buckets=["bucket"]) as address:
        for name, value in address.environment().items():
            monkeypatch.setenv(name, value)
        storage = lake_storage("s3://bucket/lake")
        lake, objects = Lake(storage), open_objects(storage)
        write(lake, TABLE, [{"org": name, "n": 0} for name in AWKWARD])
        write(lake, SHADOW, [{"org": name, "n": number} for number, name in enumerate(AWKWARD, 1)])
        source = state_at(lake, objects, SHADOW)
        before = content(lake)

        done = swap_content(lake, objects, TABLE, source, commit=COMMIT)
        verify_swap(lake, objects, TABLE, source, version=done.version)
        after = content(lake)
        remove_folder(storage, SHADOW)

        assert before == sorted((name, 0) for name in AWKWARD)
        assert after == content(lake) == sorted((name, number) for number, name in enumerate(AWKWARD, 1))
        assert objects.list(f"{SHADOW}/") == []
        opened = present(lake.open(TABLE))
        opened.load_as_version(0)
        assert {row["n"] for row in opened.to_pyarrow_table().to_pylist()} == {0}, "the old table can be gone back to"


def test_it_is_removed_with_all_in_it_and_its_neighbours_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_object_store(tmp_path, buckets=["bucket"]) as address:
        for name, value in address.environment().items():
            monkeypatch.setenv(name, value)
        storage = lake_storage("s3://bucket/lake")
        objects = open_objects(storage)
        objects.put("experiments/run-12/mine", b"mine")
        inside = [f"experiments/run-1/{name}" for name in ("t/_delta_log/0.json", "t/org_id=a%20b/1.parquet")]

        with scratch_folder(storage, "experiments/run-1"):
            for key in inside:
                objects.put(key, b"rows")

        assert objects.list("experiments/") == ["experiments/run-12/mine"]
        with scratch_folder(storage, "experiments/run-1", keep=True):
            objects.put(inside[0], b"rows")
        with (
            pytest.raises(ContractError, match="EXPERIMENT_FOLDER_TAKEN"),
            scratch_folder(storage, "experiments/run-1"),
        ):
            pass
        assert objects.list("experiments/run-1/") == inside[:1]
