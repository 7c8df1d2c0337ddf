"""How `deltaworks pipelines infer` writes down what it proposes: YAML to be put into pipeline.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator

from deltaworks.operations.column_proposal import Proposal, TableProposal


def proposal_lines(found: Proposal) -> Iterator[str]:
    """The lines, a comment beside each column. Text is YAML whatever names the events have."""
    yield f"# {found.objects:,} objects looked at, {found.unread:,} values that are no events"
    for name, count in found.unrouted.most_common(20):
        yield f"# no table takes {count:,} events called {json.dumps(name)}"
    if found.tables:
        yield "tables:"
    for table in found.tables:
        yield from _table_lines(table)


def _table_lines(table: TableProposal) -> Iterator[str]:
    yield f"  - name: {table.table}  # {table.events:,} events"
    for conflict in table.conflicts:
        yield f"    # not taken, {json.dumps(conflict.path)}: {conflict.values:,} values are {conflict.kind}"
    yield "    columns:" if table.columns else "    columns: []"
    for column in table.columns:
        share = f"{100 * column.events / max(1, table.events):.1f} % of events"
        declared = ", declared already" if column.declared else ""
        path, kind = json.dumps(column.path), json.dumps(str(column.kind))
        yield f"      - {{name: {column.name}, path: {path}, type: {kind}}}  # {share}{declared}"
