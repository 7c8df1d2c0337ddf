"""The messages of Arrow Flight SQL, as far as the server reads or sends them.

They are declared here instead of generated, so that no protobuf compiler is needed. Names, field numbers and types are
those of `FlightSql.proto` of Apache Arrow.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

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
