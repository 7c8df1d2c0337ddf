"""Input files, folders and standard input as streams, decompressed while they are read."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import pyarrow as pa

from deltaworks.errors import ConfigError, ContractError
from deltaworks.events.decompression import detect_compression

#: The name for standard input.
STANDARD_INPUT = "-"
_HEAD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Input:
    """An input file, or standard input. `name` is the file's path relative to the given folder.

    `size_bytes` is the stored size; None if unknown.
    """

    name: PurePosixPath
    path: Path | None
    size_bytes: int | None
    stream: BinaryIO | None = None

    def __str__(self) -> str:
        return "standard input" if self.path is None else str(self.path)

    @contextlib.contextmanager
    def open(self, *, decompress: bool = True) -> Iterator[Content]:
        """Opens the content; standard input can be opened once.

        Args:
            decompress: decompress gzip, bzip2 and zstd, detected by their first bytes.

        Raises:
            ConfigError: INPUT_MISSING.
            ContractError: INPUT_DAMAGED, on opening or on reading.
        """
        with contextlib.ExitStack() as stack:
            stored = self.stream if self.path is None else stack.enter_context(self._file())
            assert stored is not None
            counted = _CountingStream(stored)
            head, rest = _peek(io.BufferedReader(counted, _HEAD_BYTES), _HEAD_BYTES)
            compression = detect_compression(head) if decompress else "none"
            yield Content(self, counted, _decompress(rest, compression))

    def _file(self) -> BinaryIO:
        assert self.path is not None
        try:
            return self.path.open("rb")
        except OSError as error:
            raise _missing_input(str(self.path), str(error.strerror)) from error


class Content:
    """The content of an input, read sequentially."""

    def __init__(self, source: Input, stored: _CountingStream, stream: io.BufferedReader) -> None:
        self._source = source
        self._stored = stored
        self._stream = stream

    @property
    def stored_bytes(self) -> int:
        """The number of stored bytes read so far."""
        return self._stored.count

    def __str__(self) -> str:
        return str(self._source)

    def head(self) -> bytes:
        """Returns the first kilobytes of the content without consuming them.

        Raises:
            ContractError: INPUT_DAMAGED.
        """
        with self._wrap_damage():
            head, self._stream = _peek(self._stream, _HEAD_BYTES)
        return head

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes; fewer only at the end.

        Raises:
            ContractError: INPUT_DAMAGED.
        """
        parts, remaining = [], size
        with self._wrap_damage():
            while remaining > 0 and (part := self._stream.read(remaining)):
                parts.append(part)
                remaining -= len(part)
        return b"".join(parts)

    def lines(self) -> Iterator[str]:
        """Yields the lines of a text with their line ends; bytes that are not UTF-8 are preserved.

        Raises:
            ContractError: INPUT_DAMAGED.
        """
        reader = io.TextIOWrapper(self._stream, "utf-8", "surrogateescape", newline="")
        try:
            first = True
            while True:
                with self._wrap_damage():
                    line = reader.readline()
                if not line:
                    return
                yield line.removeprefix("\ufeff") if first else line
                first = False
        finally:
            reader.detach()

    @contextlib.contextmanager
    def _wrap_damage(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError, ValueError, zlib.error) as error:
            raise ContractError("INPUT_DAMAGED", f"{self._source} is damaged: {str(error).rstrip('.')}.") from error


class _CountingStream(io.RawIOBase):
    """Counts the bytes read from a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._stream.read(len(view))
        view[: len(data)] = data
        self.count += len(data)
        return len(data)


class _PrependedStream(io.RawIOBase):
    """A stream that returns given bytes first, then the rest of another stream."""

    def __init__(self, head: bytes, rest: io.BufferedReader) -> None:
        self._head = head
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._head[: len(view)] or self._rest.read1(len(view))
        self._head = self._head[len(view) :]
        view[: len(data)] = data
        return len(data)


def _peek(stream: io.BufferedReader, size: int) -> tuple[bytes, io.BufferedReader]:
    """Returns the first `size` bytes (fewer only at the end) and a stream that still begins with them.

    The `peek` of a pipe or of decompressed content may return a single byte.
    """
    head = stream.read(size)
    return head, io.BufferedReader(_PrependedStream(head, stream), _HEAD_BYTES)


def _decompress(stored: io.BufferedReader, compression: str) -> io.BufferedReader:
    decompressed: object = stored
    if compression == "gzip":
        decompressed = gzip.GzipFile(fileobj=stored, mode="rb")
    elif compression == "bzip2":
        decompressed = bz2.BZ2File(stored, "rb")
    elif compression == "zstd":
        decompressed = pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), "zstd")
    return io.BufferedReader(cast(io.RawIOBase, decompressed), _HEAD_BYTES)


def find_inputs(names: Iterable[str], *, standard_input: BinaryIO | None = None) -> list[Input]:
    """Returns the input files in the given order, each once; files of a folder in path order.

    Hidden files and folders (names that begin with a dot) are skipped.

    Raises:
        ConfigError: INPUT_MISSING, a file does not exist or a folder is empty.
    """
    inputs: dict[object, Input] = {}
    for name in names:
        if name == STANDARD_INPUT and standard_input is not None:
            inputs[name] = Input(PurePosixPath("stdin"), None, None, standard_input)
            continue
        path = Path(name)
        if not path.exists():
            raise _missing_input(name, "no such file or folder")
        files = _files_below(path) if path.is_dir() else [(PurePosixPath(path.name), path)]
        if not files:
            raise _missing_input(name, "the folder has no files")
        for relative, file in files:
            inputs.setdefault(file.resolve(), Input(relative, file, file.stat().st_size))
    return list(inputs.values())


def _files_below(folder: Path) -> list[tuple[PurePosixPath, Path]]:
    files = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in names if not name.startswith(".")):
            path = Path(parent) / name
            if path.is_file():
                files.append((PurePosixPath(path.relative_to(folder).as_posix()), path))
    return files


def _missing_input(name: str, why: str) -> ConfigError:
    return ConfigError("INPUT_MISSING", f"Cannot read {name}: {why}.")
