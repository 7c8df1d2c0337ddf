"""Objects that crash the worker are quarantined alone; a listener receives every batch, cannot affect the stream.

Of the ways to crash a segmentation fault is tried in each run; its twins marked `integration` differ in how the worker
ends.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltaworks.control import paths
from deltaworks.engine import progress
from deltaworks.engine.driver_host import DriverMetrics
from deltaworks.engine.progress import BatchReport, ProgressLog
from deltaworks.engine.queries import IngestListener, listener_attached
from deltaworks.errors import ConfigError
from deltaworks.events.chunks import Payload
from deltaworks.sources.base import ObjectSlice, RecordSlice
from deltaworks.sources.objects.payloads import FileReference
from deltaworks.sources.records import Record
from deltaworks.tables.lake import Lake
from deltaworks.testing import local_storage, present
from tests.records import record_of
from tests.spark.engine.conftest import DECLARED, Shop, payload
from tests.waiting import PATIENCE_SECONDS, eventually

#: How an object kills its reader after its first event, by the object's first bytes.
CRASH_KINDS = {
    "a segmentation fault": b"#segfault#",
    "memory that libraries do not get": b"#memory#",
    "a stall that holds the interpreter": b"#stall#",
}
TABLES = [table for table in DECLARED["tables"] if "writer" not in table]  # type: ignore[attr-defined]


def crashing_payloads(opener: Callable[[FileReference], Payload]) -> Callable[[FileReference], Payload]:
    """An opener whose workers crash within payloads that begin with a crash kind. Pickled by value."""

    ways = tuple(CRASH_KINDS.values())

    def open_and_arm(reference: FileReference) -> Payload:
        from deltaworks.events.parse import Parser

        if not hasattr(Parser, "harmless"):
            Parser.harmless = Parser._frame_payload  # type: ignore[attr-defined]

            def framed(self: Any, opened: Any, frame: Any) -> Any:
                data = opened.data or b""
                # Only for these objects: the worker also reads other tests' objects, including logs that begin with #.
                way = next((way for way in ways if data.startswith(way)), b"")
                for framed_event in self.harmless(replace(opened, data=data[len(way) :]), frame):
                    yield framed_event
                    if way:
                        die(way)

            Parser._frame_payload = framed  # type: ignore[method-assign]
        return opener(reference)

    def die(way: bytes) -> None:
        import ctypes
        import re

        if way == b"#segfault#":
            ctypes.string_at(0)
        elif way == b"#memory#":
            size = 1 << 30
            library = ctypes.CDLL(None)
            library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
            library.free.argtypes = [ctypes.c_void_p]
            # A library that does not validate its input; with enough memory nothing happens.
            taken = library.malloc(size)
            ctypes.memset(taken, 1, size)
            library.free(taken)
        else:
            re.match(r"(a+)+$", "a" * 60 + "b")

    return open_and_arm


def batch(shop: Shop, deaths: dict[int, bytes], *seqs: int) -> ObjectSlice:
    """Objects with these numbers, some of which crash their readers."""
    source = shop.land_files(*seqs)
    for seq, way in deaths.items():
        path = shop.root / "landing" / f"f{seq}.json"
        path.write_bytes(way + path.read_bytes())
    return replace(source, opener=crashing_payloads(shop.opener()))


def quarantined_whole(shop: Shop) -> dict[int, tuple[str, str, str]]:
    rows = [row for row in shop.table("quarantine").to_pylist() if row["_position"] == -1]
    reasons = [(row["_seq"], row["object_key"], row["reasons"][0]) for row in rows]
    assert len({seq for seq, _, _ in reasons}) == len(reasons)
    return {seq: (key, reason["code"], reason["detail"]) for seq, key, reason in reasons}


@pytest.mark.parametrize(
    "way",
    [
        way if number == 0 else pytest.param(way, marks=pytest.mark.integration)
        for number, way in enumerate(CRASH_KINDS)
    ],
)
def test_an_object_that_crashes_its_reader_is_quarantined_and_the_others_are_committed_once(
    make_shop: Callable[..., Shop], way: str
) -> None:
    shop = make_shop(tables=TABLES, stream={"object_timeout_seconds": 4, "task_memory": "512m", "tasks_per_batch": 2})
    processor = shop.processor()

    report = processor.process(batch(shop, {3: CRASH_KINDS[way]}, 1, 2, 3, 4, 5), 0)
    processor.process(batch(shop, {}, 6, 7), 1)

    assert report is not None
    assert shop.landed() == shop.expected(1, 2, 4, 5, 6, 7) + Counter({("quarantine", 3, -1): 1})
    (key, code, detail) = quarantined_whole(shop)[3]
    assert (key, code) == ("f3.json", "object_unreadable")
    assert detail.startswith("2 of 2 tasks reading it crashed: the Python worker crashed")
    if way == "a stall that holds the interpreter":
        assert detail.endswith("the limit is 4 s per payload")
    assert shop.objects.list(paths.pipeline_control("shop", "crashes")) == []


@pytest.mark.integration
def test_several_crashing_objects_in_one_task_and_at_both_ends(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(tables=TABLES, stream={"crashes_per_object": 1, "tasks_per_batch": 1})
    evil = dict.fromkeys((1, 3, 4, 6), CRASH_KINDS["a segmentation fault"])

    shop.processor().process(batch(shop, evil, 1, 2, 3, 4, 5, 6), 0)

    assert shop.landed() == shop.expected(2, 5) + Counter({("quarantine", seq, -1): 1 for seq in evil})
    assert {code for _, code, _ in quarantined_whole(shop).values()} == {"object_unreadable"}


def test_the_open_object_of_a_crashed_driver_is_identified_by_the_next_run(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(tables=TABLES)
    source = batch(shop, {2: CRASH_KINDS["a segmentation fault"]}, 1, 2, 3)
    folder = paths.batch_crashes("shop", 1, 0)
    shop.objects.put(f"{folder}/open_marker.json", b'{"seq": 2}')
    shop.objects.put(f"{folder}/crashes.json", b'{"2": 1}')

    shop.processor(predecessor_crashed=True).process(source, 0)

    assert shop.landed() == shop.expected(1, 3) + Counter({("quarantine", 2, -1): 1})
    assert quarantined_whole(shop)[2][2] == "2 of 2 tasks reading it crashed: the driver died as well"


def test_isolated_and_normal_reads_give_the_same_rows(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(tables=TABLES)

    shop.processor(predecessor_crashed=True).process(shop.land_files(1, 2, 3), 0)

    assert shop.landed() == shop.expected(1, 2, 3)
    assert shop.objects.list(paths.pipeline_control("shop", "crashes")) == []


#: An installed library that crashes on every read, placed before the real one on the workers' path.
BROKEN_LIBRARY = """
import ctypes, importlib.machinery, importlib.util, sys
from pathlib import Path

