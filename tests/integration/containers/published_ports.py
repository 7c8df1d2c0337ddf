"""Publishes container ports at addresses of their host, like Docker's proxy; runs on the host."""

from __future__ import annotations

import asyncio
import contextlib
import sys

_CHUNK = 1 << 16


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


async def _publish(place: str) -> None:
    """Forwards `address:port=address:port`, the host's first, without end."""
    at, _, to = place.partition("=")
    address, _, port = at.rpartition(":")
    target, _, target_port = to.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection(target, int(target_port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(_forward(reader, inner_writer), _forward(inner_reader, writer))

    server = await asyncio.start_server(serve, address, int(port))
    await server.serve_forever()


async def main(places: list[str]) -> None:
    """Forwards all given ports."""
    await asyncio.gather(*(_publish(place) for place in places))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
