"""Kinds of hostile connections: `python -m tests.hostile.kinds PORT` keeps a thousand of them open.

Each kind sends what a client must not gain anything by, then waits until the collector closes the connection. At the
end of its input the process prints, as JSON, how often each kind ran, its longest life, and the ids that were answered
with 200.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import gzip
import json
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from tests.hostile.server import KEYS

PUBLIC = "Authorization: Basic " + base64.b64encode(f"{KEYS['public']}:".encode()).decode()
KEYED = f"POST /v1/track HTTP/1.1\r\nHost: x\r\n{PUBLIC}\r\n".encode()
BATCH = KEYED.replace(b"/v1/track", b"/v1/batch")
KEYLESS = b"POST /v1/batch HTTP/1.1\r\nHost: x\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
#: A connection may be idle after a response; all others end with the time of a body, its reaper and its last response.
IDLE_SECONDS, LIFE_SECONDS = 90.0, 30.0


def sized(head: bytes, body: bytes) -> bytes:
    """Returns a complete request."""
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


GROWTH = gzip.compress(json.dumps({"context": {"a": "x" * 10_000}, "batch": [{}] * 20_000}).encode())
MEMBERS = gzip.compress(b"") * 50_000
BROKEN = gzip.compress(b'{"batch":[' + b"{]," * 19_990)


class Connection:
    """One connection of a kind."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ids: set[str], chance: random.Random
    ):
        self.acknowledged = ids
        self.chance = chance
        self.received = b""
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        """Sends data, unless the connection is closed."""
        self._writer.write(data)
        await self._writer.drain()

    async def drip(self, first: bytes, piece: bytes, *, pause: float = 0.5, times: int = 1000) -> None:
        """Sends a piece again and again until the connection is closed."""
        await self.send(first)
        while times and not await self.is_closed(pause):
            await self.send(piece)
            times -= 1

    async def hold(self, data: bytes) -> None:
        """Sends data and then nothing."""
        await self.send(data)
        while not await self.is_closed(1.0):
            pass

    async def flood(self, first: bytes, piece: bytes, *, reads: bool = True) -> None:
        """Sends as much as the collector takes, up to a limit that no bound needs."""
        if not reads:
            transport: Any = self._writer.transport
            transport.pause_reading()
        self._writer.write(first)
        for _ in range(96):
            self._writer.write(piece)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._writer.drain(), 0.5)
            await asyncio.sleep(0.1)
            if self._writer.transport.is_closing():
                return
        while not (self._writer.transport.is_closing() if not reads else await self.is_closed(1.0)):
            self._writer.write(piece[:1])
            await asyncio.sleep(0.5)

    async def is_closed(self, seconds: float) -> bool:
        """Reads for some time; returns whether the collector closed the connection."""
        end = time.monotonic() + seconds
        while (remaining := end - time.monotonic()) > 0:
            try:
                data = await asyncio.wait_for(self._reader.read(65_536), remaining)
            except TimeoutError:
                return False
            if not data:
                return True
            self.received = (self.received + data)[-100_000:]
        return False

    async def post(self, head: bytes, count: int = 1) -> None:
        """Sends events in one packet and records those that are answered with 200; then the connection is idle."""
        ids = [f"h{self.chance.getrandbits(80):020x}" for _ in range(count)]
        await self.send(b"".join(sized(head, b'{"messageId":"%s"}' % each.encode()) for each in ids))
        end = time.monotonic() + 20
        while time.monotonic() < end and not await self.is_closed(0.3):
            if len(re.findall(rb"HTTP/1.1 (?!100)\d+", self.received)) >= count:
                break
        statuses = re.findall(rb"HTTP/1.1 (\d+)", self.received)
        self.acknowledged |= {each for each, status in zip(ids, statuses, strict=False) if status == b"200"}