places = [place for place in sys.path if Path(place).resolve() != Path(__file__).resolve().parent]
spec = importlib.machinery.PathFinder.find_spec("orjson", places)
module = sys.modules["orjson"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.loads = lambda data: ctypes.string_at(0)
"""


@contextmanager
def broken_library(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Python workers started in the block crash with a segmentation fault on any JSON."""
    folder.mkdir()
    (folder / "orjson.py").write_text(BROKEN_LIBRARY)
    variables = spark.sparkContext.environment
    before = variables.get("PYTHONPATH")
    variables["PYTHONPATH"] = os.pathsep.join([str(folder), *([before] if before else [])])
    try:
        yield
    finally:
        del variables["PYTHONPATH"]
        if before is not None:
            variables["PYTHONPATH"] = before


def test_workers_that_crash_on_every_payload_end_the_stream_and_blame_no_object(
    make_shop: Callable[..., Shop], spark: SparkSession, tmp_path: Path
) -> None:
    shop = make_shop(tables=TABLES, stream={"crashes_per_object": 1})
    processor, source = shop.processor(), shop.land_files(1, 2, 3)

    with broken_library(spark, tmp_path / "broken"), pytest.raises(ConfigError) as ended:
        processor.process(source, 0)

    assert (ended.value.condition, ended.value.retryable) == ("WORKERS_CRASH", False)
    assert shop.landed() == Counter()
    assert shop.objects.list(paths.pipeline_control("shop", "crashes")) == []

    shop.processor().process(source, 0)

    assert shop.landed() == shop.expected(1, 2, 3)


def test_a_record_that_crashes_its_reader_is_quarantined_with_its_bytes(
    make_shop: Callable[..., Shop], spark: SparkSession
) -> None:
    kafka = {"kind": "kafka", "bootstrap_servers": "unused:9092", "topics": ["orders"]}
    shop = make_shop(tables=TABLES, source=kafka, stream={"crashes_per_object": 1, "tasks_per_batch": 2})
    values = {seq: payload(seq) for seq in range(1, 200)}
    values[77] = CRASH_KINDS["a segmentation fault"] + values[77]
    arm = crashing_payloads(lambda reference: Payload(0, "", b""))

    def records(batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
        arm(FileReference(0, "", ""))
        for rows in batches:
            for seq, value in zip(rows["seq"].to_pylist(), rows["value"].to_pylist(), strict=True):
                yield Record(Payload(seq, f"orders/0/{seq}", value, record={"offset": seq}), 1)

    frame = spark.createDataFrame(pd.DataFrame({"seq": list(values), "value": list(values.values())}))
    source = RecordSlice(frame, records)

    report = shop.processor().process(source, 0)

    assert report is not None
    landed = shop.landed()
    assert landed[("quarantine", 77, -1)] == 1
    assert {seq for table, seq, _ in landed if table == "events"} == set(values) - {77}
    assert set(landed.values()) == {1}
    assert source.metadata["records"] == len(values)
    (row,) = [row for row in shop.table("quarantine").to_pylist() if row["_position"] == -1]
    assert row["reasons"][0]["code"] == "object_unreadable"
    assert row["raw"].encode().startswith(CRASH_KINDS["a segmentation fault"])
    assert json.loads(row["record"]) == {"offset": 77}


REPORT = record_of(BatchReport, batch_id=0, rows=5)


def run_three_batches(spark: SparkSession, folder: Path, land: Callable[[Any, int], None]) -> None:
    """Runs three batches of five rows, with the query name of the listener."""
    query = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", 5)
        .load()
        .writeStream.foreachBatch(land)
        .queryName("shop.ingest")
        .option("checkpointLocation", f"file://{folder}/checkpoint")
        .trigger(processingTime="0 seconds")
        .start()
    )
    while len(query.recentProgress) < 3 and query.isActive:
        time.sleep(0.1)
    query.stop()
    failure = query.exception()
    assert failure is None, failure


def test_every_batch_has_a_row_with_its_phases_and_the_end_has_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_TERMINATION_WAIT_SECONDS", PATIENCE_SECONDS)
    storage = local_storage(tmp_path)
    log = ProgressLog(storage, "shop", owner_epoch=1, flush_seconds=0.2, metrics=DriverMetrics(spark))
    log.start()
    listener = IngestListener(
        "shop.ingest", on_progress=log.add_spark_progress, on_idle=log.add_idle, on_terminated=log.add_termination
    )

    with listener_attached(spark, listener):
        run_three_batches(spark, tmp_path, lambda batch, number: log.add(REPORT, spark_batch_id=number))
        log.await_termination()
    log.close()

    written = present(Lake(storage).rows(paths.pipeline_control("shop", "progress")))
    rows = sorted(written.to_pylist(), key=lambda row: row["at"])
    batches = [row for row in rows if row["kind"] == "batch"]
    assert rows[-1]["kind"] == "terminated"
    assert len(batches) >= 3
    for row in batches[:3]:
        assert json.loads(row["phases_ms"])["addBatch"] >= 0
        assert row["end_offset"]
        assert row["jvm_heap_bytes"] > 1 << 20
    assert (log.dropped, listener.failures) == (0, 0)


def test_a_failing_listener_does_not_affect_the_query(spark: SparkSession, tmp_path: Path) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("broken")

    listener = IngestListener("shop.ingest", on_progress=fails, on_idle=fails, on_terminated=fails)
    seen: list[int] = []

    with listener_attached(spark, listener):
        run_three_batches(spark, tmp_path, lambda batch, number: seen.append(number))
        eventually(lambda: listener.failures >= 3, "it has failed at each batch")

    assert seen[:3] == [0, 1, 2]
