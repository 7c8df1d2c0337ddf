"""The reload of suppression lists of a collector, and its end within a timeout."""

from __future__ import annotations

import threading
from pathlib import Path

from deltaworks.collector_host.redaction import CollectorRedaction, SuppressionReload
from deltaworks.control.objects import LocalObjects


class HangingStore(LocalObjects):
    """A storage that does not answer until it is released."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.was_read = threading.Event()
        self.answers = threading.Event()

    def list(self, prefix: str) -> list[str]:
        self.was_read.set()
        self.answers.wait()
        return super().list(prefix)


def test_a_reload_that_waits_for_the_lake_reports_that_it_has_not_ended(tmp_path: Path) -> None:
    lake = HangingStore(tmp_path)
    reload = SuppressionReload(CollectorRedaction(namespaces={"shop": "customers"}), lake, seconds=0)
    reload.start()

    assert lake.was_read.wait(60)
    assert not reload.stop(timeout_seconds=0)
    lake.answers.set()
    assert reload.stop(timeout_seconds=60)
