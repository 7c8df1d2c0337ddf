"""The folder of an experiment on S3: refused unless new, deleted at the end, and nothing else is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.control.objects import open_objects
from deltaworks.errors import ContractError
from sandbox.experiments.scratch_folder import scratch_folder
from sandbox.servers.object_store import lake_storage, running_object_store


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
