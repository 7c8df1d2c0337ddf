"""The protocol between a host and its page process: JSON messages over a pair of sockets.

The host sends a page request with the access rights that the page asked for earlier. The page process asks for other
rights while it renders. Only the host decides rights, for each request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from multiprocessing.connection import Connection
from typing import Any, Final

import orjson

from deltaworks.console.host import PendingApproval, Person
from deltaworks.console.page_builder import HostState, RequestData

#: Access rights of a person to a DAG.
READ: Final = "read"
START: Final = "start"
Right = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageCall:
    """A request to render a page. The access rights that are already known are `rights`, by right and DAG."""

    page: str
    request: RequestData
    person: str
    host_state: HostState
    rights: Mapping[Right, bool] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Encodes the request as JSON."""
        host_state = self.host_state
        return orjson.dumps(
            {
                "page": self.page,
                "request": asdict(self.request),
                "person": self.person,
                "paused": None if host_state.paused_dags is None else sorted(host_state.paused_dags),
                "actions_unavailable": host_state.actions_unavailable,
                "questions": [asdict(one) for one in host_state.pending_approvals],
                "rights": [[right, dag_id, answer] for (right, dag_id), answer in self.rights.items()],
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> PageCall:
        """Decodes a request that `encode` encoded."""
        message = orjson.loads(data)
        questions = (
            PendingApproval(**{**one, "since": datetime.fromisoformat(one["since"]) if one["since"] else None})
            for one in message["questions"]
        )
        host_state = HostState(
            paused_dags=None if message["paused"] is None else frozenset(message["paused"]),
            actions_unavailable=message["actions_unavailable"],
            pending_approvals=tuple(questions),
        )
        return cls(
            page=message["page"],
            request=RequestData(**message["request"]),
            person=message["person"],
            host_state=host_state,
            rights={(right, dag_id): answer for right, dag_id, answer in message["rights"]},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPage:
    """A rendered page. With `missing` the page does not exist; with `failed` rendering failed."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    missing: str | None = None
    failed: str = ""

    def send(self, connection: Connection) -> None:
        """Sends the header as JSON and the body as bytes."""
        head = {"status": self.status, "headers": dict(self.headers), "missing": self.missing, "failed": self.failed}
        connection.send_bytes(orjson.dumps({"rendered": head}))
        connection.send_bytes(self.body)


def remote_person(connection: Connection, call: PageCall) -> Person:
    """Returns the person of a call, whose unknown rights the page process asks the host for."""
    rights = dict(call.rights)

    def may(right: str) -> Callable[[str], bool]:
        def has_dag_right(dag_id: str) -> bool:
            if (right, dag_id) not in rights:
                connection.send_bytes(orjson.dumps({"right": [right, dag_id]}))
                rights[right, dag_id] = bool(orjson.loads(connection.recv_bytes()))
            return rights[right, dag_id]

        return has_dag_right

    return Person(name=call.person, may_read=may(READ), may_start=may(START))


def request_page(
    connection: Connection, call: PageCall, person: Person, *, seconds: float
) -> tuple[RenderedPage, set[Right]]:
    """Requests a page and answers questions about rights until the page arrives.

    Returns:
        The page and the rights that it asked for.

    Raises:
        TimeoutError: no message within the time; EOFError, OSError: the other process has ended.
    """
    connection.send_bytes(call.encode())
    requested_rights: set[Right] = set()
    for message in _messages(connection, seconds):
        if "right" in message:
            right, dag_id = message["right"]
            requested_rights.add((right, dag_id))
            connection.send_bytes(orjson.dumps(has_right(person, right, dag_id)))
            continue
        if not connection.poll(seconds):
            raise TimeoutError("the page was announced and did not come")
        return RenderedPage(**message["rendered"], body=connection.recv_bytes()), requested_rights
    raise TimeoutError(f"no page within {seconds:.0f} s")


def has_right(person: Person, right: str, dag_id: str) -> bool:
    """Returns whether a person has a right."""
    return bool((person.may_start if right == START else person.may_read)(dag_id))


def _messages(connection: Connection, seconds: float) -> Iterator[Any]:
    while connection.poll(seconds):
        yield orjson.loads(connection.recv_bytes())


@contextmanager
def ignore_disconnect() -> Iterator[None]:
    """Suppresses errors of a connection whose other process has ended."""
    try:
        yield
    except (EOFError, OSError):
        return
