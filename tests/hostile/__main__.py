"""Runs hostile connections beside honest clients: `make hostile MINUTES=10`.

A collector accepts events of honest clients, on a plain source and on one that redacts personal data, together with a
thousand hostile connections of all kinds. A second collector on the same machine has the same honest clients alone at
the same time, so both meet the same load. Prints each kind and ends with `1 passed, 0 failed` or the opposite.

Fails if the 99th percentile of an honest client's response times is more than twice that of the second one, if an event
answered with 200 is not in the spool exactly once, if the collector uses more than 512 MB, if a connection lived
without progress, or if honest requests were rejected.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import uvloop

from collector.recovery import recover
from collector.segments import FrameKind, Segment
from collector.spool_folder import SpoolFolder
from deltaworks.specs.catalog import PROJECT_ROOT
from tests.hostile.kinds import IDLE_SECONDS, KINDS, LIFE_SECONDS
from tests.hostile.server import KEYS

CLIENTS = 8
BATCH = 5
PAUSE_SECONDS = 0.1
MOST_BYTES = 512 << 20
#: Events that once answered their batch with 500, where a source redacts.
POISON = ('{"a":1e999,"b":123456789012345678901234567890}', '{"player":"\\ud800"}', "[" * 2_000, '{"a":1e999}')


@dataclass
class Honest:
    """What honest clients saw in one phase."""

    seconds: list[float] = field(default_factory=list)
    acknowledged: set[str] = field(default_factory=set)
    statuses: Counter[str] = field(default_factory=Counter)

    @property
    def p99(self) -> float:
        """The 99th percentile of response times."""
        return statistics.quantiles(self.seconds, n=100)[98]


async def honest_phase(port: int, seconds: float, name: str) -> Honest:
    """Lets honest clients send for some time."""
    seen, end = Honest(), time.monotonic() + seconds

    async def client(number: int) -> None:
        source = ("games", "players")[number % 2]
        key = base64.b64encode(f"{KEYS[source]}:".encode()).decode()
        streams, turn = None, 0
        while time.monotonic() < end:
            ids = [f"{name}-{number}-{turn}-{place}" for place in range(BATCH)]
            events = [json.dumps({"messageId": each, "player": f"p{turn}", "pad": "x" * 200}) for each in ids]
            if turn % 10 == 0:
                events.insert(2, POISON[turn // 10 % len(POISON)])
            turn += 1
            body = "\n".join(events).encode()
            lines = ["POST /v1/events HTTP/1.1", "Host: x", "Content-Type: application/x-ndjson"]
            lines += [f"Authorization: Basic {key}", f"Content-Length: {len(body)}", "", ""]
            began = time.perf_counter()
            try:
                reader, writer = streams = streams or await asyncio.open_connection("127.0.0.1", port)
                writer.write("\r\n".join(lines).encode() + body)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
            except (OSError, asyncio.IncompleteReadError):
                seen.statuses["cut"] += 1
                streams = None
            else:
                seen.seconds.append(time.perf_counter() - began)
                status = head.split(b" ", 2)[1].decode()
                seen.statuses[status] += 1
                if status == "200":
                    seen.acknowledged.update(ids)
                if b"connection: close" in head:
                    streams = None
            await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(*map(client, range(CLIENTS)))
    return seen


@dataclass
class Outcome:
    """The result of a run."""

    before: Honest
    alone: Honest
    beside: Honest
    crowd: dict[str, Any]
    most_bytes: int
    spooled: Counter[str]
    connections: int

    def misses(self, *, most_times: float) -> list[str]:
        """Returns the expectations that were not met. See `--most-times`."""
        missed = []
        ratio = self.beside.p99 / self.alone.p99
        if ratio > most_times:
            missed.append(f"the p99 of honest clients is {ratio:.2f} times that alone")
        if self.most_bytes > MOST_BYTES:
            missed.append(f"the collector used {self.most_bytes >> 20} MB")
        answered = self.before.acknowledged | self.beside.acknowledged | set(self.crowd["acknowledged"])
        lost = sum(not self.spooled[each] for each in answered)
        doubled = sum(self.spooled[each] > 1 for each in answered)
        if lost or doubled or self.spooled["never"]:
            missed.append(f"lost {lost}, doubled {doubled}, smuggled {self.spooled['never']}")
        rejected = sum(self.beside.statuses.values()) - self.beside.statuses["200"]
        if rejected > sum(self.beside.statuses.values()) // 100:
            missed.append(f"honest requests were rejected: {dict(self.beside.statuses)}")
        lives = {kind: life for kind, life in self.crowd["lives"].items() if life > life_limit(kind)}
        if lives or self.crowd["open"]:
            missed.append(f"connections lived without progress: {lives}, {self.crowd['open']} are open")
        if unseen := sorted(set(KINDS) - set(self.crowd["runs"])):
            missed.append(f"kinds that never ran to their end: {unseen}")
        return missed


def life_limit(kind: str) -> float:
    """Returns how long a connection of a kind may live. Some are idle after a response, or send further requests."""
    return IDLE_SECONDS if kind in _IDLE else LIFE_SECONDS


_IDLE = (
    "a get before a keyless post",
    "a rejected body before an event",
    "an unknown key",
    "empty gzip members",
    "responses that are not read",
    "trailers with a key",
    "what grows",
)


class Memory:
    """The collector's largest resident memory."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.most_bytes = 0
        self._process = psutil.Process(process.pid)

    async def watch(self) -> None:
        """Samples the memory until it is cancelled."""
        while True:
            self.most_bytes = max(self.most_bytes, self._process.memory_info().rss)
            await asyncio.sleep(0.2)


