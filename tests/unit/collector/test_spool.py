"""The spool with power failures at every call, failing and full disks: acknowledged events survive."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.recovery import recover
from collector.segments import Frame, Segment
from collector.spool import Spool
from collector.spool_folder import SpoolFolder
from collector.submissions import Entry, Submission, WriteResult
from deltaworks.errors import TransientError
from deltaworks.specs.collector import SpoolSpec
from tests.examples import examples
from tests.unit.collector.volatile_disk import VolatileDisk

WAIT_SECONDS = 20


class SpoolRun:
    """One life of a process: its folder, a spool on a volatile disk, and what was answered."""

    def __init__(self, path: Path, disk: VolatileDisk, *, spool: type[Spool] = Spool, **spec: object) -> None:
        self.folder = SpoolFolder.acquire(path)
        self.recovered = recover(self.folder)
        self.errors: list[TransientError] = []
        self.disk = disk
        self.answers: dict[str, WriteResult] = {}
        self._answered = threading.Condition()
        self.spool = spool(
            self.folder,
            SpoolSpec.model_validate(spec),
            next_seq=self.recovered.next_seq,
            on_failure=self.errors.append,
            disk=disk,
        )
        self.spool.start()

    def send(self, *names: str) -> None:
        """Submit requests of one event each, and wait until all are answered."""
        for name in names:
            self.submit(name, [name])
        self.wait(names)

    def submit(self, request: str, names: list[str]) -> None:
        entries = [Entry(3, (b'{"seq":', b',"name":"' + name.encode() + b'"}')) for name in names]
        self.spool.submit(entries, lambda written: self._note(request, written))

    def wait(self, requests: tuple[str, ...] | list[str]) -> None:
        with self._answered:
            assert self._answered.wait_for(lambda: all(name in self.answers for name in requests), WAIT_SECONDS)

    def _note(self, request: str, written: WriteResult) -> None:
        with self._answered:
            self.answers[request] = written
            self._answered.notify_all()

    def taken(self) -> list[str]:
        return [name for name, written in self.answers.items() if written.problem is None]

    def end(self, chance: random.Random | None = None, *, keeps: float = 0.5) -> None:
        """Let the power fail, or without a chance end in peace."""
        self.spool.close()
        self.folder.close()
        self.disk.lose_power(chance or random.Random(0), keeps=keeps if chance else 1.0)


def events(path: Path) -> dict[int, str]:
    """The events of a folder by number, after what a new process does first."""
    folder = SpoolFolder.acquire(path)
    recovered = recover(folder)
    lying: dict[int, str] = {}
    for file in folder.segments():
        for frame in Segment.open(file).scan():
            assert isinstance(frame, Frame), frame
            assert frame.seq not in lying, "a number twice"
            number, _, name = frame.payload.decode().removeprefix('{"seq":').partition(',"name":"')
            assert int(number) == frame.seq
            lying[frame.seq] = name.removesuffix('"}')
    folder.close()
    assert list(lying) == list(range(1, recovered.next_seq)), "numbers have no gap"
    return lying


def requests(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


@pytest.mark.parametrize("segment_bytes", [1, 200, 1 << 20])
def test_every_acknowledged_event_survives_a_power_failure_at_any_call(tmp_path: Path, segment_bytes: int) -> None:
    fails_at, done = 0, False
    while not done:
        path, chance = tmp_path / str(fails_at), random.Random(fails_at)
        first = SpoolRun(path, VolatileDisk(fails_at=fails_at), segment_bytes=segment_bytes)
        for name in requests("a", 4):
            first.send(name)
        done = len(first.taken()) == 4
        first.end(chance)
        second = SpoolRun(path, VolatileDisk(fails_at=fails_at), segment_bytes=segment_bytes)
        second.send(*requests("b", 5))
        second.end(chance)

        there = events(path).values()
        assert {*first.taken(), *second.taken()} <= {*there}
        assert len({*there}) == len(there), "an event twice"
        fails_at += 1
    assert fails_at > 10, "many calls were tried"


@settings(max_examples=examples(200))
@given(
    seed=st.integers(0, 2**32),
    lives=st.lists(st.tuples(st.integers(0, 40), st.lists(st.integers(1, 4), max_size=6)), min_size=1, max_size=4),
    faults=st.dictionaries(st.integers(0, 40), st.sampled_from(["EIO", "ENOSPC", "short"]), max_size=6),
    segment_bytes=st.sampled_from([1, 150, 400, 1 << 20]),
)
def test_after_any_failure_acknowledgements_hold_and_numbers_have_no_gap(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    lives: list[tuple[int, list[int]]],
    faults: dict[int, str],
    segment_bytes: int,
) -> None:
    path, chance = tmp_path_factory.mktemp("spool"), random.Random(seed)
    sent: dict[str, list[str]] = {}
    promised: set[str] = set()
    for life_number, (fails_at, sizes) in enumerate(lives):
        spool_run = SpoolRun(path, VolatileDisk(fails_at=fails_at, fault=failing(faults)), segment_bytes=segment_bytes)
        names = []
        for number, size in enumerate(sizes):
            request = f"{life_number}.{number}"
            sent[request] = [f"{request}.{event}" for event in range(size)]
            spool_run.submit(request, sent[request])
            names.append(request)
        spool_run.wait(names)
        promised |= {event for request in spool_run.taken() for event in sent[request]}
        numbers = {request: spool_run.answers[request].first_seq for request in spool_run.taken()}
        spool_run.end(chance)

        there = events(path)
        assert promised <= {*there.values()}
        assert len({*there.values()}) == len(there)
        for request, first_seq in numbers.items():
            assert first_seq is not None
            assert [there[first_seq + at] for at in range(len(sent[request]))] == sent[request], "in order"


def failing(faults: dict[int, str]) -> Callable[[str, int, int], int]:
    """Calls that fail, or take a part of a write."""

    def fault(kind: str, number: int, size: int) -> int:
        match faults.get(number):
            case "EIO":
                raise OSError(errno.EIO, "input/output error")
            case "ENOSPC" if kind in ("write", "create"):
                raise OSError(errno.ENOSPC, "no space left")
            case "short" if kind == "write":
                return max(1, size // 3)
        return size

    return fault


@pytest.mark.parametrize("off", ["syncs", "syncs_folder"])
def test_without_the_sync_of_a_file_or_its_name_an_acknowledged_event_would_be_lost(tmp_path: Path, off: str) -> None:
    spool_run = SpoolRun(tmp_path, VolatileDisk(**{off: False}))
    spool_run.send("a")
    spool_run.end(random.Random(1), keeps=0.0)

    assert spool_run.taken() == ["a"]
    assert events(tmp_path) == {}


class EarlySpool(Spool):
    """Answers before the commit."""

    def submit(self, entries, done) -> None:  # type: ignore[no-untyped-def]
        done(WriteResult(1))
        super().submit(entries, lambda written: None)


def test_an_acknowledgement_before_the_commit_would_be_false(tmp_path: Path) -> None:
    spool_run = SpoolRun(tmp_path, VolatileDisk(fails_at=2), spool=EarlySpool)
    spool_run.send("a")
    spool_run.end(random.Random(1), keeps=0.0)

    assert (spool_run.taken(), events(tmp_path)) == (["a"], {})


def test_all_queued_requests_are_synced_once(tmp_path: Path) -> None:
    gate, syncs = threading.Event(), []

    def slow(kind: str, number: int, size: int) -> int:
        if kind == "sync":
            syncs.append(number)
            gate.wait(WAIT_SECONDS)
        return size

    spool_run = SpoolRun(tmp_path, VolatileDisk(fault=slow))
    names = requests("a", 100)
    for name in names:
        spool_run.submit(name, [name])
    gate.set()
    spool_run.wait(names)
    spool_run.end()

    assert len(syncs) <= 4, "the header, the first ones, and all the others together"
    assert list(events(tmp_path).values()) == names


def test_a_failed_sync_is_not_repeated_and_the_next_request_begins_a_segment(tmp_path: Path) -> None:
    faults = Faults()
    spool_run = SpoolRun(tmp_path, VolatileDisk(fault=faults))
    spool_run.send("a")
    faults.kinds["sync"] = errno.EIO
    spool_run.send("b")
    faults.kinds.clear()
    spool_run.send("c")
    segments = {call for call in faults.calls if call == "create"}
    spool_run.end()

    assert [spool_run.answers[name].problem for name in "abc"] == [None, "disk", None]
    assert spool_run.answers["c"].first_seq == 2, "the number of what was not taken is given again"
    assert faults.calls.count("create") == 2, segments
    assert events(tmp_path) == {1: "a", 2: "c"}
    assert spool_run.errors == []


class ContinuingSpool(Spool):
    """Writes on in a segment whose sync has failed."""

    def _reject_group(self, group, error, *, before_sync) -> None:  # type: ignore[no-untyped-def]
        self._on_group_written([(submission.on_written, WriteResult(problem="disk")) for submission in group])


def test_continuing_after_a_failed_sync_would_give_one_number_to_two_events(tmp_path: Path) -> None:
    faults = Faults()
    spool_run = SpoolRun(tmp_path, VolatileDisk(fault=faults), spool=ContinuingSpool)
    spool_run.send("a")
    faults.kinds["sync"] = errno.EIO
    spool_run.send("b")
    faults.kinds.clear()
    spool_run.send("c")
    spool_run.end()

    assert spool_run.taken() == ["a", "c"]
    with pytest.raises(AssertionError, match="a number twice"):
        events(tmp_path)


class Faults:
    """Fails calls of some kinds, and remembers all. The first write that fails takes `takes` bytes before."""

    def __init__(self, *, takes: int = 0) -> None:
        self.kinds: dict[str, int] = {}
        self.calls: list[str] = []
        self._takes = takes

    def __call__(self, kind: str, number: int, size: int) -> int:
        self.calls.append(kind)
        if kind in self.kinds:
            if kind == "write" and self._takes:
                taken, self._takes = self._takes, 0
                return taken
            raise OSError(self.kinds[kind], "fault")
        return size


def test_two_failed_syncs_in_a_row_end_the_process(tmp_path: Path) -> None:
    faults = Faults()
    spool_run = SpoolRun(tmp_path, VolatileDisk(fault=faults))
    spool_run.send("a")
    faults.kinds["sync"] = errno.EIO
    spool_run.send("b")
    assert spool_run.errors == []
    spool_run.send("c")
    spool_run.end()

    assert [(error.condition, error.exit_code) for error in spool_run.errors] == [("SPOOL_FAILED", 21)]
    assert events(tmp_path) == {1: "a"}


def test_a_full_disk_rejects_requests_and_the_segment_continues_once_there_is_space(tmp_path: Path) -> None:
    faults = Faults()
    spool_run = SpoolRun(tmp_path, VolatileDisk(fault=faults))
    spool_run.send("a")
    faults.kinds["write"] = errno.ENOSPC
    for name in "bcde":
        spool_run.send(name)
    faults.kinds.clear()
    spool_run.send("f")
    spool_run.end()

    assert [spool_run.answers[name].problem for name in "abcdef"] == [None, *["disk"] * 4, None]
    assert faults.calls.count("create") == 1
    assert "truncate" in faults.calls
    assert events(tmp_path) == {1: "a", 2: "f"}
    assert spool_run.errors == [], "no reason to end"


@pytest.mark.parametrize("truncates", [True, False])
def test_a_partial_write_on_a_full_disk_is_truncated_so_its_number_is_not_reused(
    tmp_path: Path, truncates: bool
) -> None:
    faults = Faults(takes=50)  # the first event of the request, and a piece of the second
    spool_run = SpoolRun(tmp_path, VolatileDisk(fault=faults, truncates=truncates))
    spool_run.send("a")
    faults.kinds["write"] = errno.ENOSPC
    spool_run.submit("b", ["b1", "b2"])
    spool_run.wait(["b"])
    faults.kinds.clear()
    spool_run.send("c")
    spool_run.end()

    assert spool_run.taken() == ["a", "c"]
    if truncates:
        assert events(tmp_path) == {1: "a", 2: "c"}
    else:
        with pytest.raises(AssertionError, match="a number twice"):
            events(tmp_path)


def test_a_full_spool_rejects_requests_until_segments_are_deleted(tmp_path: Path) -> None:
    folder = SpoolFolder.acquire(tmp_path)
    spool = Spool(folder, SpoolSpec(max_bytes=1000, segment_bytes=1), next_seq=1)
    spool.start()
    answered = threading.Event()
    spool.submit([Entry(0, (b"x" * 950,))], lambda written: answered.set())
    assert answered.wait(WAIT_SECONDS)

    assert (spool.rejection_reason(), spool.fill_ratio()) == ("spool_full", 1.0)
    for segment in folder.segments():
        segment.unlink()
    spool.refresh_disk_usage()
    assert (spool.rejection_reason(), spool.fill_ratio()) == (None, 0.0)
    spool.close()
    folder.close()


def test_without_the_quota_no_request_would_be_rejected(tmp_path: Path) -> None:
    folder = SpoolFolder.acquire(tmp_path)
    spool = Spool(folder, SpoolSpec(max_bytes=1 << 50, segment_bytes=1), next_seq=1)
    spool.start()
    for _ in range(3):
        answered = threading.Event()
        spool.submit([Entry(0, (b"x" * 950,))], lambda written, done=answered: done.set())  # type: ignore[misc]
        assert answered.wait(WAIT_SECONDS)

    assert spool.rejection_reason() is None
    assert folder.size_bytes() > 2500
    spool.close()
    folder.close()


def test_requests_are_rejected_before_the_disk_is_full(tmp_path: Path) -> None:
    folder = SpoolFolder.acquire(tmp_path)
    spool = Spool(folder, SpoolSpec(min_free_percent=51), next_seq=1, disk=VolatileDisk())

    assert (spool.rejection_reason(), spool.fill_ratio()) == ("disk", 1.0)
    folder.close()


def test_a_segment_also_ends_by_age_and_readers_see_durable_events_only(tmp_path: Path) -> None:
    folder = SpoolFolder.acquire(tmp_path)
    now = [1000.0]
    spool = Spool(folder, SpoolSpec(segment_seconds=60), next_seq=7, clock=lambda: now[0])
    spool.start()
    assert spool.durable_position() == (7, 44)
    for _ in range(3):
        answered = threading.Event()
        spool.submit([Entry(0, (b"[", b"]"))], lambda written, done=answered: done.set())  # type: ignore[misc]
        assert answered.wait(WAIT_SECONDS)
        first, end = spool.durable_position()
        assert end == (tmp_path / f"seg-{first:020d}.wal").stat().st_size
        now[0] = 1061.0
    spool.close()
    assert len(folder.segments()) == 2, "the one that was old was closed, and the next one is not old yet"
    folder.close()


def test_submissions_after_the_close_are_rejected(tmp_path: Path) -> None:
    spool_run = SpoolRun(tmp_path, VolatileDisk())
    spool_run.end()
    spool_run.send("a")

    assert spool_run.answers["a"].problem == "draining"


@pytest.mark.parametrize(("max_bytes", "fits"), [(4_000, False), (1 << 40, True)])
def test_a_request_that_would_exceed_the_quota_is_rejected_when_it_is_committed(
    max_bytes: int, fits: bool, tmp_path: Path
) -> None:
    folder = SpoolFolder.acquire(tmp_path)
    spool = Spool(folder, SpoolSpec(max_bytes=max_bytes, min_free_percent=0), next_seq=1)
    results: dict[int, WriteResult] = {}
    done = threading.Event()

    def on_written(size: int, written: WriteResult) -> None:
        results[size] = written
        if len(results) == 3:
            done.set()

    sizes = (1_000, 50_000, 1_001)
    spool.submit_all([Submission([Entry(0, (b"x" * size,))], partial(on_written, size)) for size in sizes])
    spool.start()
    assert done.wait(WAIT_SECONDS)
    spool.close()

    assert [results[size].problem for size in sizes] == [None, None if fits else "spool_full", None]
    assert folder.size_bytes() <= max_bytes
    assert spool.next_seq() == (4 if fits else 3)
    folder.close()


def test_dead_letters_count_against_the_quota(tmp_path: Path) -> None:
    folder = SpoolFolder.acquire(tmp_path)
    (tmp_path / "dead-letters-games.jsonl").write_bytes(bytes(5_000))
    spool = Spool(folder, SpoolSpec(max_bytes=4_000, min_free_percent=0), next_seq=1)
    assert spool.rejection_reason() == "spool_full"
    folder.close()
