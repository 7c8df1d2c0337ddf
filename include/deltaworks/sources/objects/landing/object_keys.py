"""Computes the keys of landed objects from the pipeline's prefix, the input path and the content.

A key consists of the file's path, the number of the piece and a digest of its content. Landing a file again yields the
same keys and no duplicates, so an interrupted landing can be repeated.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from pathlib import PurePosixPath

from deltaworks.errors import ConfigError
from deltaworks.events.source_fields import partition_fields
from deltaworks.specs.globs import key_matcher
from deltaworks.specs.sources.objects import FileSourceSpec

_SUFFIXES = {"json": ".json", "csv": ".csv", "tsv": ".tsv", "text": ".txt", "parquet": ".parquet", "avro": ".avro"}
_WILDCARD = re.compile(r"[*?{]")
#: Characters that every S3 client accepts without escaping.
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._=-]+")
_MAX_PATH_CHARACTERS = 200


class ObjectKeys:
    """Creates the object keys of one pipeline.

    Args:
        subfolder: a folder below the pipeline's prefix, such as `day=2026-01-31`.
        force: create unused keys, so that files land again.
    """

    def __init__(self, source: FileSourceSpec, *, compression_suffix: str, subfolder: str, force: bool) -> None:
        head, tail = _key_affixes(source)
        self._source = source
        self._folder = "/".join(part for part in (head.rstrip("/"), subfolder.strip("/")) if part)
        suffix = _SUFFIXES[source.format]
        self._suffix = tail or (suffix if source.format in ("parquet", "avro") else suffix + compression_suffix)
        self._force = force

    def key(self, name: PurePosixPath, number: int, content: bytes) -> str:
        """Returns the object key of piece `number` of a file. `content` is the uncompressed piece."""
        parts = [safe for part in _stem(name).parts if (safe := _UNSAFE_CHARACTERS.sub("-", part).strip("-."))]
        path = "/".join(parts)[-_MAX_PATH_CHARACTERS:].strip("/") or "events"
        unique = uuid.uuid4().hex if self._force else hashlib.sha256(content).hexdigest()
        return "/".join(part for part in (self._folder, f"{path}-{number:05d}-{unique[:16]}{self._suffix}") if part)

    def check(self, name: PurePosixPath) -> None:
        """Verifies that the source would read the file's objects.

        Raises:
            ConfigError: LANDING_KEY_INVALID.
        """
        source, key = self._source, self.key(name, 1, b"")
        values = partition_fields(key, source.partition_columns)
        missing = [column for column in source.partition_columns if column not in values]
        if key.startswith(source.prefix) and key_matcher(source.glob)(key) and not missing:
            return
        location = f"prefix {source.prefix!r}" + (f", glob {source.glob!r}" if source.glob else "")
        partition_hint = f" and folders such as {missing[0]}=VALUE/" if missing else ""
        raise ConfigError(
            "LANDING_KEY_INVALID",
            f"The source reads {location}{partition_hint}; it would not read an object with the key {key}.",
        )


def _key_affixes(source: FileSourceSpec) -> tuple[str, str]:
    """Returns the fixed prefix and the fixed suffix of all keys that the source reads."""
    if source.glob is None:
        return source.prefix, ""
    first = _WILDCARD.search(source.glob)
    if first is None:
        return source.prefix, ""
    folder = source.glob[: first.start()].rpartition("/")[0]
    tail = re.split(r"[*?{}]", source.glob)[-1]
    head = folder if len(folder) > len(source.prefix) else source.prefix
    return head, tail if tail.startswith(".") else ""


def _stem(name: PurePosixPath) -> PurePosixPath:
    """Returns the path without the suffixes for format and compression."""
    while name.suffix.lower() in _STRIPPED_SUFFIXES and name.stem != name.name:
        name = name.with_suffix("")
    return name


_STRIPPED_SUFFIXES = {*_SUFFIXES.values(), ".jsonl", ".ndjson", ".log", ".gz", ".gzip", ".bz2", ".zst", ".zstd"}
