"""The servers that the benchmark `collector` loads. Each is a process that prints its port.

`spool`: the collector as deployed. `bare`: a uvicorn application that reads a body and responds with 200. `lean`: the
same with the uvicorn features disabled that the collector disables: proxy headers, the headers for date and server, and
access logs. `kinesis`: a server that responds to PutRecord.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn

from collector.connections import KEEP_ALIVE_SECONDS
from collector.process import CollectorProcess
from deltaworks.specs.collector import CollectorSpec

KEY = "bench"
_LEAN: dict[str, Any] = {"lifespan": "off", "proxy_headers": False, "server_header": False, "date_header": False}
_RECORD = (
    b'{"SequenceNumber":"49600000000000000000000000000000000000000000000000000001","ShardId":"shardId-000000000000"}'
)


def spec() -> CollectorSpec:
    """Returns the spec of a collector with one source on free ports."""
    source = {
        "pipeline": "games",
        "keys": [{"sha256": hashlib.sha256(KEY.encode()).hexdigest()}],
        "sink": {"kind": "landing"},
    }
    return CollectorSpec.model_validate(
        {
            "collector": "bench",
            "listen": {"host": "127.0.0.1", "port": 0, "metrics_port": 0},
            "limits": {"drain_seconds": 0},
            "sources": {"games": source},
        }
    )


def bare_application(answer: bytes) -> Any:
    """Returns an ASGI application that reads the body and sends `answer`."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    return application


def main() -> int:
    """Serves until the process is terminated."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["spool", "bare", "lean", "kinesis"])
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.kind == "spool":
        return CollectorProcess(spec(), options.folder / "w0").run()
    config = uvicorn.Config(
        bare_application(_RECORD if options.kind == "kinesis" else b'{"success":true}'),
        interface="asgi3",
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        **({"access_log": False} | _LEAN if options.kind == "lean" else {}),
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print("COLLECTOR_LISTENING " + json.dumps({"port": listener.getsockname()[1]}), flush=True)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(uvicorn.Server(config).serve([listener]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
