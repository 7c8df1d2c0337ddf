"""A TCP proxy that cuts connections, stalls them, or refuses new ones."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HOST = "127.0.0.1"
_PIECE = 16 << 10


class TcpProxy:
    """Forwards connections on `port` to a server. A test sets the attributes while it runs.

    Attributes:
        cut_after: bytes from the server after which each connection is reset; None for never.
        refusing: new and existing connections are reset immediately.
        stalling: nothing is forwarded or closed, so that the server seems to hang.
        cuts: connections that the proxy reset before client or server ended them.
    """

    def __init__(self, port: int, upstream_port: int) -> None:
        self.port = port
        self.cut_after: int | None = None
        self.cuts = 0
        self._upstream_port = upstream_port
        self._moving = threading.Event()
        self._moving.set()
        self._refusing = False
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server((HOST, port))

    @property
    def refusing(self) -> bool:
        return self._refusing

    @refusing.setter
    def refusing(self, value: bool) -> None:
        self._refusing = value
        if value:
            self.cut_all()

    @property
    def stalling(self) -> bool:
        return not self._moving.is_set()

    @stalling.setter
    def stalling(self, value: bool) -> None:
        (self._moving.clear if value else self._moving.set)()

    def cut_all(self) -> None:
        """Resets every open connection."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._cut(*pair)
            self.cuts += 1

    def serve(self) -> None:
        """Accepts connections until the proxy is closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                self._reset(client)
                continue
            try:
                server = socket.create_connection((HOST, self._upstream_port), timeout=5)
            except OSError:
                self._reset(client)
                continue
            server.settimeout(None)
            with self._lock:
                self._pairs.add((client, server))
            for source, sink, counted in ((client, server, False), (server, client, True)):
                arguments = (client, server, source, sink, counted)
                threading.Thread(target=self._forward, args=arguments, daemon=True).start()

    def close(self) -> None:
        """Ends the proxy and its connections."""
        self._listener.close()
        self.stalling = False
        self.cut_all()

    def _forward(
        self, client: socket.socket, server: socket.socket, source: socket.socket, sink: socket.socket, counted: bool
    ) -> None:
        passed = 0
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                self._moving.wait()
                limit = self.cut_after
                if counted and limit is not None and passed + len(piece) > limit:
                    # Part of a response has arrived, and the rest never will.
                    self.cuts += 1
                    sink.sendall(piece[: max(0, limit - passed)])
                    break
                sink.sendall(piece)
                passed += len(piece)
        self._cut(client, server)

    def _cut(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock:
            if (client, server) not in self._pairs:
                return
            self._pairs.discard((client, server))
        self._reset(client)
        self._reset(server)

    @staticmethod
    def _reset(connection: socket.socket) -> None:
        with suppress(OSError):
            # A linger time of zero turns the close into a reset.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


@contextmanager
def running_tcp_proxy(port: int, upstream_port: int) -> Iterator[TcpProxy]:
    """Runs a proxy on `port` inside the block."""
    proxy = TcpProxy(port, upstream_port)
    threading.Thread(target=proxy.serve, daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.close()