async def run(folder: Path, *, minutes: float, connections: int, seed: int, off: str) -> Outcome:
    """Runs a collector alone, then beside hostile connections."""
    variables = {**os.environ, "PYTHONPATH": f"{PROJECT_ROOT / 'include'}:{PROJECT_ROOT}"}

    def start(module: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", f"tests.hostile.{module}", *arguments]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env=variables, cwd=PROJECT_ROOT, **pipes)

    with ExitStack() as stack:

        def listen(name: str, *arguments: str) -> tuple[subprocess.Popen[str], int]:
            server = stack.enter_context(start("server", "--folder", str(folder / name), *arguments))
            stack.callback(server.kill)
            assert server.stdout is not None
            return server, int(json.loads(server.stdout.readline().partition(" ")[2])["port"])

        server, port = listen("attacked", "--off", off)
        _, second_port = listen("alone")
        memory = Memory(server)
        watching = asyncio.create_task(memory.watch())
        before = await honest_phase(port, 10, "before")
        arguments = (str(port), "--connections", str(connections), "--seed", str(seed))
        crowd = stack.enter_context(start("kinds", *arguments))
        stack.callback(crowd.kill)
        seconds = max(30.0, minutes * 60)
        beside, alone = await asyncio.gather(
            honest_phase(port, seconds, "beside"), honest_phase(second_port, seconds, "alone")
        )
        printed, _ = await asyncio.to_thread(crowd.communicate)
        watching.cancel()
        server.terminate()
        await asyncio.to_thread(server.wait)
        spooled = spooled_ids(folder / "attacked")
        return Outcome(before, alone, beside, json.loads(printed), memory.most_bytes, spooled, connections)


def spooled_ids(folder: Path) -> Counter[str]:
    """Counts the ids of the events in the spool."""
    ids: Counter[str] = Counter()
    spool = SpoolFolder.acquire(folder / "spool" / "w0")
    try:
        recover(spool)
        for path in spool.segments():
            for frame in Segment.open(path).frames():
                if frame.kind == FrameKind.EVENT:
                    with_id = json.loads(frame.payload) if b'"kept"' not in frame.payload else {}
                    ids[with_id.get("messageId", "")] += 1
    finally:
        spool.close()
    return ids


def report(outcome: Outcome, *, seconds: float, seed: int, off: str, most_times: float) -> bool:
    """Prints the result; returns whether all expectations were met."""
    for kind, count in sorted(outcome.crowd["runs"].items()):
        print(f"{kind:36} {count:6} times, longest {outcome.crowd['lives'][kind]:5.1f} s")
    for missed in (misses := outcome.misses(most_times=most_times)):
        print(f"MISS {missed}")
    machine = f"{os.cpu_count()} cores, {psutil.virtual_memory().total >> 30} GB, {platform.machine()}"
    alone, beside = outcome.alone, outcome.beside
    answered = len(outcome.before.acknowledged | beside.acknowledged), len(outcome.crowd["acknowledged"])
    print(
        f"HOSTILE {'WITHOUT ' + off if off else 'protected'} | seed {seed} | {seconds / 60:.1f} min | {machine}, load "
        f"{os.getloadavg()[1]:.1f} | {outcome.connections} hostile connections at a time, "
        f"{sum(outcome.crowd['runs'].values())} in all | honest p50 {statistics.median(alone.seconds) * 1e3:.1f} ms "
        f"alone, {statistics.median(beside.seconds) * 1e3:.1f} ms beside; p99 {alone.p99 * 1e3:.1f} ms alone, "
        f"{beside.p99 * 1e3:.1f} ms beside, {beside.p99 / alone.p99:.2f} times | answers {dict(beside.statuses)} | "
        f"RSS {outcome.most_bytes >> 20} MB | events answered 200: {answered[0]} honest, {answered[1]} hostile",
        flush=True,
    )
    return not misses


def main() -> int:
    """Runs once; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("DELTAWORKS_FAULT_SEED", "20261128")))
    parser.add_argument("--off", default="", help="bounds to take away, with commas between; the run must then fail")
    parser.add_argument(
        "--most-times",
        type=float,
        default=2.0,
        help="the p99 of honest clients beside hostile ones may be so many times that alone",
    )
    options = parser.parse_args()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(files[1], 65_536), files[1]))
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="deltaworks-hostile-") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        settings = {"minutes": options.minutes, "connections": options.connections, "seed": options.seed}
        outcome = runner.run(run(Path(folder), off=options.off, **settings))
    settings = {"seed": options.seed, "off": options.off, "most_times": options.most_times}
    passed = report(outcome, seconds=time.monotonic() - began, **settings)
    print("1 passed, 0 failed" if passed else "0 passed, 1 failed")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
