"""Paths that read as if they were written for something else: `payload/page` for `payload.page`."""

from __future__ import annotations

from collections.abc import Iterator

from deltaworks.specs.base import KeyPath
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.spec_errors import SpecError
from deltaworks.specs.validation_errors import Declaration


def json_path_errors(spec: PipelineSpec, declaration: Declaration) -> Iterator[tuple[KeyPath, SpecError]]:
    """Every path into JSON whose names are divided by something else than points.

    Names of columns in files (CSV, Parquet) may have a slash of their own; so may one name of a path with points, such
    as `units.USD/shares`.
    """
    if spec.source.format != "json":
        return
    for key_path, path in declared_paths(spec):
        if "/" in path and ("." not in path or path.startswith("/")) and path.strip("/"):
            meant = path.strip("/").replace("/", ".")
            yield key_path, declaration.error_at(key_path, f"a path has points between its names: write {meant}")


def declared_paths(spec: PipelineSpec) -> Iterator[tuple[KeyPath, str]]:
    """Every path into events that a pipeline declares, with its place."""
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
