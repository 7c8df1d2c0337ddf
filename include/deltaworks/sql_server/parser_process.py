"""Parses statements in child processes with a time limit.

DuckDB's parser takes exponential time for some short texts, such as nested WITH clauses, and holds Python's interpreter
lock meanwhile: one text would stop the server. A child that does not answer in time is killed. A session parses a
statement only after a child did.

The child reads a statement as a line of JSON and answers with one: `python -m deltaworks.sql_server.parser_process`.
"""

from __future__ import annotations

import json
import queue
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict, defaultdict
from dataclasses import asdict, dataclass
from typing import IO, Final

from deltaworks.errors import ConfigError, TransientError
from deltaworks.sql_server.references import MAX_STATEMENT_BYTES, ParsedStatement, StatementParser

#: Wall time of one statement. The child mostly needs a millisecond.
PARSE_SECONDS: Final = 5.0
#: CPU time of one statement, which planning and running it take again, in the server's own process.
MAX_CPU_SECONDS: Final = 0.5
_START_SECONDS: Final = 120.0
_CHILDREN: Final = 2
_MAX_CACHED: Final = 512
_MAX_CACHED_TEXT: Final = 16_384


@dataclass(slots=True)
class _Child:
    """A parser process, started when it is first needed."""

    process: subprocess.Popen[bytes] | None = None

    def ask(self, text: str, seconds: float) -> dict[str, object] | None:
        """Returns the answer for a statement, or None if there is none in time; then the process is killed."""
        process = self.process
        if process is None or process.poll() is not None:
            process = self.process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            _write(process, "SELECT 1")
            if _read(process, _START_SECONDS) is None:
                self.close()
                raise TransientError("SQL_SERVER_BUSY", "The parser of statements does not start.")
        if _write(process, text) and (line := _read(process, seconds)):
            answer: dict[str, object] = json.loads(line)
            return answer
        self.close()
        return None

    def close(self) -> None:
        """Kills the process."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


def _write(process: subprocess.Popen[bytes], text: str) -> bool:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(text).encode() + b"\n")
        process.stdin.flush()
    except OSError:
        return False
    return True


def _read(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    assert process.stdout is not None
    ends, parts = time.monotonic() + seconds, list[bytes]()
    while (remaining := ends - time.monotonic()) > 0:
        ready, _, _ = select.select([process.stdout], [], [], remaining)
        part = _read_available(process.stdout) if ready else b""
        if not part:
            return None
        parts.append(part)
        if part.endswith(b"\n"):
            return b"".join(parts)
    return None


def _read_available(stream: IO[bytes]) -> bytes:
    read1 = getattr(stream, "read1", stream.read)
    data: bytes = read1(1 << 16)
    return data


class GuardedParser:
    """Parses statements in child processes; results are cached. Thread-safe.

    A user's statements are parsed one after the other, so that one user cannot keep all children busy.
    """

    def __init__(self) -> None:
        self._children: queue.LifoQueue[_Child] = queue.LifoQueue()
        for _ in range(_CHILDREN):
            self._children.put(_Child())
        self._lock = threading.Lock()
        self._by_user: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._cached: OrderedDict[str, ParsedStatement] = OrderedDict()

    def parse(self, user: str, text: str) -> ParsedStatement:
        """Parses and checks a statement, as `StatementParser` does.

        Raises:
            ConfigError: SQL_REFUSED. TransientError: SQL_SERVER_BUSY, all children are busy for long.
        """
        with self._lock:
            if text in self._cached:
                self._cached.move_to_end(text)
                return self._cached[text]
            own = self._by_user[user]
        if len(text) > MAX_STATEMENT_BYTES:
            raise ConfigError("SQL_REFUSED", f"The statement is longer than {MAX_STATEMENT_BYTES} bytes.")
        with own:
            answer = self._ask(text)
        if answer is None:
            raise ConfigError("SQL_REFUSED", f"The statement could not be parsed within {PARSE_SECONDS:g} s.")
        if "refused" in answer:
            raise ConfigError("SQL_REFUSED", str(answer["refused"]))
        parsed = _parsed(answer)
        if len(text) <= _MAX_CACHED_TEXT:
            with self._lock:
                self._cached[text] = parsed
                while len(self._cached) > _MAX_CACHED:
                    self._cached.popitem(last=False)
        return parsed

    def close(self) -> None:
        """Ends the children that do not parse now; the others end with this process."""
        while not self._children.empty():
            self._children.get_nowait().close()

    def _ask(self, text: str) -> dict[str, object] | None:
        try:
            child = self._children.get(timeout=2 * PARSE_SECONDS)
        except queue.Empty:
            raise TransientError("SQL_SERVER_BUSY", "Other statements are being parsed.") from None
        try:
            return child.ask(text, PARSE_SECONDS)
        finally:
            self._children.put(child)


def _parsed(answer: dict[str, object]) -> ParsedStatement:
    tables = answer["tables"]
    assert isinstance(tables, list)
    return ParsedStatement(
        text=str(answer["text"]),
        tables=frozenset((str(schema), str(name)) for schema, name in tables),
        lists_tables=bool(answer["lists_tables"]),
        parameters=int(str(answer["parameters"])),
    )


def main() -> None:
    """Answers statements until the input ends, as when the server ends."""
    parser = StatementParser()
    for line in sys.stdin.buffer:
        began = time.process_time()
        try:
            parsed = parser.parse(json.loads(line))
            answer: dict[str, object] = asdict(parsed) | {"tables": sorted(parsed.tables)}
            if time.process_time() - began > MAX_CPU_SECONDS:
                answer = {"refused": f"The statement takes longer than {MAX_CPU_SECONDS:g} s of CPU time to parse."}
        except ConfigError as error:
            answer = {"refused": error.message}
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
