"""Hides personal columns from users without the right to read them.

The columns keep name, place and type, and are null, so that saved queries, dashboards and the pipeline's own views work
for all users. Personal are:

- in bronze tables and quarantine: columns that read a field declared in `privacy`, also as a part of a struct, and
  `event_id` if the id of events is such a field; undeclared fields, which are `_rest`, `_rescued` and columns that
  schema evolution has added; the raw event of quarantine;
- in other tables of the pipeline (gold, live, keyed, reference tables): columns of the same names. Values that are or
  contain a token are null in all other columns too, also in pipelines that read gold of others.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from deltaworks.privacy.tokens.envelope_encryption import RANDOM_TOKEN_PREFIX, TOKEN_LENGTH, TOKEN_PREFIX
from deltaworks.specs.descriptions import bronze_personal_columns
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.table import RESCUED_COLUMN, REST_COLUMN

#: Columns with fields that no declaration names, so that nothing says which of them are personal.
_UNDECLARED: Final = frozenset({REST_COLUMN, RESCUED_COLUMN})
#: Columns of quarantine with the event.
_QUARANTINE: Final = frozenset({"raw"})
#: Matches a text that contains a token.
_TOKEN: Final = f"({TOKEN_PREFIX}|{RANDOM_TOKEN_PREFIX})[a-z2-7]{{{TOKEN_LENGTH - len(TOKEN_PREFIX)}}}"


def personal_columns(spec: PipelineSpec, table: str) -> frozenset[str]:
    """Returns the columns of a table that are personal by declaration or name. Empty without personal data."""
    if not _has_personal_data(spec):
        return frozenset()
    bronze = {declared.name: declared for declared in spec.tables}
    own = [bronze[table]] if table in bronze else bronze.values()
    names = _UNDECLARED.union(*(bronze_personal_columns(spec, declared) for declared in own))
    return names | (_QUARANTINE if table in spec.engine_tables else frozenset())


def _has_personal_data(spec: PipelineSpec) -> bool:
    return spec.privacy is not None or bool(spec.private)


def projection(spec: PipelineSpec, table: str, schema: pa.Schema, *, show_personal: bool) -> str:
    """Returns the select list of a table's view."""
    # Gold of other pipelines may bring their tokens.
    if show_personal or not (_has_personal_data(spec) or spec.gold.cross_pipeline_inputs):
        return "*"
    hidden, by_value = personal_columns(spec, table), True
    bronze = next((declared for declared in spec.tables if declared.name == table), None)
    if bronze is not None and _has_personal_data(spec):
        hidden |= {*schema.names} - {*bronze.column_types()}
        # Notifications name the keys of other tables' rows.
        by_value = bronze.announces is not None
    return ", ".join(_expression(field, hidden=field.name in hidden, by_value=by_value) for field in schema)


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
