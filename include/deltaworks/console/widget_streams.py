"""Sends widgets to readers as server-sent events, from one process that queries them.

The process (`deltaworks.page_reads.widgets`) starts with the first reader, restarts after a crash, and ends some time
after the last reader. A widget whose read ended the process, as by its deadline, waits some minutes, so that others are
read. The host's interpreter only copies messages to connections: an event is encoded once for all readers. Each reader
has the newest event only, not a queue, so a slow one skips events, and one that accepts no data for some seconds is
disconnected.

The id of an event is a digest of its rows. A reader that returns with `Last-Event-ID` gets the newest rows exactly if
they differ from those it has. A stream ends after some minutes, and the reader comes back: its login and rights are
then checked again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import anyio.to_thread
import orjson
from fastapi import FastAPI, Request, Response

from deltaworks.console.console import Console
from deltaworks.console.host import Person
from deltaworks.console.page_builder import HEADERS, RequestData
from deltaworks.console.page_context import PageMissingError
from deltaworks.console.pages.widgets import declared_widget

log = logging.getLogger(__name__)
COMMAND: Final = (sys.executable, "-m", "deltaworks.page_reads.widgets")
ROUTE: Final = "/widgets/{pipeline}/{view}/events"
_RETRY_AFTER_SECONDS: Final = 30
#: Browsers reconnect after this long.
_RECONNECT_MILLISECONDS: Final = 3_000
_MAX_BACKOFF_SECONDS: Final = 30.0
#: A widget whose read ended the process is read again after this long.
_HOLD_SECONDS: Final = 300.0
#: How long a process that has closed its output may take to end.
_END_SECONDS: Final = 5.0
#: How often a waiting stream checks whether the server is stopping.
_STOP_CHECK_SECONDS: Final = 1.0
Widget = tuple[str, str]
Send = Callable[[MutableMapping[str, Any]], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """Bounds of all streams of a process.

    Args:
        max_readers: open streams of all people; one person has at most half of them.
        heartbeat_seconds: interval of comments, which keep proxies from closing the connection.
        send_seconds: how long a reader may accept no data.
        max_seconds: after this long a stream ends, and the reader connects again.
    """

    max_readers: int = 100
    heartbeat_seconds: float = 15.0
    send_seconds: float = 10.0
    max_seconds: float = 600.0


class TooManyReadersError(Exception):
    """As many streams are open as the process serves."""


@dataclass(slots=True, eq=False)
class StreamReader:
    """A reader of one widget. Used by its own event loop; `wake` is called from another thread.

    Args:
        known_id: the id of the rows that the reader has.
    """

    person: str
    channel: _Channel
    known_id: str
    loop: asyncio.AbstractEventLoop
    has_event: asyncio.Event = field(default_factory=asyncio.Event)
    _number: int = 0

    def wake(self) -> None:
        """Tells the reader's event loop that there is an event."""
        self.loop.call_soon_threadsafe(self.has_event.set)

    def take_event(self) -> bytes | None:
        """Returns the newest event, unless the reader has it."""
        self.has_event.clear()
        event = self.channel.event
        if event is None or event.number == self._number:
            return None
        self._number = event.number
        if event.id and event.id == self.known_id:
            return None
        # After a problem, the reader gets its rows again.
        self.known_id = event.id
        return event.encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    number: int
    id: str
    encoded: bytes


@dataclass(frozen=True, slots=True)
class _Hold:
    """Until when a widget is not read, and why."""

    until: float
    problem: str


@dataclass(slots=True)
class _Channel:
    """The newest event of a widget, and its readers."""

    event: _Event | None = None
    readers: set[StreamReader] = field(default_factory=set)


