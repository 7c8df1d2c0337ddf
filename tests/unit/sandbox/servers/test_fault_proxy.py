"""The proxy that makes requests fail on purpose."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlparse

import pytest

from sandbox.servers.fault_proxy import Action, Fault, running_fault_proxy
from tests.waiting import PATIENCE_SECONDS


class Upstream(BaseHTTPRequestHandler):
    """Keeps every body it is sent and answers with it."""

    protocol_version = "HTTP/1.1"
    received: list[tuple[str, bytes]]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append((self.path, body))
        self.send_response(200)
        if "X-Amz-Target" in self.headers:
            # As moto does: no connection outlives its answer.
            self.send_header("Connection", "close")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


@pytest.fixture
def upstream() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    received: list[tuple[str, bytes]] = []
    handler = type("Handler", (Upstream,), {"received": received})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", received
    server.shutdown()
    server.server_close()


def connect(endpoint: str) -> http.client.HTTPConnection:
    parsed = urlparse(endpoint)
    return http.client.HTTPConnection(parsed.hostname or "", parsed.port, timeout=PATIENCE_SECONDS)


def put(client: http.client.HTTPConnection, path: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    client.request("PUT", path, body, headers)
    answer = client.getresponse()
    return answer.status, answer.read()


def test_without_faults_requests_and_answers_pass_on_one_connection(upstream) -> None:
    endpoint, received = upstream
    with running_fault_proxy(endpoint) as proxy:
        client = connect(proxy.endpoint)

        assert put(client, "/a", b"one") == (200, b"one")
        assert put(client, "/b", b"two" * 100_000) == (200, b"two" * 100_000)
        client.request("GET", "/c")
        assert client.getresponse().read() == b"abcde"
        client.close()

    assert [path for path, _ in received] == ["/a", "/b"]


def test_a_lost_reply_reaches_the_server_and_not_the_client(upstream) -> None:
    endpoint, received = upstream
    lost = Fault(action=Action.LOSE_REPLY, method="PUT", path="/log/")
    with running_fault_proxy(endpoint, faults=[lost]) as proxy:
        with pytest.raises((http.client.HTTPException, OSError)):
            put(connect(proxy.endpoint), "/log/1", b"commit")

        assert received == [("/log/1", b"commit")]
        assert [incident.is_lost_reply for incident in proxy.incidents] == [True]


def test_an_unavailable_answer_keeps_the_request_from_the_server(upstream) -> None:
    endpoint, received = upstream
    with running_fault_proxy(endpoint, faults=[Fault(action=Action.UNAVAILABLE, every=2)]) as proxy:
        client = connect(proxy.endpoint)

        statuses = [put(client, f"/{n}", b"x")[0] for n in range(4)]
        client.close()

    assert statuses == [200, 503, 200, 503]
    assert [path for path, _ in received] == ["/0", "/2"]


def test_a_rule_that_has_been_met_often_enough_is_over(upstream) -> None:
    endpoint, _ = upstream
    with running_fault_proxy(endpoint, faults=[Fault(action=Action.UNAVAILABLE, every=2, times=2)]) as proxy:
        client = connect(proxy.endpoint)

        assert [put(client, f"/{n}", b"x")[0] for n in range(6)] == [200, 503, 200, 503, 200, 200]
        client.close()


def test_a_delay_comes_before_the_server_acts(upstream) -> None:
    endpoint, _ = upstream
    with running_fault_proxy(endpoint, faults=[Fault(action=Action.DELAY, delay_seconds=0.3)]) as proxy:
        client = connect(proxy.endpoint)
        started = time.monotonic()

        assert put(client, "/a", b"x")[0] == 200
        assert time.monotonic() - started >= 0.3
        client.close()


def test_a_client_that_asks_before_it_sends_is_told_to_go_on(upstream) -> None:
    endpoint, received = upstream
    with running_fault_proxy(endpoint) as proxy:
        client = connect(proxy.endpoint)

        assert put(client, "/a", b"body", Expect="100-continue") == (200, b"body")
        client.close()

    assert received == [("/a", b"body")]


def test_the_same_seed_chooses_the_same_requests(upstream) -> None:
    endpoint, _ = upstream
    chosen = []
    for _ in range(2):
        fault = Fault(action=Action.UNAVAILABLE, probability=0.5)
        with running_fault_proxy(endpoint, faults=[fault], seed=3) as proxy:
            client = connect(proxy.endpoint)
            chosen.append([put(client, f"/{n}", b"x")[0] for n in range(20)])
            client.close()

    assert chosen[0] == chosen[1]
    assert {200, 503} == set(chosen[0])


def aws(client: http.client.HTTPConnection, operation: str, asked: dict[str, Any]) -> tuple[int, Any]:
    """A request of AWS' JSON protocol; the upstream answers with what it was sent."""
    body = json.dumps(asked).encode()
    status, answer = put(client, "/", body, **{"X-Amz-Target": f"AmazonSQS.{operation}"})
    return status, json.loads(answer)


