"""Entry point of a test project's stream that can hold a batch between its commits and its completion.

It runs the product's job. While a file `hold` exists in its folder, a committed batch is not completed, and a file
`held` is written. A file `off` names protections that the next driver runs without.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deltaworks.specs.catalog import PROJECT_ROOT
from tests.waiting import eventually

_ENTRY = f"""
import runpy
from pathlib import Path
from tests.faults.harness import held_stream, protections

switches = held_stream.Switches(Path(__file__).parent)
protections.switch_off(switches.off)
switches.hold_batches()
runpy.run_path("{PROJECT_ROOT}/spark_jobs/ingest_stream.py", run_name="__main__")
"""


@dataclass(frozen=True, slots=True)
class Switches:
    """The control files in the entry point's folder."""

    folder: Path

    @classmethod
    def install(cls, project: Path) -> Switches:
        """Replaces the stream's entry point with this one."""
        jobs = project / "spark_jobs"
        jobs.unlink()
        jobs.mkdir()
        for path in (PROJECT_ROOT / "spark_jobs").glob("*.py"):
            (jobs / path.name).symlink_to(path)
        (jobs / "ingest_stream.py").unlink()
        (jobs / "ingest_stream.py").write_text(_ENTRY)
        return cls(jobs)

    @property
    def off(self) -> list[str]:
        """Returns the disabled protections."""
        path = self.folder / "off"
        return path.read_text().split() if path.exists() else []

    def disable(self, *protections: str) -> None:
        """Disables these protections in drivers that start from now on."""
        (self.folder / "off").write_text(" ".join(protections))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds batches inside the block: committed, not completed."""
        hold, held = self.folder / "hold", self.folder / "held"
        hold.touch()
        try:
            eventually(held.exists, "a batch is committed")
            yield
        finally:
            hold.unlink()
            held.unlink(missing_ok=True)

    def hold_batches(self) -> None:
        """Makes this process hold batches while the file `hold` exists."""
        from tests.batch_points import call_at_points_of

        def hold(point: str) -> None:
            if point == "committed" and (self.folder / "hold").exists():
                (self.folder / "held").touch()
                while (self.folder / "hold").exists():
                    time.sleep(0.1)

        call_at_points_of(None, hold)
