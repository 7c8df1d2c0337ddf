"""The metadata tables of Flight SQL: catalogs, schemas, tables, types, keys and properties of the server.

Their schemas are those of the comments in `FlightSql.proto`; clients check them. A lake has no keys: their tables are
empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

import deltaworks
from deltaworks.sql_server.references import CATALOG, MAX_STATEMENT_BYTES

TABLE, VIEW = "TABLE", "VIEW"


def _schema(*fields: tuple[str, pa.DataType, bool]) -> pa.Schema:
    """Returns the schema of columns with name, type and whether they may be null."""
    return pa.schema([pa.field(name, kind, nullable=nullable) for name, kind, nullable in fields])


_TEXT, _INT = pa.string(), pa.int32()
CATALOGS: Final = _schema(("catalog_name", _TEXT, False))
DB_SCHEMAS: Final = _schema(("catalog_name", _TEXT, True), ("db_schema_name", _TEXT, False))
TABLE_TYPES: Final = _schema(("table_type", _TEXT, False))
TABLES: Final = _schema(
    ("catalog_name", _TEXT, True),
    ("db_schema_name", _TEXT, True),
    ("table_name", _TEXT, False),
    ("table_type", _TEXT, False),
)
TABLES_WITH_SCHEMA: Final = TABLES.append(pa.field("table_schema", pa.binary(), nullable=False))
PRIMARY_KEYS: Final = _schema(
    ("catalog_name", _TEXT, True),
    ("db_schema_name", _TEXT, True),
    ("table_name", _TEXT, False),
    ("column_name", _TEXT, False),
    ("key_name", _TEXT, True),
    ("key_sequence", _INT, False),
)
FOREIGN_KEYS: Final = _schema(
    ("pk_catalog_name", _TEXT, True),
    ("pk_db_schema_name", _TEXT, True),
    ("pk_table_name", _TEXT, False),
    ("pk_column_name", _TEXT, False),
    ("fk_catalog_name", _TEXT, True),
    ("fk_db_schema_name", _TEXT, True),
    ("fk_table_name", _TEXT, False),
    ("fk_column_name", _TEXT, False),
    ("key_sequence", _INT, False),
    ("fk_key_name", _TEXT, True),
    ("pk_key_name", _TEXT, True),
    ("update_rule", pa.uint8(), False),
    ("delete_rule", pa.uint8(), False),
)
TYPE_INFO: Final = _schema(
    ("type_name", _TEXT, False),
    ("data_type", _INT, False),
    ("column_size", _INT, True),
    ("literal_prefix", _TEXT, True),
    ("literal_suffix", _TEXT, True),
    ("create_params", pa.list_(pa.field("item", _TEXT, nullable=False)), True),
    ("nullable", _INT, False),
    ("case_sensitive", pa.bool_(), False),
    ("searchable", _INT, False),
    ("unsigned_attribute", pa.bool_(), True),
    ("fixed_prec_scale", pa.bool_(), False),
    ("auto_increment", pa.bool_(), True),
    ("local_type_name", _TEXT, True),
    ("minimum_scale", _INT, True),
    ("maximum_scale", _INT, True),
    ("sql_data_type", _INT, False),
    ("datetime_subcode", _INT, True),
    ("num_prec_radix", _INT, True),
    ("interval_precision", _INT, True),
)
#: DuckDB's types: name, code of XDBC, size, quotes, base of numbers.
_TYPES: Final[tuple[tuple[str, int, int | None, str | None, int | None], ...]] = (
    ("BIGINT", -5, 19, None, 10),
    ("BOOLEAN", -7, 1, None, None),
    ("DATE", 91, 10, "'", None),
    ("DECIMAL", 3, 38, None, 10),
    ("DOUBLE", 8, 53, None, 2),
    ("FLOAT", 6, 24, None, 2),
    ("INTEGER", 4, 10, None, 10),
    ("SMALLINT", 5, 5, None, 10),
    ("TIMESTAMP", 93, 26, "'", None),
    ("TIMESTAMP WITH TIME ZONE", 2014, 32, "'", None),
    ("TINYINT", -6, 3, None, 10),
    ("VARBINARY", -3, None, "'", None),
    ("VARCHAR", 12, None, "'", None),
)
_SQL_INFO_VALUE: Final = (
    pa.field("string_value", pa.string()),
    pa.field("bool_value", pa.bool_()),
    pa.field("bigint_value", pa.int64()),
    pa.field("int32_bitmask", pa.int32()),
    pa.field("string_list", pa.list_(pa.string())),
    pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
)
SQL_INFO: Final = _schema(("info_name", pa.uint32(), False), ("value", pa.dense_union(_SQL_INFO_VALUE), False))
_STRING, _BOOL, _BIGINT, _BITMASK, _LIST, _MAP = range(6)
#: Properties by number, with the kind of value.
_PROPERTIES: Final[Mapping[int, tuple[int, Any]]] = {
    0: (_STRING, "Deltaworks"),
    1: (_STRING, deltaworks.__version__),
    2: (_STRING, pa.__version__),
    3: (_BOOL, True),  # read-only
    4: (_BOOL, True),  # SQL
    5: (_BOOL, False),  # Substrait
    8: (_BITMASK, 0),  # transactions: none
    9: (_BOOL, True),  # cancel
    10: (_BOOL, False),  # bulk ingestion
    11: (_BOOL, False),  # ingestion in transactions
    500: (_BOOL, False),  # DDL of catalogs
    501: (_BOOL, False),  # DDL of schemas
    502: (_BOOL, False),  # DDL of tables
    503: (_BITMASK, 1),  # identifiers: case-insensitive
    504: (_STRING, '"'),
    505: (_BITMASK, 1),  # quoted identifiers: case-insensitive
    506: (_BOOL, True),  # all listed tables are selectable
    507: (_BITMASK, 1),  # nulls sort high
    508: (_LIST, ["qualify", "sample", "summarize", "unpivot"]),
    509: (_LIST, ["abs", "ceil", "exp", "floor", "ln", "log10", "mod", "power", "round", "sign", "sqrt"]),
    510: (_LIST, ["concat", "length", "lower", "ltrim", "replace", "rtrim", "substring", "trim", "upper"]),
    511: (_LIST, ["coalesce", "ifnull", "nullif"]),
    512: (_LIST, ["current_date", "date_diff", "date_part", "date_trunc", "now", "strftime", "strptime"]),
    513: (_STRING, "\\"),
    514: (_STRING, ""),
    515: (_BOOL, True),  # column aliases
    516: (_BOOL, True),  # null plus null is null
    517: (_MAP, []),
    518: (_BOOL, True),  # table aliases
    519: (_BOOL, False),
    520: (_BOOL, True),  # expressions in ORDER BY
    521: (_BOOL, True),  # ORDER BY columns that are not selected
    522: (_BITMASK, 3),  # GROUP BY
    523: (_BOOL, True),  # ESCAPE of LIKE
    524: (_BOOL, True),
    525: (_BITMASK, 3),  # minimum and core grammar
    526: (_BITMASK, 1),  # entry level of ANSI 92
    527: (_BOOL, False),
    528: (_BITMASK, 7),  # outer joins
    529: (_STRING, "pipeline"),
    530: (_STRING, "procedure"),
    531: (_STRING, "lake"),
    532: (_BOOL, True),  # the catalog is at the start of a name
    533: (_BITMASK, 3),
    534: (_BITMASK, 3),
    535: (_BITMASK, 0),
    536: (_BOOL, False),
    537: (_BOOL, False),
    538: (_BITMASK, 15),  # subqueries
    539: (_BOOL, True),
    540: (_BITMASK, 3),  # UNION, UNION ALL
    **{number: (_BIGINT, 0) for number in (*range(541, 556), *range(558, 562))},  # no limits of names and counts
    556: (_BOOL, False),
    557: (_BIGINT, MAX_STATEMENT_BYTES),
    562: (_BIGINT, 0),
    563: (_BOOL, False),
    564: (_BITMASK, 0),
    565: (_BOOL, False),
    566: (_BOOL, False),
    567: (_BITMASK, 2),  # results are read forward
    568: (_BITMASK, 0),
    569: (_BITMASK, 2),
    570: (_BITMASK, 0),
    571: (_BITMASK, 0),
    572: (_BOOL, False),
    573: (_BOOL, False),
    574: (_BOOL, False),
    575: (_BOOL, False),
    576: (_BOOL, False),
}


def table_of(schema: pa.Schema, rows: Iterable[Sequence[Any]]) -> pa.Table:
    """Returns rows, given by position, as a table of this schema."""
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [() for _ in schema]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def catalogs() -> pa.Table:
    """Returns the only catalog."""
    return table_of(CATALOGS, [(CATALOG,)])


def db_schemas(names: Iterable[str]) -> pa.Table:
    """Returns these schemas."""
    return table_of(DB_SCHEMAS, [(CATALOG, name) for name in sorted(names)])


def table_types() -> pa.Table:
    """Returns the types of tables."""
    return table_of(TABLE_TYPES, [(TABLE,), (VIEW,)])


def type_info(data_type: int | None) -> pa.Table:
    """Returns DuckDB's types, or those with one code of XDBC."""
    rows = []
    for name, code, size, quote, radix in _TYPES:
        if data_type not in (None, code):
            continue
        is_decimal = name == "DECIMAL"
        # SQL_DATETIME with a subcode stands for dates and times.
        kind, subcode = (9, code - 90) if code in (91, 93) else (code, None)
        row = {
            "type_name": name,
            "data_type": code,
            "column_size": size,
            "literal_prefix": quote,
            "literal_suffix": quote,
            "create_params": ["precision", "scale"] if is_decimal else None,
            "nullable": 1,
            "case_sensitive": name == "VARCHAR",
            "searchable": 3,
            "unsigned_attribute": None if radix is None else False,
            "fixed_prec_scale": False,
            "auto_increment": None if radix is None else False,
            "local_type_name": name,
            "minimum_scale": 0 if is_decimal else None,
            "maximum_scale": 38 if is_decimal else None,
            "sql_data_type": kind,
            "datetime_subcode": subcode,
            "num_prec_radix": radix,
        }
        rows.append([row.get(column) for column in TYPE_INFO.names])
    return table_of(TYPE_INFO, sorted(rows, key=lambda row: row[1]))


