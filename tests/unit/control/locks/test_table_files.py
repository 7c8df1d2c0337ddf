"""Files of a table are deleted, or put back, by one job at a time; of other tables meanwhile all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaworks.control import paths
from deltaworks.control.locks.table_files import files_lease, files_leases
from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ConcurrencyError
from tests.waiting import eventually


def test_a_second_job_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)

    def vacuum(table: str = "orders") -> None:
        with files_lease(objects, "shop", table, work="VACUUM", wait_seconds=0) as check:
            check()

    with files_leases(objects, "shop", ["orders", "items"], work="The restore"):
        with pytest.raises(ConcurrencyError, match=r"TABLE_FILES_HELD.*VACUUM of shop\.orders") as refused:
            vacuum()
        assert refused.value.retryable
        vacuum("quarantine")

    vacuum()
    vacuum("items")


def test_whoever_is_overtaken_commits_nothing_more(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    with files_lease(objects, "shop", "orders", work="The restore", wait_seconds=0, ttl_seconds=0.3) as check:
        objects.put(paths.pipeline_control("shop", "maintenance/files-orders.json"), b"another's")
        with pytest.raises(ConcurrencyError, match="TABLE_FILES_HELD"):
            eventually(lambda: check() is not None, "it is told that the lease is lost")
