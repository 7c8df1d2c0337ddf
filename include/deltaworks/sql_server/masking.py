"""Hides personal columns from users without the right to read them.

The columns keep name, place and type, and are null, so that saved queries, dashboards and the pipeline's own views work
for all users. Personal are:

- in bronze tables and quarantine: columns that read a field declared in `privacy`, also as a part of a struct;
  undeclared fields (`_rest`) and the raw event of quarantine;
- in other tables of the pipeline (gold, live, keyed, reference tables): columns of the same names. Values that are or
  contain a token are null in all other columns too, also in pipelines that read gold of others.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from deltaworks.privacy.tokens.envelope_encryption import RANDOM_TOKEN_PREFIX, TOKEN_LENGTH, TOKEN_PREFIX
from deltaworks.specs.base import path_names
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.privacy import PrivacySpec
from deltaworks.specs.table import REST_COLUMN

#: Columns of quarantine with the event.
_QUARANTINE: Final = frozenset({"raw"})
#: Matches a text that contains a token.
_TOKEN: Final = f"({TOKEN_PREFIX}|{RANDOM_TOKEN_PREFIX})[a-z2-7]{{{TOKEN_LENGTH - len(TOKEN_PREFIX)}}}"


def personal_columns(spec: PipelineSpec, table: str) -> frozenset[str]:
    """Returns the columns of a table that are personal by declaration or name. Empty without `privacy`."""
    privacy = spec.privacy
    if privacy is None:
        return frozenset()
    bronze = {declared.name: declared for declared in spec.tables}
    own = [bronze[table]] if table in bronze else list(bronze.values())
    names = {column.name for declared in own for column in declared.columns if _is_personal(column.path, privacy)}
    return frozenset(names | {REST_COLUMN} | (_QUARANTINE if table in spec.engine_tables else set()))


def _is_personal(path: str, privacy: PrivacySpec) -> bool:
    """Returns whether a column with this path reads a private field, or a struct with one. A dropped field is null."""
    field = privacy.field_for(path)
    if field is not None:
        return field.action != "drop"
    names = path_names(path)
    return any(path_names(other.path)[: len(names)] == names for other in privacy.fields if other.action != "drop")


def projection(spec: PipelineSpec, table: str, schema: pa.Schema, *, show_personal: bool) -> str:
    """Returns the select list of a table's view."""
    # Gold of other pipelines may bring their tokens.
    if show_personal or (spec.privacy is None and not spec.gold.cross_pipeline_inputs):
        return "*"
    hidden = personal_columns(spec, table)
    is_bronze = any(declared.name == table for declared in spec.tables)
    return ", ".join(_expression(field, hidden=field.name in hidden, by_value=not is_bronze) for field in schema)


def _expression(field: pa.Field, *, hidden: bool, by_value: bool) -> str:
    name: str = '"' + field.name.replace('"', '""') + '"'
    if hidden:
        # Not a literal null, whose type would differ.
        return f"CASE WHEN false THEN {name} END AS {name}"
    if not by_value or not _has_text(field.type):
        return name
    return f"CASE WHEN NOT regexp_matches(CAST({name} AS VARCHAR), '{_TOKEN}') THEN {name} END AS {name}"


def _has_text(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_text(kind.field(index).type) for index in range(kind.num_fields))
    return not (pa.types.is_primitive(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind))
