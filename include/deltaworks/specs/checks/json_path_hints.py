"""Hints for JSON paths in another notation, such as `payload/page` instead of `payload.page`."""

from __future__ import annotations

from collections.abc import Iterator

from deltaworks.specs.base import KeyPath
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_errors import SpecError
from deltaworks.specs.validation_errors import Declaration


def json_path_errors(spec: PipelineSpec, declaration: Declaration) -> Iterator[SpecError]:
    """Yields an error for each JSON path that uses separators other than dots, such as slashes.

    Column names in files (CSV, Parquet) can contain slashes, and so can a name in a dotted path, such as
    `units.USD/shares`.
    """
    if spec.source.format != "json":
        return
    for key_path, path in declared_paths(spec):
        if "/" in path and ("." not in path or path.startswith("/")) and path.strip("/"):
            suggestion = path.strip("/").replace("/", ".")
            yield declaration.error_at(key_path, f"separate the names of a path by dots: write {suggestion}")


def declared_paths(spec: PipelineSpec) -> Iterator[tuple[KeyPath, str]]:
    """Yields all declared paths into events, with their key paths."""
    if spec.unwrap is not None:
        yield ("unwrap", "path"), spec.unwrap.path
        for index, path in enumerate(spec.unwrap.keep):
            yield ("unwrap", "keep", index), path
    if spec.event.name.path is not None:
        yield ("event", "name", "path"), spec.event.name.path
    times = spec.event.time.path
    for index, path in enumerate(times):
        yield ("event", "time", "path", *([index] if len(times) > 1 else [])), path
    for index, path in enumerate(spec.event.id):
        yield ("event", "id", index), path
    yield from ((("enrich", index, "path"), lookup.path) for index, lookup in enumerate(spec.enrich))
    yield from ((("private", index, "path"), private.path) for index, private in enumerate(spec.private))
    for index, table in enumerate(spec.tables):
        for name in table.when:
            yield ("tables", index, "when", name), name
        for position, column in enumerate(table.columns):
            yield ("tables", index, "columns", position, "path"), column.path