Kind = Callable[[Connection], Awaitable[None]]
KINDS: dict[str, Kind] = {
    "silence": lambda it: it.hold(b""),
    "empty lines": lambda it: it.drip(b"", b"\r\n"),
    "a head byte by byte": lambda it: it.drip(b"POST / HTTP/1.1\r\nX: ", b"a"),
    "headers without end": lambda it: it.flood(KEYED, b"X-Y: a\r\n" * 2_000),
    "a header without end": lambda it: it.flood(KEYED + b"X: ", b"a" * 65_536),
    "a target without end": lambda it: it.flood(b"POST /", b"a" * 65_536),
    "4 MiB declared": lambda it: it.hold(KEYED + b"Content-Length: 4194304\r\n\r\n"),
    "4 MiB declared without a key": lambda it: it.hold(KEYLESS + b"Content-Length: 4194304\r\n\r\n"),
    "half of a large body": lambda it: it.hold(KEYED + b"Content-Length: 4194304\r\n\r\n" + b" " * (1 << 20)),
    "a body byte by byte": lambda it: it.drip(KEYED + b"Content-Length: 4000\r\n\r\n", b" "),
    "a body over the limit": lambda it: it.flood(KEYED + b"Content-Length: 99999999\r\n\r\n", b" " * 65_536),
    "chunks over the limit": lambda it: it.flood(KEYED + CHUNKED, b"10000\r\n" + b" " * 65_536 + b"\r\n"),
    "an upgrade": lambda it: it.post(KEYED + UPGRADE),
    "an upgrade without its body": lambda it: it.hold(KEYED + UPGRADE + b"Content-Length: 400\r\n\r\n"),
    "a get before a keyless post": lambda it: it.hold(HEALTH + sized(KEYLESS, b"{}")),
    "a rejected body before an event": lambda it: it.hold(
        sized(KEYED.replace(b"POST", b"PUT"), b'{"messageId":"never"}') + sized(KEYLESS, b'{"messageId":"never"}')
    ),
    "pipelined events": lambda it: it.post(KEYED, 8),
    "many pipelined events": lambda it: it.post(KEYED, 40),
    "pipelined without reading": lambda it: it.flood(b"", HEALTH * 400, reads=False),
    "responses that are not read": lambda it: it.flood(
        b"", sized(BATCH, b'{"batch":[' + b"0," * 200 + b"0]}"), reads=False
    ),
    "what grows": lambda it: it.hold(sized(BATCH + b"Content-Encoding: gzip\r\n", GROWTH)),
    "empty gzip members": lambda it: it.hold(sized(BATCH + b"Content-Encoding: gzip\r\n", MEMBERS)),
    "broken events without a key": lambda it: it.hold(sized(KEYLESS + b"Content-Encoding: gzip\r\n", BROKEN)),
    "long values for caches": lambda it: it.post(
        KEYED + b"User-Agent: %s\r\n" % (b"%x" % it.chance.getrandbits(99_999))
    ),
    "a chunk extension without end": lambda it: it.flood(KEYED + CHUNKED + b"2;", b"a" * 65_536),
    "trailers without end": lambda it: it.flood(KEYED + CHUNKED + b"2\r\n{}\r\n0\r\n", b"X: a\r\n" * 4_000),
    "trailers with a key": lambda it: it.hold(KEYLESS + CHUNKED + b"2\r\n{}\r\n0\r\n" + PUBLIC.encode() + b"\r\n\r\n"),
    "an expectation without a body": lambda it: it.hold(KEYED + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n"),
    "HTTP/2": lambda it: it.hold(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)),
    "TLS": lambda it: it.hold(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)),
    "a tunnel": lambda it: it.hold(b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n"),
    "two lengths": lambda it: it.hold(KEYED + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}x"),
    "length and chunks": lambda it: it.hold(KEYED + b"Content-Length: 3\r\n" + CHUNKED + b"0\r\n\r\n"),
    "an unknown key": lambda it: it.drip(b"", sized(KEYLESS, b'{"batch":[{}],"writeKey":"none"}'), pause=0.2, times=50),
}


class Crowd:
    """So many connections, each of a random kind, until `end`."""

    def __init__(self, port: int, *, seed: int) -> None:
        self.runs: Counter[str] = Counter()
        self.lives: dict[str, float] = defaultdict(float)
        self.acknowledged: set[str] = set()
        self._port = port
        self._chance = random.Random(seed)
        self._kinds: list[str] = []

    async def keep(self, end: asyncio.Event) -> None:
        """Opens a connection again and again."""
        while not end.is_set():
            self._kinds = self._kinds or self._chance.sample(sorted(KINDS), len(KINDS))
            await self._run(self._kinds.pop())
            await asyncio.sleep(self._chance.uniform(0.5, 3))

    async def _run(self, kind: str) -> None:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            return
        began = time.monotonic()
        with contextlib.suppress(OSError, RuntimeError):  # uvloop raises RuntimeError for a closed transport
            await KINDS[kind](Connection(reader, writer, self.acknowledged, self._chance))
        writer.transport.abort()
        self.runs[kind] += 1
        self.lives[kind] = max(self.lives[kind], time.monotonic() - began)


async def run(port: int, *, connections: int, seed: int) -> None:
    """Keeps connections open until the end of the input."""
    crowd, end = Crowd(port, seed=seed), asyncio.Event()
    tasks = []
    for _ in range(connections):
        tasks.append(asyncio.create_task(crowd.keep(end)))
        await asyncio.sleep(0.005)
    await asyncio.to_thread(sys.stdin.read)
    end.set()
    _, pending = await asyncio.wait(tasks, timeout=IDLE_SECONDS)
    report = {
        "runs": crowd.runs,
        "lives": crowd.lives,
        "acknowledged": sorted(crowd.acknowledged),
        "open": len(pending),
    }
    print(json.dumps(report), flush=True)
    for task in pending:
        task.cancel()


def main() -> int:
    """Runs until the end of the input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(options.port, connections=options.connections, seed=options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
