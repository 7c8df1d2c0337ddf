"""The folder of an experiment on local disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.errors import ContractError
from deltaworks.specs.storage import StorageSpec
from deltaworks.testing import local_storage
from sandbox.experiments.scratch_folder import scratch_folder


def fail_in(storage: StorageSpec, root: Path) -> None:
    with scratch_folder(storage, "run"):
        (root / "run" / "t").mkdir(parents=True)
        (root / "run" / "t" / ".f.parquet.crc").write_text("rows")
        raise ZeroDivisionError


def test_it_is_removed_after_an_error_too_unless_it_is_to_be_kept(tmp_path: Path) -> None:
    storage = local_storage(tmp_path)

    with pytest.raises(ZeroDivisionError):
        fail_in(storage, tmp_path)
    assert list(tmp_path.iterdir()) == []

    with scratch_folder(storage, "run", keep=True):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "kept").write_text("rows")
    with pytest.raises(ContractError, match="EXPERIMENT_FOLDER_TAKEN"), scratch_folder(storage, "run"):
        pass
    assert (tmp_path / "run" / "kept").exists()
