"""Reference tables: small CSV files, loaded as Delta tables and replaced when the file changes.

Tables of published models are replaced in the same way. The replacing commit records a digest of the source, so a run
with an equal digest does nothing. After a commit that changed rows without a digest (RESTORE, DELETE) the table is
replaced.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema
from pyarrow import csv

from deltaworks.control import paths
from deltaworks.control.objects import open_objects
from deltaworks.control.provenance import user_metadata
from deltaworks.errors import ConcurrencyError, ContractError
from deltaworks.specs.catalog import Catalog
from deltaworks.specs.descriptions import TableDescription, table_descriptions
from deltaworks.specs.gold import MAX_REFERENCE_BYTES, ReferenceSpec
from deltaworks.tables.arrow_types import arrow_schema
from deltaworks.tables.commit import commit_step
from deltaworks.tables.descriptions import describe_table, described_schema, ensure_described
from deltaworks.tables.files import write_file
from deltaworks.tables.lake import Lake, arrow_path
from deltaworks.tables.log import commit_history
from deltaworks.tables.steps import reference_step

OPERATION = "refresh_references"
#: Key in `userMetadata` of the digest of source and declared columns.
DIGEST = "reference"
#: Maximum number of attempts to replace a table if concurrent runs replace it too.
_MAX_ATTEMPTS = 5
_MAX_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class ReferenceResult:
    """The result for one reference table. `replaced` is whether this run wrote `version`."""

    table: str
    replaced: bool
    rows: int
    version: int


def refresh_references(catalog: Catalog, pipeline: str, *, names: Sequence[str] | None = None) -> list[ReferenceResult]:
    """Replaces reference tables whose file has changed. Needs no JVM.

    Idempotent. With concurrent runs, each table is replaced once; with different files the last run wins.

    Args:
        names: of reference tables; by default all.

    Raises:
        ContractError: REFERENCE_UNREADABLE or REFERENCE_INVALID; tables declared before it are refreshed.
        ConcurrencyError: REFERENCE_CONTENDED.
    """
    spec = catalog.pipeline(pipeline)
    lake = Lake(catalog.environment.lake)
    return [
        _refresh(lake, catalog, pipeline, reference)
        for reference in spec.references
        if names is None or reference.name in names
    ]


def changed_references(catalog: Catalog, pipeline: str) -> list[str]:
    """Returns the reference tables whose file has changed since they were replaced.

    Raises:
        ContractError: REFERENCE_UNREADABLE.
    """
    lake = Lake(catalog.environment.lake)
    return [
        reference.name
        for reference in catalog.pipeline(pipeline).references
        if is_changed(lake, pipeline, reference.name, _digest(reference, _read_content(catalog, pipeline, reference)))
    ]


def is_changed(lake: Lake, pipeline: str, name: str, digest: str) -> bool:
    """Whether `replace_if_changed` would replace a table."""
    key = paths.table(pipeline, name)
    table = lake.open(key)
    return table is None or _stored_digest(lake, key, table) != digest


def reference_rows(catalog: Catalog, pipeline: str, reference: ReferenceSpec) -> pa.Table:
    """Returns the rows of a reference table's file, as a refresh would write them.

    Raises:
        ContractError: REFERENCE_UNREADABLE or REFERENCE_INVALID.
    """
    return read_reference(reference, _read_content(catalog, pipeline, reference))


def _refresh(lake: Lake, catalog: Catalog, pipeline: str, reference: ReferenceSpec) -> ReferenceResult:
    content = _read_content(catalog, pipeline, reference)
    digest = _digest(reference, content)
    return replace_if_changed(
        lake,
        pipeline,
        reference.name,
        digest,
        lambda: read_reference(reference, content),
        description=table_descriptions(catalog.pipeline(pipeline))[reference.name],
    )


def replace_if_changed(
    lake: Lake,
    pipeline: str,
    name: str,
    digest: str,
    read_rows: Callable[[], pa.Table],
    *,
    description: TableDescription,
    operation: str = OPERATION,
) -> ReferenceResult:
    """Replaces a table's rows in one commit, unless the digest is unchanged. Idempotent.

    Args:
        read_rows: returns the rows; called only if they are needed.

    Raises:
        ConcurrencyError: REFERENCE_CONTENDED.
    """
    key = paths.table(pipeline, name)
    rows: pa.Table | None = None
    for _ in range(_MAX_ATTEMPTS):
        table = lake.open(key)
        # Read the step before the digest. If another run replaces the table in between, the commit of this step fails
        # and the loop starts again.
        step = reference_step(pipeline, name, 0)
        ordinal = (table.transaction_version(step.app_id) if table is not None else None) or 0
        if table is not None and _stored_digest(lake, key, table) == digest:
            described = user_metadata(pipeline=pipeline, batch=ordinal, operation="describe_table", **{DIGEST: digest})
            describe_table(lake, key, table, description, user_metadata=described)
            return ReferenceResult(name, False, table.count(), table.version())
        if rows is None:
            rows = read_rows()
        batch = ordinal + 1
        metadata = user_metadata(pipeline=pipeline, batch=batch, operation=operation, **{DIGEST: digest})
        if table is None:
            created = user_metadata(pipeline=pipeline, batch=batch, operation="create_table")
            table = ensure_described(lake, key, rows.schema, description, user_metadata=created)
        file = write_file(lake.filesystem, arrow_path(lake.storage, key), rows, partition={})
        committed = commit_step(
            table,
            [file.add_action()],
            step=reference_step(pipeline, name, batch),
            user_metadata=metadata,
            recreate_as=Schema.from_arrow(described_schema(rows.schema, description)),
        )
        if committed.newly_committed:
            return ReferenceResult(name, True, rows.num_rows, committed.version)
    raise ConcurrencyError(
        "REFERENCE_CONTENDED", f"{key}: other runs replaced it {_MAX_ATTEMPTS} times from a different source."
    )


def _read_content(catalog: Catalog, pipeline: str, reference: ReferenceSpec) -> bytes:
    """Returns the bytes of the file, from the pipeline's folder or the lake."""
    if reference.object is not None:
        stored = open_objects(catalog.environment.lake).get(reference.object)
        if stored is None:
            raise _unreadable_error(reference, f"the lake has no object {reference.object}", "Upload it")
        content = stored.data
    else:
        folder = catalog.folder(pipeline).resolve()
        path = (folder / str(reference.file)).resolve()
        if not path.is_relative_to(folder):
            raise _unreadable_error(reference, f"{reference.file} is outside {folder}", "Keep the file in that folder")
        content = _read_file(path, reference)
    if len(content) > MAX_REFERENCE_BYTES:
        text = f"{reference.file or reference.object} has more than {MAX_REFERENCE_BYTES >> 20} MiB"
        raise _unreadable_error(reference, text, "Ingest it as events of a pipeline instead")
    return content