class WidgetStreams:
    """The open streams of a process, and the process that queries their widgets. Thread-safe.

    Args:
        prepare: called before the process starts, to set environment variables that it needs.
    """

    def __init__(
        self,
        *,
        prepare: Callable[[], None] = lambda: None,
        command: Sequence[str] = COMMAND,
        limits: StreamLimits = StreamLimits(),
    ) -> None:
        self.limits = limits
        self._prepare = prepare
        self._command = command
        self._lock = threading.Lock()
        self._channels: dict[Widget, _Channel] = {}
        self._people: Counter[str] = Counter()
        self._held: dict[Widget, _Hold] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._events = 0

    @property
    def pid(self) -> int | None:
        """The process that queries the widgets; None if there is none."""
        process = self._process
        return None if process is None else process.pid

    @property
    def readers(self) -> int:
        """Number of open streams."""
        return self._people.total()

    def add(self, widget: Widget, person: str, *, known_id: str = "") -> StreamReader:
        """Adds a reader to a widget, in the reader's event loop. `remove` must follow.

        Raises:
            TooManyReadersError: all streams are taken, or half of them by this person.
        """
        with self._lock:
            bound = self.limits.max_readers
            if self.readers >= bound or (self._people[person] >= max(1, bound // 2)):
                raise TooManyReadersError
            is_new = widget not in self._channels
            channel = self._channels.setdefault(widget, _Channel())
            reader = StreamReader(person, channel, known_id, asyncio.get_running_loop())
            channel.readers.add(reader)
            self._people[person] += 1
            if is_new:
                if self._held_seconds(widget) > 0:
                    channel.event = self._event({"problem": self._held[widget].problem})
                self._tell("+", widget)
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="console-widgets", daemon=True)
                self._thread.start()
            if channel.event is not None:
                reader.has_event.set()
            return reader

    def remove(self, widget: Widget, reader: StreamReader) -> None:
        """Removes a reader. A widget without readers is not queried."""
        with self._lock:
            reader.channel.readers.discard(reader)
            self._people[reader.person] -= 1
            self._people += Counter()
            if not reader.channel.readers and self._channels.get(widget) is reader.channel:
                del self._channels[widget]
                self._tell("-", widget)

    def close(self) -> None:
        """Ends the process. A reader that waits gets a new one."""
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def _tell(self, sign: str, widget: Widget) -> None:
        """Sends a line to the process. A process that does not read its input is killed; the next one gets it all."""
        process = self._process
        if process is None or process.stdin is None:
            return
        try:
            line = f"{sign} {' '.join(widget)} {self._held_seconds(widget):.1f}\n"
            os.write(process.stdin.fileno(), line.encode())
        except OSError:
            process.kill()

    def _follow(self) -> None:
        """Runs the process while there are readers, and gives its messages to them."""
        backoff_seconds = 1.0
        while True:
            began, failure = time.monotonic(), ""
            try:
                failure = self._run_process()
            except Exception as error:
                log.warning("The process that queries widgets failed: %s: %s", type(error).__name__, error)
                failure = f"could not be started ({type(error).__name__})"
            with self._lock:
                if not self._channels:
                    self._thread = None
                    return
            if failure and backoff_seconds > 1.0:
                self._publish_to_all(f"The process that queries widgets {failure}. It is started again.")
            backoff_seconds = 1.0 if time.monotonic() - began > 60 else min(2 * backoff_seconds, _MAX_BACKOFF_SECONDS)
            time.sleep(backoff_seconds)

    def _run_process(self) -> str:
        """Runs the process until it ends. Returns how it failed; empty if it did not, or if a widget ended it."""
        self._prepare()
        with tempfile.TemporaryFile() as file:
            command = (*self._command, f"{file.fileno()}")
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(file.fileno(),)
            )
            self._copy_messages(process)
            pipeline, _, view = os.pread(file.fileno(), 1024, 0).decode().partition(" ")
        if view:
            self._hold((pipeline, view), process.returncode)
            return ""
        return f"ended with exit code {process.returncode}" if process.returncode != 0 else ""

    def _copy_messages(self, process: subprocess.Popen[bytes]) -> None:
        """Publishes the messages of the process, which has ended when this returns."""
        assert process.stdin is not None
        assert process.stdout is not None
        with process:
            try:
                os.set_blocking(process.stdin.fileno(), False)
                with self._lock:
                    self._process = process
                    for widget in self._channels:
                        self._tell("+", widget)
                for line in process.stdout:
                    message = orjson.loads(line)
                    self._publish((message["pipeline"], message["view"]), message)
                process.wait(_END_SECONDS)
            finally:
                with self._lock:
                    self._process = None
                process.kill()

    def _hold(self, widget: Widget, exit_code: int) -> None:
        """Holds the widget that was being read back from the next processes, and tells its readers."""
        cause = "took too long" if exit_code == -signal.SIGALRM else f"ended its process (exit code {exit_code})"
        log.warning("The read of widget %s %s.", ".".join(widget), cause)
        problem = f"The read of this widget {cause}. It is tried again in {_HOLD_SECONDS / 60:.0f} minutes."
        now = time.monotonic()
        with self._lock:
            self._held = {held: hold for held, hold in self._held.items() if hold.until > now}
            self._held[widget] = _Hold(now + _HOLD_SECONDS, problem)
        self._publish(widget, {"problem": problem})

    def _publish_to_all(self, problem: str) -> None:
        with self._lock:
            widgets = [widget for widget in self._channels if self._held_seconds(widget) == 0]
        for widget in widgets:
            self._publish(widget, {"problem": problem})

    def _publish(self, widget: Widget, message: Mapping[str, Any]) -> None:
        with self._lock:
            channel = self._channels.get(widget)
            if channel is None:
                return
            channel.event = self._event(message)
            for reader in channel.readers:
                try:
                    reader.wake()
                # The event loop of a stopped server is closed.
                except RuntimeError:
                    continue

    def _event(self, message: Mapping[str, Any]) -> _Event:
        self._events += 1
        return _Event(number=self._events, id=message.get("id", ""), encoded=_encode_event(message))

    def _held_seconds(self, widget: Widget) -> float:
        hold = self._held.get(widget)
        return 0.0 if hold is None else max(0.0, hold.until - time.monotonic())