def test_a_refusal_speaks_the_protocol_of_the_request(upstream) -> None:
    endpoint, received = upstream
    denied = Fault(action=Action.REFUSE, status=403, code="AccessDenied")
    with running_fault_proxy(endpoint, faults=[denied]) as proxy:
        client = connect(proxy.endpoint)

        assert put(client, "/bucket/key", b"x")[0] == 403
        assert aws(client, "ReceiveMessage", {})[1]["__type"] == "AccessDenied"
        client.close()

    assert received == []


@pytest.mark.parametrize("action", [Action.UNAVAILABLE, Action.REFUSE])
def test_a_head_is_refused_without_a_body_and_its_connection_goes_on(upstream, action: Action) -> None:
    endpoint, _ = upstream
    with running_fault_proxy(endpoint, faults=[Fault(action=action, method="HEAD")]) as proxy:
        client = socket.create_connection(urlparse(proxy.endpoint).netloc.split(":"), timeout=PATIENCE_SECONDS)
        answers = client.makefile("rb")

        client.sendall(b"HEAD /a HTTP/1.1\r\nHost: here\r\n\r\n")
        refused = list(iter(answers.readline, b"\r\n"))
        client.sendall(b"GET /a HTTP/1.1\r\nHost: here\r\n\r\n")

        assert refused[0].startswith(b"HTTP/1.1 503 ")
        assert answers.readline().startswith(b"HTTP/1.1 200 ")
        client.close()


def test_a_rule_for_an_operation_meets_no_other(upstream) -> None:
    endpoint, received = upstream
    refused = Fault(action=Action.REFUSE, status=500, operation="DeleteMessageBatch")
    with running_fault_proxy(endpoint, faults=[refused]) as proxy:
        client = connect(proxy.endpoint)

        assert [aws(client, name, {"n": 1})[0] for name in ("ReceiveMessage", "DeleteMessageBatch")] == [200, 500]
        assert put(client, "/key", b"x")[0] == 200
        client.close()

    assert [incident.operation for incident in proxy.incidents] == ["DeleteMessageBatch"]
    assert len(received) == 2


def test_half_of_a_batch_fails_and_never_reaches_the_server(upstream) -> None:
    endpoint, received = upstream
    with running_fault_proxy(endpoint, faults=[Fault(action=Action.FAIL_ENTRIES)]) as proxy:
        client = connect(proxy.endpoint)

        status, answer = aws(client, "DeleteMessageBatch", {"Entries": [{"Id": str(n)} for n in range(5)]})
        assert (status, [entry["Id"] for entry in answer["Failed"]]) == (200, ["0", "1", "2"])
        assert not any(entry["SenderFault"] for entry in answer["Failed"])
        assert aws(client, "DeleteMessageBatch", {"Entries": [{"Id": "0"}]})[1]["Successful"] == []
        proxy.faults = []
        assert aws(client, "DeleteMessageBatch", {"Entries": []}) == (200, {"Entries": []})
        client.close()

    assert [json.loads(body)["Entries"] for _, body in received] == [[{"Id": "3"}, {"Id": "4"}], []]


def test_an_answer_cut_short_promises_more_than_it_brings(upstream) -> None:
    endpoint, _ = upstream
    with running_fault_proxy(endpoint, faults=[Fault(action=Action.CUT_SHORT)]) as proxy:
        client = connect(proxy.endpoint)
        client.request("PUT", "/a", b"x" * 1000)
        answer = client.getresponse()

        with pytest.raises(http.client.IncompleteRead) as raised:
            answer.read()
        assert (answer.status, len(raised.value.partial)) == (200, 500)
