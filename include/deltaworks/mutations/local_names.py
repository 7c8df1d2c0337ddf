"""Computes the mapping from ids to names of few requests in this process; see `state_tables`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import pyarrow as pa

from deltaworks.mutations.local_periods import moment
from deltaworks.mutations.local_resolve import RequestRow
from deltaworks.mutations.state_tables import RENAME_NAME, AssignedName, IdMapping, NameRequest
from deltaworks.specs.mutation import DELETED_COLUMN, MOVE_OPERATIONS, MUTATION_COLUMN, NAMES_COLUMNS, ORG_COLUMN
from deltaworks.tables.arrow_types import arrow_schema


def names_after(requests: Iterable[RequestRow], *, rule: str) -> dict[str, dict[str, AssignedName]]:
    """Returns the names by id after all requests, for each organisation with names; as `resolve_names` does."""
    by_organisation: dict[str, list[RequestRow]] = defaultdict(list)
    named: set[str] = set()
    for request in requests:
        if request.is_valid and request.op in (RENAME_NAME, *MOVE_OPERATIONS):
            by_organisation[request.org_id].append(request)
            if request.op == RENAME_NAME and request.name is not None:
                named.add(request.org_id)
    return {
        organisation: IdMapping(rule).replay(map(_name_request, by_organisation[organisation]))
        for organisation in sorted(named)
    }


def _name_request(request: RequestRow) -> NameRequest:
    return NameRequest(request.op, request.id, request.new_id, request.name, moment(request.time), request.seq)


def changed_names(
    organisation: str, stored: pa.Table, names: Mapping[str, AssignedName], *, batch: int
) -> pa.Table | None:
    """Returns the rows of an organisation in the mapping table after a batch; None if nothing changes.

    Names that no longer exist stay as deleted rows. Only changed rows get the number of the batch.
    """
    rows = {row["id"]: row for row in stored.to_pylist()}
    changed = False
    for name_id in {*rows, *names}:
        row, assigned = rows.get(name_id), names.get(name_id)
        if assigned is None:
            if row is not None and not row[DELETED_COLUMN]:
                rows[name_id] = {**row, DELETED_COLUMN: True, MUTATION_COLUMN: batch}
                changed = True
            continue
        has_seq, seq = assigned.sequence_order
        values = {"name": assigned.name, "named_at": assigned.time, "seq": seq if has_seq else None}
        is_same = row is not None and not row[DELETED_COLUMN] and all(row[key] == values[key] for key in values)
        if not is_same:
            key = {ORG_COLUMN: organisation, "id": name_id}
            rows[name_id] = {**key, **values, DELETED_COLUMN: False, MUTATION_COLUMN: batch}
            changed = True
    if not changed:
        return None
    return pa.Table.from_pylist([rows[name_id] for name_id in sorted(rows)], schema=arrow_schema(NAMES_COLUMNS))