def _read_file(path: Path, reference: ReferenceSpec) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_REFERENCE_BYTES + 1)
    except OSError as error:
        raise _unreadable_error(reference, f"{path}: {error.strerror}", "Create the file, or correct `file`") from error


def _digest(reference: ReferenceSpec, content: bytes) -> str:
    declared = json.dumps([reference.key, list(reference.column_types().items())])
    return hashlib.sha256(b"\0".join([declared.encode(), content])).hexdigest()


def _stored_digest(lake: Lake, key: str, table: DeltaTable) -> str | None:
    """Returns the digest of the newest commit that changed rows; None if it has none."""
    for commit in commit_history(lake, key, newest=table.version()):
        if DIGEST in commit.metadata:
            return str(commit.metadata[DIGEST])
        if commit.changes_rows:
            return None
    return None


def read_reference(reference: ReferenceSpec, content: bytes) -> pa.Table:
    """Parses a reference CSV: a header line with column names; empty fields are null.

    Raises:
        ContractError: REFERENCE_INVALID, a column is missing, a value has another type, or a key is null or duplicated.
    """
    schema = arrow_schema(reference.column_types())
    try:
        rows = csv.read_csv(
            io.BytesIO(content),
            # With a single thread the error names the row of an invalid value.
            read_options=csv.ReadOptions(use_threads=False),
            parse_options=csv.ParseOptions(newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=schema,
                include_columns=schema.names,
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        raise _invalid_error(reference, " ".join(str(error).strip("\"'").split())) from error
    nulls = [name for name in reference.key if rows.column(name).null_count]
    if nulls:
        raise _invalid_error(
            reference, (f"key column {', '.join(nulls)} is empty in {_describe_null_rows(rows, nulls)}")
        )
    keys = rows.select(list(reference.key)).group_by(list(reference.key)).aggregate([([], "count_all")])
    duplicated = keys.filter(pc.greater(keys.column("count_all"), 1)).select(list(reference.key))
    if duplicated.num_rows:
        named = "; ".join(", ".join(map(str, row.values())) for row in duplicated.slice(0, _MAX_EXAMPLES).to_pylist())
        raise _invalid_error(reference, f"{duplicated.num_rows} keys are duplicated, such as {named}")
    return rows.combine_chunks()


def _describe_null_rows(rows: pa.Table, columns: Sequence[str]) -> str:
    missing = [row for row in range(rows.num_rows) if any(not rows.column(name)[row].is_valid for name in columns)]
    return f"{len(missing)} rows, first in row {missing[0] + 1} after the header"


def _invalid_error(reference: ReferenceSpec, problem: str) -> ContractError:
    return ContractError(
        "REFERENCE_INVALID",
        f"Reference table {reference.name!r} cannot be loaded from {reference.file or reference.object}: {problem}.",
    )


def _unreadable_error(reference: ReferenceSpec, problem: str, advice: str) -> ContractError:
    return ContractError(
        "REFERENCE_UNREADABLE",
        f"The file of reference table {reference.name!r} cannot be read: {problem}.",
        hint=f"{advice}. Readers still see the previous rows.",
    )
