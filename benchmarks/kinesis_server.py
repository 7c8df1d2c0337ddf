"""A server for one shard whose pages are encoded beforehand, so that the benchmark measures the reader. Runs as a
separate process.

It implements the parts of the Kinesis API that reading a shard uses. An iterator is a page number.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import random
import socketserver
import sys
from http.server import BaseHTTPRequestHandler
from typing import Any

_FIRST_NUMBER = 49_600_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000
_ARRIVAL = 1_767_225_600.0
PAGE_RECORDS = 10_000


def pages(records: int, size: int) -> list[bytes]:
    """Returns GetRecords responses in the format of Kinesis, with `records` records of `size` bytes that resemble
    events.
    """
    chance = random.Random(7)
    made = []
    for begin in range(0, records, PAGE_RECORDS):
        count = min(PAGE_RECORDS, records - begin)
        last = begin + count >= records
        answer: dict[str, Any] = {
            "Records": [_record(begin + index, size, chance) for index in range(count)],
            "NextShardIterator": str(begin // PAGE_RECORDS + 1),
            "MillisBehindLatest": 0 if last else 1000,
        }
        made.append(json.dumps(answer, separators=(",", ":")).encode())
    return made


def _record(index: int, size: int, chance: random.Random) -> dict[str, Any]:
    key = hashlib.md5(str(chance.randrange(100_000)).encode()).hexdigest()
    event = f'{{"eventName":"level_passed","eventTime":{_ARRIVAL + index / 1000:.3f},"device":"{key}","n":{index},"x":"'
    data = event.encode() + chance.randbytes(size).hex().encode()
    return {
        "SequenceNumber": str(_FIRST_NUMBER + index * (1 << 64)),
        "ApproximateArrivalTimestamp": round(_ARRIVAL + index / 1000, 3),
        "Data": base64.b64encode(data[: size - 2] + b'"}').decode(),
        "PartitionKey": key[:2],
    }


def _handler(bodies: list[bytes]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            match self.headers["X-Amz-Target"].rpartition(".")[2]:
                case "GetShardIterator":
                    body = b'{"ShardIterator":"0"}'
                case "GetRecords":
                    body = bodies[int(request["ShardIterator"])]
                case _:
                    body = b"{}"
            self.send_response(200)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Logs nothing, since logging would slow down the measurement."""

    return Handler


def main() -> int:
    """Serves until the process is killed. The first line printed is the port."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--size", type=int, required=True)
    options = parser.parse_args()
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _handler(pages(options.records, options.size))) as server:
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
