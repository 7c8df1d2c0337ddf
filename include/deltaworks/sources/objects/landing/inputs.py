"""Files, folders and standard input as streams of content: decompressed as they are read, never held as a whole."""

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

#: What stands for standard input.
STANDARD_INPUT = "-"
_HEAD_BYTES = 64 << 10
#: So much tells how content is compressed.
_MAGIC_BYTES = 16


@dataclass(frozen=True, slots=True)
class Input:
    """One file, or standard input. `name` is its path below the folder that was named, without the folder itself.

    `size_bytes` is what it takes as it is stored, None where nobody knows.
    """

    name: PurePosixPath
    path: Path | None
    size_bytes: int | None
    stream: BinaryIO | None = None

    def __str__(self) -> str:
        return "standard input" if self.path is None else str(self.path)

    @contextlib.contextmanager
    def open(self, *, decompress: bool = True) -> Iterator[Content]:
        """The content from its beginning; standard input can be opened once.

        Args:
            decompress: gzip, bzip2 and zstd, by how it begins.

        Raises:
            ConfigError: INPUT_MISSING.
            ContractError: INPUT_DAMAGED, here or when it is read.
        """
        with contextlib.ExitStack() as closing:
            stored = self.stream if self.path is None else closing.enter_context(self._file())
            assert stored is not None
            counted = _CountingStream(stored)
            beginning, whole = _peek(io.BufferedReader(counted, _HEAD_BYTES), _MAGIC_BYTES)
            kind = detect_compression(beginning) if decompress else "none"
            yield Content(self, counted, _decompress(whole, kind))

    def _file(self) -> BinaryIO:
        assert self.path is not None
        try:
            return self.path.open("rb")
        except OSError as error:
            raise _missing_input(str(self.path), str(error.strerror)) from error


class Content:
    """The content of an input, read from its beginning on."""

    def __init__(self, source: Input, stored: _CountingStream, stream: io.BufferedReader) -> None:
        self._source = source
        self._stored = stored
        self._stream = stream

    @property
    def stored_bytes(self) -> int:
        """How much of the input, as it is stored, was read so far."""
        return self._stored.count

    def __str__(self) -> str:
        return str(self._source)

    def head(self) -> bytes:
        """How the content begins, some kilobytes of it; they are still read.

        Raises:
            ContractError: INPUT_DAMAGED.
        """
        with self._wrap_damage():
            head, self._stream = _peek(self._stream, _HEAD_BYTES)
        return head

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer only at the end.

        Raises:
            ContractError: INPUT_DAMAGED.
        """
        parts, missing = [], size
        with self._wrap_damage():
            while missing > 0 and (part := self._stream.read(missing)):
                parts.append(part)
                missing -= len(part)
        return b"".join(parts)

    def lines(self) -> Iterator[str]:
        """The lines of a text with their ends, as formats of text read them; bytes that are no UTF-8 stay as they are.

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
            raise ContractError(
                "INPUT_DAMAGED",
                f"{self._source} cannot be read to its end: {str(error).rstrip('.')}.",
                hint="Get it again from where it came from. What landed of it stays, and does not land twice.",
            ) from error


class _CountingStream(io.RawIOBase):
    """Counts what is read from a stream."""

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
    """A stream from its beginning, of which some was read already."""

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
    """The first `size` bytes, fewer only where there are no more, and the stream from its beginning.

    What `peek` gives may be a single byte, as of a pipe or of content that is decompressed.
    """
    head = stream.read(size)
    return head, io.BufferedReader(_PrependedStream(head, stream), _HEAD_BYTES)


def _decompress(stored: io.BufferedReader, kind: str) -> io.BufferedReader:
    inflating: object = stored
    if kind == "gzip":
        inflating = gzip.GzipFile(fileobj=stored, mode="rb")
    elif kind == "bzip2":
        inflating = bz2.BZ2File(stored, "rb")
    elif kind == "zstd":
        inflating = pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), "zstd")
    return io.BufferedReader(cast(io.RawIOBase, inflating), _HEAD_BYTES)


def find_inputs(names: Iterable[str], *, standard_input: BinaryIO | None = None) -> list[Input]:
    """The files that are meant, in the order they were named and each once; those of a folder by their paths.

    Hidden files and folders, whose names begin with a dot, are left out of folders.

    Raises:
        ConfigError: INPUT_MISSING, there is no such file, or a folder holds none.
    """
    chosen: dict[object, Input] = {}
    for name in names:
        if name == STANDARD_INPUT and standard_input is not None:
            chosen[name] = Input(PurePosixPath("stdin"), None, None, standard_input)
            continue
        path = Path(name)
        if not path.exists():
            raise _missing_input(name, "there is no such file or folder")
        files = _files_below(path) if path.is_dir() else [(PurePosixPath(path.name), path)]
        if not files:
            raise _missing_input(name, "the folder holds no files")
        for below, file in files:
            chosen.setdefault(file.resolve(), Input(below, file, file.stat().st_size))
    return list(chosen.values())


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
    return ConfigError("INPUT_MISSING", f"Cannot read {name}: {why}.", hint="Give files, folders, or - for stdin.")
