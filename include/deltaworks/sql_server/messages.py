"""The messages of Arrow Flight SQL, as far as the server reads or sends them.

They are declared here instead of generated, so that no protobuf compiler is needed. Names, field numbers and types are
those of `FlightSql.proto` of Apache Arrow.

The types of a prepared statement's parameters are inferred from their surroundings: DuckDB knows them only with values,
but clients such as JDBC drivers convert their values to the types that the server states. The SQL parser is loaded with
the first statement that has parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import duckdb
import pyarrow as pa
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

_PACKAGE: Final = "arrow.flight.protocol.sql"
_TYPE_URL: Final = f"type.googleapis.com/{_PACKAGE}."
_TYPES: Final = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint32": descriptor_pb2.FieldDescriptorProto.TYPE_UINT32,
}
#: Fields of each message as `name:type`, in the order of their numbers from 1. `*` marks repeated, `?` optional ones.
_MESSAGES: Final[dict[str, tuple[str, ...]]] = {
    "CommandStatementQuery": ("query:string", "transaction_id:bytes?"),
    "TicketStatementQuery": ("statement_handle:bytes",),
    "CommandPreparedStatementQuery": ("prepared_statement_handle:bytes",),
    "CommandStatementUpdate": ("query:string", "transaction_id:bytes?"),
    "CommandPreparedStatementUpdate": ("prepared_statement_handle:bytes",),
    "ActionCreatePreparedStatementRequest": ("query:string", "transaction_id:bytes?"),
    "ActionCreatePreparedStatementResult": (
        "prepared_statement_handle:bytes",
        "dataset_schema:bytes",
        "parameter_schema:bytes",
    ),
    "ActionClosePreparedStatementRequest": ("prepared_statement_handle:bytes",),
    "DoPutPreparedStatementResult": ("prepared_statement_handle:bytes?",),
    "ActionCancelQueryRequest": ("info:bytes",),
    "ActionCancelQueryResult": ("result:int32",),
    "CommandGetCatalogs": (),
    "CommandGetDbSchemas": ("catalog:string?", "db_schema_filter_pattern:string?"),
    "CommandGetTables": (
        "catalog:string?",
        "db_schema_filter_pattern:string?",
        "table_name_filter_pattern:string?",
        "table_types:string*",
        "include_schema:bool",
    ),
    "CommandGetTableTypes": (),
    "CommandGetSqlInfo": ("info:uint32*",),
    "CommandGetXdbcTypeInfo": ("data_type:int32?",),
    "CommandGetPrimaryKeys": ("catalog:string?", "db_schema:string?", "table:string"),
    "CommandGetExportedKeys": ("catalog:string?", "db_schema:string?", "table:string"),
    "CommandGetImportedKeys": ("catalog:string?", "db_schema:string?", "table:string"),
    "CommandGetCrossReference": (
        "pk_catalog:string?",
        "pk_db_schema:string?",
        "pk_table:string",
        "fk_catalog:string?",
        "fk_db_schema:string?",
        "fk_table:string",
    ),
}


@cache
def _classes() -> dict[str, type[Message]]:
    file = descriptor_pb2.FileDescriptorProto(name="deltaworks_flight_sql.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, text in enumerate(fields, start=1):
            _add_field(message, text, number)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


def _add_field(message: descriptor_pb2.DescriptorProto, text: str, number: int) -> None:
    name, _, kind = text.partition(":")
    field = message.field.add(name=name, number=number, type=_TYPES[kind.rstrip("*?")])
    repeated = kind.endswith("*")
    field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
    if kind.endswith("?"):
        # A proto3 field whose absence differs from its default: a group of one, as protobuf's compiler declares it.
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


def decode(data: bytes) -> tuple[str, Any]:
    """Returns name and content of a packed message.

    Raises:
        pyarrow.ArrowInvalid: the bytes are no message of Flight SQL, or one that the server does not read.
    """
    envelope = any_pb2.Any()
    try:
        envelope.ParseFromString(data)
        name = envelope.type_url.removeprefix(_TYPE_URL)
        message = _classes()[name]()
        message.ParseFromString(envelope.value)
    except (DecodeError, KeyError, ValueError) as error:
        kind = envelope.type_url[:100] if envelope.type_url.isprintable() else ""
        raise pa.ArrowInvalid(f"The request is no command of Flight SQL that this server knows: {kind!r}.") from error
    return name, message


def encode(name: str, **fields: Any) -> bytes:
    """Returns the packed message of this name."""
    message = _classes()[name](**fields)
    packed: bytes = any_pb2.Any(type_url=_TYPE_URL + name, value=message.SerializeToString()).SerializeToString()
    return packed


def encode_bare(name: str, **fields: Any) -> bytes:
    """Returns the message of this name without its packing, as results of DoPut are sent."""
    data: bytes = _classes()[name](**fields).SerializeToString()
    return data


def decode_bare(name: str, data: bytes) -> Any:
    """Returns the content of a message that is not packed.

    Raises:
        pyarrow.ArrowInvalid: the bytes are no such message.
    """
    message = _classes()[name]()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise pa.ArrowInvalid(f"The request is no {name}.") from error
    return message


#: Type of a parameter whose surroundings say nothing.
DEFAULT_TYPE: Final = "VARCHAR"
_COUNT_TYPE: Final = "BIGINT"
_PARAMETER: Final = re.compile(rb"(?:\?|\$)(\d*)")
_CALL: Final = "deltaworks_parameter"


def parameter_types(text: str, count: int, columns: Mapping[tuple[str, str], Mapping[str, str]]) -> list[str]:
    """Returns DuckDB's type of each parameter, in order; empty where the surroundings say nothing.

    Args:
        text: a valid SELECT.
        count: number of its parameters.
        columns: types of columns by name, of each table that it reads, by schema and name.
    """
    from sqlglot import exp, parse_one
    from sqlglot.errors import SqlglotError
    from sqlglot.optimizer.annotate_types import annotate_types
    from sqlglot.optimizer.qualify import qualify

    schema: dict[str, Any] = {}
    for (pipeline, name), kinds in columns.items():
        schema.setdefault(pipeline, {})[name] = dict(kinds)
    types = [""] * count
    try:
        tree = parse_one(name_parameters(text), dialect="duckdb")
        for table in tree.find_all(exp.Table):
            table.set("catalog", None)
        tree = qualify(tree, dialect="duckdb", schema=schema, validate_qualify_columns=False)
        tree = annotate_types(tree, schema=schema, dialect="duckdb")
        for parameter in filter(_is_parameter, tree.find_all(exp.Anonymous)):
            number = int(parameter.expressions[0].name)
            kind = _surrounding_type(parameter)
            if kind and 1 <= number <= count:
                types[number - 1] = kind
    except (SqlglotError, ValueError, RecursionError):
        # The statement is valid for DuckDB, which takes the types of the values.
        return [""] * count
    return types


def name_parameters(text: str) -> str:
    """Replaces each `?`, and each `$1`, by a call with the parameter's number, which the SQL parser leaves alone.

    Texts, names and comments stay.
    """
    data, number = text.encode(), 0
    parts, end = list[bytes](), 0
    for at, kind in duckdb.tokenize(text):
        mark = _PARAMETER.match(data, at) if kind == duckdb.token_type.operator else None
        if mark is None:
            continue
        number += 1
        parts += [data[end:at], f"{_CALL}({mark[1].decode() or number})".encode()]
        end = mark.end()
    return b"".join([*parts, data[end:]]).decode()


def _is_parameter(node: object) -> bool:
    return str(getattr(node, "this", "")).lower() == _CALL


def _surrounding_type(parameter: object) -> str:
    """Returns the type that the parent of a parameter expects; empty if it expects none."""
    from sqlglot import exp

    node = parameter
    assert isinstance(node, exp.Expression)
    while isinstance(node.parent, exp.Paren | exp.Neg):
        node = node.parent
    parent = node.parent
    if isinstance(parent, exp.Cast):
        return parent.to.sql(dialect="duckdb") if node is parent.this else ""
    if isinstance(parent, exp.Limit | exp.Offset):
        return _COUNT_TYPE
    if isinstance(parent, exp.Like | exp.ILike | exp.DPipe):
        return DEFAULT_TYPE
    if isinstance(parent, exp.Predicate | exp.Add | exp.Sub | exp.Mul | exp.Div | exp.Mod | exp.Coalesce):
        others = [part for part in parent.iter_expressions() if part is not node]
        return next((text for part in others if (text := _type_text(part))), "")
    return ""


def _type_text(node: object) -> str:
    from sqlglot import exp

    assert isinstance(node, exp.Expression)
    kind = node.type
    unknown = (exp.DataType.Type.UNKNOWN, exp.DataType.Type.NULL, exp.DataType.Type.INTERVAL)
    if kind is None or kind.this in unknown or _is_parameter(node):
        return ""
    return kind.sql(dialect="duckdb")