def sql_info(numbers: Sequence[int]) -> pa.Table:
    """Returns properties of the server by their numbers; all without numbers. Unknown ones are left out."""
    selected = [number for number in (numbers or _PROPERTIES) if number in _PROPERTIES]
    kinds = [_PROPERTIES[number][0] for number in selected]
    children: list[list[Any]] = [[] for _ in _SQL_INFO_VALUE]
    offsets = []
    for number in selected:
        kind, value = _PROPERTIES[number]
        offsets.append(len(children[kind]))
        children[kind].append(value)
    arrays = [pa.array(values, part.type) for values, part in zip(children, _SQL_INFO_VALUE, strict=True)]
    names = [part.name for part in _SQL_INFO_VALUE]
    value = pa.UnionArray.from_dense(pa.array(kinds, pa.int8()), pa.array(offsets, pa.int32()), arrays, names)
    return pa.Table.from_arrays([pa.array(selected, pa.uint32()), value], schema=SQL_INFO)


def like(pattern: str | None) -> Callable[[str], bool]:
    """Returns whether a name matches a pattern of LIKE; all names match None."""
    if pattern is None:
        return lambda _: True
    parts = {"%": ".*", "_": "."}
    matches = re.compile("".join(parts.get(letter, re.escape(letter)) for letter in pattern[:1_000]), re.DOTALL)
    return lambda name: matches.fullmatch(name) is not None
