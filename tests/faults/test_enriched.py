"""The IP database is replaced repeatedly while a stream reads it, and drivers are killed: all rows of a batch must be
enriched from one version. Without a fixed version per batch they mix two.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from deltaworks.control import paths
from deltaworks.testing import declare_columns, table_rows
from tests.faults.harness.driver import Driver
from tests.faults.harness.fault_project import PIPELINE, FaultProject
from tests.faults.harness.injection import Fault
from tests.shared_data import SHARED_DATA

NAME = "geo/City.mmdb"
MAXMIND = SHARED_DATA / "maxmind"
#: One version does not contain the address, the other one returns a city.
VERSIONS = ("GeoLite2-City-Test.mmdb", "GeoIP2-City-Test.mmdb")
ADDRESS, CITY = "214.78.120.0", "San Diego"
BATCHES, FILES = 6, 8
pytestmark = pytest.mark.skipif(
    not (MAXMIND / VERSIONS[0]).exists(),
    reason=f"no databases at {MAXMIND}; name their folder in DELTAWORKS_SHARED_DATA",
)


class Lookups:
    """A stream of events with one IP address, and the enriched values of its batches."""

    def __init__(self, stage: FaultProject) -> None:
        self.stage = stage
        self.versions = [(MAXMIND / name).read_bytes() for name in VERSIONS]
        columns = declare_columns("n long required", "city string from _geo.city")
        fields = {"city": "city.names.en"}
        stage.declare(
            tables=[{"name": "events", "catch_all": True, "columns": columns}],
            enrich=[{"name": "geo", "kind": "mmdb", "path": "address", "database": NAME, "fields": fields}],
            source={"max_files_per_batch": FILES},
            stream={"tasks_per_batch": FILES},
        )
        self.put(0)

    def put(self, version: int) -> None:
        """Replaces the database with one of the two versions."""
        self.stage.objects.put(paths.database(NAME), self.versions[version])

    def land(self, files: int) -> None:
        for _ in range(files):
            self.stage.announce([self.stage.event("seen", address=ADDRESS) for _ in range(20)])

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Alternates between both versions inside the block."""
        ended = threading.Event()

        def replace() -> None:
            for version in itertools.cycle((1, 0)):
                if ended.wait(0.15):
                    return
                self.put(version)

        thread = threading.Thread(target=replace)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def answers(self) -> list[set[Any]]:
        """Returns the enriched values of each batch; a batch is one commit of the table."""
        table = DeltaTable(self.stage.storage.uri(paths.table(PIPELINE, "events")))
        before: set[str] = set()
        answers = []
        for version in range(table.version() + 1):
            table.load_as_version(version)
            files = set(table.file_uris())
            values = [pq.read_table(file, columns=["city"]).column("city").to_pylist() for file in files - before]
            before = files
            if values:
                answers.append(set(itertools.chain.from_iterable(values)))
        return answers

    def rows(self) -> int:
        return len(table_rows(self.stage.lake, PIPELINE, "events", "n"))


@pytest.mark.parametrize("off", ["", "pin_databases"])
def test_no_batch_has_answers_of_two_versions_however_often_the_database_is_replaced(
    make_stage: Callable[..., FaultProject], print_result: Callable[..., None], off: str
) -> None:
    lookups = Lookups(make_stage(tables=1))
    lookups.land(BATCHES * FILES)
    with lookups.replaced(), Driver(lookups.stage, off=[off] * bool(off)) as driver:
        driver.run_to_end()
    answers = lookups.answers()
    mixed = sum(len(values) > 1 for values in answers)
    print_result("database replaced under a stream", off or "protected", f"{len(answers)} batches, {mixed} mixed")
    assert lookups.rows() == BATCHES * FILES * 20
    assert set().union(*answers) == {None, CITY}, "only one version was ever read"
    assert (mixed > 0) == bool(off)


def test_a_batch_that_was_prepared_is_finished_with_the_answers_it_has(make_stage: Callable[..., FaultProject]) -> None:
    lookups = Lookups(make_stage(tables=1))
    lookups.land(FILES)
    with Driver(lookups.stage, faults=[Fault(point="prepared")]) as driver:
        assert driver.wait() != 0, driver.tail()
        driver.first_fault_at()
    assert lookups.rows() == 0
    lookups.put(1)
    lookups.land(FILES)
    with Driver(lookups.stage) as driver:
        driver.run_to_end()
    assert lookups.answers() == [{None}, {CITY}]