def _encode_event(message: Mapping[str, Any]) -> bytes:
    """Returns an event of the stream: rows with their id, or a problem."""
    if "problem" in message:
        return b"event: problem\ndata: " + orjson.dumps({"problem": message["problem"]}) + b"\n\n"
    return b"".join((b"id: ", message["id"].encode(), b"\ndata: ", orjson.dumps(message["data"]), b"\n\n"))


class EventStream(Response):
    """A response that sends a reader's events until it leaves, accepts no data, or its time is over."""

    media_type = "text/event-stream"

    def __init__(self, streams: WidgetStreams, widget: Widget, person: str, *, known_id: str) -> None:
        super().__init__(b"", headers={**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._streams = streams
        self._widget = widget
        self._person = person
        self._known_id = known_id

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Sends the stream; 503 if too many are open."""
        try:
            reader = self._streams.add(self._widget, self._person, known_id=self._known_id)
        except TooManyReadersError:
            await _refusal()(scope, receive, send)
            return
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._await_disconnect, receive, group.cancel_scope)
                await self._send_all(reader, send)
                group.cancel_scope.cancel()
        finally:
            self._streams.remove(self._widget, reader)

    async def _await_disconnect(self, receive: Any, stream: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        stream.cancel()

    async def _send_all(self, reader: StreamReader, send: Send) -> None:
        limits, started_at = self._streams.limits, time.monotonic()
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._send(send, f"retry: {_RECONNECT_MILLISECONDS}\n\n".encode())
            sent_at = time.monotonic()
            while not _is_server_stopping() and time.monotonic() - started_at < limits.max_seconds:
                with anyio.move_on_after(min(limits.heartbeat_seconds, _STOP_CHECK_SECONDS)):
                    await reader.has_event.wait()
                event = reader.take_event()
                if event is None and time.monotonic() - sent_at >= limits.heartbeat_seconds:
                    event = b":\n\n"
                if event is not None:
                    await self._send(send, event)
                    sent_at = time.monotonic()
            await self._send(send, b"", more=False)
        except TimeoutError:
            log.info("A reader of widget %s accepted no data and was disconnected.", ".".join(self._widget))

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        with anyio.fail_after(self._streams.limits.send_seconds):
            await send({"type": "http.response.body", "body": data, "more_body": more})


def _refusal() -> Response:
    detail = {"detail": "As many widgets are open as this server serves. Try again later."}
    headers = {**HEADERS, "Cache-Control": "no-store", "Retry-After": f"{_RETRY_AFTER_SECONDS}"}
    return Response(orjson.dumps(detail), 503, headers=headers, media_type="application/json")


def _is_server_stopping() -> bool:
    """Returns whether uvicorn is shutting down: it waits for open responses, and tells applications only after that."""
    handler = signal.getsignal(signal.SIGTERM)
    return bool(getattr(getattr(handler, "__self__", None), "should_exit", False))


def add_widget_streams(app: FastAPI, console: Console, streams: WidgetStreams) -> None:
    """Adds the route of widgets' streams. A reader needs the rights to the widget's page."""

    async def events(request: Request) -> Response:
        plain, person = console.request_data(request), request.state.person
        widget = await anyio.to_thread.run_sync(_widget_of, console, plain, person, limiter=console.limiter())
        return EventStream(streams, widget, person.name, known_id=request.headers.get("last-event-id", ""))

    app.add_api_route(ROUTE, events, methods=["GET"], response_model=None)


def _widget_of(console: Console, request: RequestData, person: Person) -> Widget:
    """Returns the widget in the address.

    Raises:
        PageMissingError: it is not declared, or the person may not see its pipeline.
    """
    context = console.page_context(request, person)
    pipeline, view = request.values["pipeline"], request.values["view"]
    if not context.may_read(pipeline):
        raise PageMissingError(f"There is no pipeline {pipeline!r} whose stream you may see.")
    declared_widget(context, pipeline, view)
    return pipeline, view
