"""Which tables of a pipeline have rows of people: those a window purges, and those in which nobody may come back.

Gold is not among them: it is built from these and follows. Copies that a reprocess made beside a table are, for they
stay until somebody deletes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deltaworks.control.home import PipelineHome
from deltaworks.control.records.reprocess import reprocess_ids
from deltaworks.specs.pipeline import PipelineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalTable:
    """A table that may have rows of a person.

    Args:
        turn: whether a stream writes it, so that its write turn is needed.
        kept_because: why its rows stay; empty where they go.
    """

    name: str
    needs_write_turn: bool
    kept_because: str = ""


def personal_tables(spec: PipelineSpec, home: PipelineHome) -> list[PersonalTable]:
    """The tables of a pipeline that may have rows of people, those that are not there yet among them.

    A keyed table follows from its history: where that is kept, so is what it has of it, which would only come back.

    Raises:
        ContractError: REPROCESS_RECORD_UNREADABLE.
    """
    kept = {table.name: table.erase_reason for table in spec.tables if table.erase == "keep"}
    following = {keyed.name: keyed.history for keyed in (*spec.keyed_tables, *spec.latest_tables)}
    kept |= {name: f"it follows {of}: {kept[of]}" for name, of in following.items() if of in kept}
    written = dict.fromkeys([*(table.name for table in spec.tables), *spec.engine_tables, *following], True)
    others = [] if spec.mutations is None else [spec.mutations.names, spec.mutations.intervals]
    written |= dict.fromkeys((name for name in others if name not in written), False)
    tables = [
        PersonalTable(name=name, needs_write_turn=turn, kept_because=kept.get(name, ""))
        for name, turn in written.items()
    ]
    return [*tables, *_shadow_tables(spec, home, kept)]


def _shadow_tables(spec: PipelineSpec, home: PipelineHome, kept: Mapping[str, str]) -> Iterator[PersonalTable]:
    """The tables that reprocesses have made beside others."""
    for name in reprocess_ids(home.objects, spec.pipeline):
        plan = home.reprocess(name).plan()
        if plan is not None and plan.mode == "shadow":
            for table in dict.fromkeys([*plan.tables, *(spec.engine_tables if plan.all_tables else ())]):
                yield PersonalTable(
                    name=f"{table}__{plan.id}", needs_write_turn=False, kept_because=kept.get(table, "")
                )
