"""A TCP proxy that records which process sends each request, and can be slow, disconnected or unavailable.

The client process of a connection is looked up in the kernel's socket tables when it connects. So the server's side
shows whether a task or the driver reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from sandbox.servers.server_thread import run_server
from sandbox.stack.ports import HOST

Protocol = Literal["http", "kafka"]
_EXECUTOR = "CoarseGrainedExecutorBackend"
_HEAD_BYTES = 4096
_KAFKA_NAMES = {0: "PRODUCE", 1: "FETCH", 2: "LIST_OFFSETS", 3: "METADATA"}


@dataclass(frozen=True, slots=True)
class Client:
    """The process at the other end. `executor` is the JVM it belongs to, None for the driver and other processes."""

    pid: int
    executor: int | None
    command: str


@dataclass(slots=True)
class Request:
    """One request: the beginning of its text, or the name of Kafka's call, and its sender."""

    head: str
    client: Client


@dataclass(slots=True)
class Wire:
    """A running proxy. Its faults can be changed at any time and apply to the next bytes."""

    protocol: Protocol
    upstream: tuple[str, int]
    address: tuple[str, int] = (HOST, 0)
    requests: list[Request] = field(default_factory=list)
    #: Delay of each request in seconds.
    delay_seconds: float = 0.0
    #: Every n-th matching request is lost with its connection, half of them after the server has processed it.
    cut: re.Pattern[str] | None = None
    cut_every: int = 3
    cuts: int = 0
    #: No request is answered; counts the attempts.
    away: bool = False
    refused: int = 0
    _matched: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    @property
    def bootstrap(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def heal(self) -> None:
        """Removes all faults."""
        self.delay_seconds, self.cut, self.away, self.cuts, self._matched = 0.0, None, False, 0, 0
        self.refused = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards one connection until either end closes it."""
        client = await asyncio.to_thread(client_of, writer.get_extra_info("peername")[1], self.address[1])
        server: asyncio.StreamWriter | None = None
        try:
            if self.away:
                self.refused += 1
                return
            answers, server = await asyncio.open_connection(*self.upstream)
            back = asyncio.create_task(self._answers(answers, writer))
            try:
                await self._requests(reader, server, client)
            finally:
                back.cancel()
        except OSError:
            pass
        finally:
            for end in (writer, server):
                if end is not None:
                    end.transport.abort()

    async def _requests(self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, client: Client) -> None:
        frames = Frames(self.protocol)
        last: Request | None = None
        while data := await reader.read(1 << 16):
            if self.away:
                self.refused += 1
                return
            heads, lose = frames.heads(data), False
            if not heads and last is not None:
                last.head = (last.head + data[:_HEAD_BYTES].decode("latin-1"))[:_HEAD_BYTES]
            for head in heads:
                last = Request(head, client)
                self.requests.append(last)
                lose = self._is_cut(head) or lose
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            if lose and self.cuts % 2:
                return
            server.write(data)
            await server.drain()
            if lose:
                await asyncio.sleep(0.05)
                return

    def _is_cut(self, head: str) -> bool:
        if self.cut is None or not self.cut.search(head):
            return False
        self._matched += 1
        if self._matched % self.cut_every:
            return False
        self.cuts += 1
        return True

    async def _answers(self, answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await answers.read(1 << 16):
                if self.away:
                    break
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


class Frames:
    """Finds the beginnings of requests in a client's bytes."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self._kept = b""

    def heads(self, data: bytes) -> list[str]:
        """Returns the requests that begin in these bytes."""
        if self._protocol == "http":
            # Clients here send a head in one piece; what does not begin with a method continues with a body.
            if re.match(rb"(GET|PUT|POST|HEAD|DELETE) ", data):
                return [data[:_HEAD_BYTES].decode("latin-1")]
            return []
        self._kept += data
        found = []
        while len(self._kept) >= 6:
            length, call = struct.unpack(">ih", self._kept[:6])
            if len(self._kept) < 4 + length:
                break
            found.append(_KAFKA_NAMES.get(call, str(call)))
            self._kept = self._kept[4 + length :]
        return found


def client_of(port: int, server_port: int) -> Client:
    """Returns the process that owns the connection from `port` of this machine."""
    inode = _inode(port, server_port)
    for folder in Path("/proc").iterdir():
        if inode is not None and folder.name.isdigit() and _holds(folder, inode):
            return _described(int(folder.name))
    return Client(0, None, "unknown")


def _inode(port: int, server_port: int) -> str | None:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            parts = line.split()
            ends = [int(end.rpartition(":")[2], 16) for end in parts[1:3]]
            if ends == [port, server_port]:
                return parts[9]
    return None


def _holds(folder: Path, inode: str) -> bool:
    with contextlib.suppress(OSError):
        return any(os.readlink(each) == f"socket:[{inode}]" for each in (folder / "fd").iterdir())
    return False


def _described(pid: int) -> Client:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        command = " ".join(process.cmdline())
        for each in (process, *process.parents()):
            if _EXECUTOR in " ".join(each.cmdline()):
                return Client(pid, each.pid, command)
        return Client(pid, None, command)
    return Client(pid, None, "ended")


@contextmanager
def running_wire(protocol: Protocol, upstream: str = f"{HOST}:1") -> Iterator[Wire]:
    """Runs a proxy in front of `upstream` (host:port) inside the block."""
    host, _, port = upstream.rpartition(":")
    wire = Wire(protocol, (host, int(port)))
    with run_server(wire.serve, name="wire") as own:
        wire.address = (HOST, own)
        yield wire
