"""Column lineage of gold tables. sqlglot traces the columns of their SQL through subqueries, joins and aliases."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, lineage

from deltaworks.lineage.datasets import Column, Dataset
from deltaworks.specs.checks.query_errors import parse_query

#: SQL dialect of gold tables.
_DIALECT = "spark"
log = logging.getLogger(__name__)


def column_origins(sql: str, reads: Mapping[str, Dataset]) -> dict[str, tuple[Column, ...]]:
    """Returns the input columns of each result column. Columns without an origin, such as counts, are omitted.

    Returns nothing if the query cannot be traced.

    Args:
        reads: inputs by their names in the query, with their fields.
    """
    schema = {name: {column: kind or "string" for column, kind in read.fields.items()} for name, read in reads.items()}
    try:
        query = parse_query(sql)
        if query is None:
            return {}
        nodes = lineage(None, query, {name: columns for name, columns in schema.items() if columns}, dialect=_DIALECT)
        origins = {name: tuple(dict.fromkeys(_origin_columns(node, reads))) for name, node in nodes.items()}
    except (SqlglotError, ValueError, KeyError, RecursionError) as error:
        log.debug("cannot trace the columns of a query: %s", error)
        return {}
    return {name: columns for name, columns in origins.items() if columns}


def _origin_columns(node: Node, reads: Mapping[str, Dataset]) -> Iterator[Column]:
    for child in node.walk():
        table = child.expression
        if isinstance(table, exp.Table) and table.name.lower() in reads:
            column = exp.to_column(child.name).name
            if column != "*":
                yield reads[table.name.lower()].column(column)
