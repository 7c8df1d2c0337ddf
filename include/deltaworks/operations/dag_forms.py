"""The forms of Airflow's DAGs: which operations a pipeline's declaration supports, and the fields of their forms.

Operations of the same subject that share their options have one DAG, so that Airflow's list stays short. The field
`action` selects one of them (`games__recover`: log, files, table or checkpoint); in a DAG that runs several in order,
as maintenance does, `steps` restricts a run to some of them. Every operation keeps its command, options, bounds and
approval.

An unsupported operation has no DAG, since no form values would work. A partly supported operation has a DAG whose page
names the restrictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from deltaworks.errors import ConfigError
from deltaworks.operations.base import APPROVE_TASK, COUNT_TASK, DRY_RUN_GATE_TASK, Operation, Scope
from deltaworks.operations.options import OptionField, Options, option_fields
from deltaworks.operations.registry import OPERATIONS
from deltaworks.specs.dag_ids import dag_id
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.record_sources import RecordSourceSpec
from deltaworks.specs.sources import FileSourceSpec

#: The fields that select operations, and the option that every form treats alike.
ACTION: Final = "action"
STEPS: Final = "steps"
DRY_RUN: Final = "dry_run"
#: Kinds of DAGs that run by a schedule, and the approval of reveals, whose last step is a command. All others run only
#: when triggered.
_KINDS_WITH_OWN_TASKS: Final = frozenset(
    {"gold", "models", "find_lost_events", "mutations", "maintenance", "clean", "vault", "erase", "reveal"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DagForm:
    """The operations of a DAG and its form.

    Args:
        kind: the kind in the DAG id, such as `recover`.
        operations: in registry order. If each has an action, a run executes one of them; otherwise it executes all in
            the order of the DAG, or those in `steps`.
    """

    kind: str
    operations: tuple[Operation, ...]

    def dag_id(self, subject: str) -> str:
        """Returns the id of the form's DAG for a pipeline, relay or namespace."""
        return dag_id(subject, self.kind)

    @property
    def actions(self) -> dict[str, Operation]:
        """The operation of each choice of the field `action`; empty if the form has no such field."""
        return {action: operation for operation in self.operations for action in operation.actions}

    @property
    def default_action(self) -> str | None:
        """The action of scheduled runs; None if a person has to choose one."""
        return next((operation.action for operation in self.operations if operation.is_default_action), None)

    @property
    def has_steps(self) -> bool:
        """Whether the field `steps` selects operations."""
        return len(self.operations) > 1 and not self.actions

    @property
    def waits_for_approval(self) -> bool:
        """Whether at least one operation has to be approved."""
        return any(operation.waits_for_approval for operation in self.operations)

    def fields(self) -> tuple[OptionField, ...]:
        """Returns the fields for options, each name once, `dry_run` last.

        Where operations declare an option differently, the help says so for each, and the field has no default: each
        operation applies its own.
        """
        declared: dict[str, list[tuple[Operation, OptionField]]] = {}
        for operation in self.operations:
            for field in option_fields(operation.options_model()):
                if field.name != operation.actions_from:
                    declared.setdefault(field.name, []).append((operation, field))
        merged = [self._merged(fields) for fields in declared.values()]
        return tuple(sorted(merged, key=lambda field: field.name == DRY_RUN))

    def _merged(self, declared: Sequence[tuple[Operation, OptionField]]) -> OptionField:
        fields = [field for _, field in declared]
        first = fields[0]
        if any(field.kind != first.kind for field in fields):
            raise TypeError(f"{self.kind}: the option {first.name} has several types")
        is_common = len(declared) == len(self.operations)
        return replace(
            first,
            help=first.help if len({field.help for field in fields}) == 1 else _help_by_operation(declared),
            default=first.default if all(field.default == first.default for field in fields) else None,
            required=is_common and all(field.required for field in fields),
            is_needed=any(field.required for field in fields),
            choices=tuple(dict.fromkeys(choice for field in fields for choice in field.choices)),
            tables=next((field.tables for field in fields if field.tables is not None), None),
            section=first.section or self._section([operation for operation, _ in declared]),
            minimum=first.minimum if all(field.minimum == first.minimum for field in fields) else None,
            maximum=first.maximum if all(field.maximum == first.maximum for field in fields) else None,
        )

    def fields_for(self, spec: PipelineSpec | None) -> tuple[OptionField, ...]:
        """Returns the fields that a pipeline's form has: those for its kind of source; all without a pipeline."""
        if spec is None:
            return self.fields()
        source = "objects" if isinstance(spec.source, FileSourceSpec) else "records"
        return tuple(field for field in self.fields() if field.source in ("", source))

    def _section(self, operations: Sequence[Operation]) -> str:
        """Returns the section of an option that a single operation has, unless that is the default action."""
        (operation, *others) = operations
        if others or len(self.operations) == 1 or operation.is_default_action:
            return ""
        return (operation.action or operation.name).replace("_", " ").capitalize()

    def chosen(self, params: Mapping[str, Any]) -> Operation:
        """Returns the operation that a run with these params executes.

        Raises:
            ConfigError: OPTION_INVALID, no action or an unknown one.
        """
        if not self.actions:
            return self.operations[0]
        action = params.get(ACTION) or self.default_action
        if action not in self.actions:
            choices = ", ".join(self.actions)
            raise ConfigError(
                "OPTION_INVALID",
                f"action {action or ''}: it is not one of {choices}.",
                hint=f"Set `action` to one of {choices}.",
            )
        return self.actions[action]

    def option_values(self, operation: Operation, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options of an operation from a run's params; none if the form is not that of the operation.

        Raises:
            ConfigError: OPTION_INVALID, an option is set that the chosen action does not have.
        """
        if operation not in self.operations:
            return {}
        if self.actions:
            self._refuse_foreign_options(operation, params)
        values = {name: params.get(name) for name in operation.options_model().model_fields}
        if operation.actions_from:
            values[operation.actions_from] = params.get(ACTION)
        return values

    def _refuse_foreign_options(self, operation: Operation, params: Mapping[str, Any]) -> None:
        own = operation.options_model().model_fields
        for field in self.fields():
            value = params.get(field.name)
            if field.name in own or field.name == DRY_RUN or value in (None, "", [], (), False, field.default):
                continue
            users = [
                action for action, other in self.actions.items() if field.name in other.options_model().model_fields
            ]
            raise ConfigError(
                "OPTION_INVALID",
                f"{field.flag} {value}: `{operation.command}` has no such option. Nothing was done.",
                hint=f"Clear it; it is an option of: {', '.join(users)}.",
            )

    def run_values(self, operation: Operation, options: Options) -> dict[str, Any]:
        """Returns the params of a run that executes one operation with these options."""
        return self.select(operation, options.model_dump(mode="json"))

    def select(self, operation: Operation, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns options of an operation with the field that selects it."""
        values = dict(values)
        if self.actions:
            action = values.pop(operation.actions_from) if operation.actions_from else operation.action
            return {ACTION: action, **values}
        return {STEPS: [operation.name], **values} if self.has_steps else values

    def deselect(self, operation: Operation, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options in a run's params, without the field that selects the operation. Inverse of `select`."""
        values = {name: value for name, value in params.items() if name not in (ACTION, STEPS)}
        return {operation.actions_from: params.get(ACTION), **values} if operation.actions_from else values

    def task_ids(self, *, gold: bool) -> list[str]:
        """Returns the tasks of a DAG that only runs when triggered, in order.

        The task that runs an operation has the operation's name.

        Args:
            gold: whether its pipeline declares gold tables.
        """
        before = [COUNT_TASK, DRY_RUN_GATE_TASK, APPROVE_TASK] if self.waits_for_approval else []
        after = ["rebuild_gold"] if gold and any(one.rebuilds_gold for one in self.operations) else []
        return [*before, *(operation.name for operation in self.operations), *after]


def _help_by_operation(declared: Iterable[tuple[Operation, OptionField]]) -> str:
    texts: dict[str, list[str]] = {}
    for operation, field in declared:
        default = "" if field.default in (None, (), False) or field.required else f" Default: {field.default}."
        texts.setdefault(f"{field.help}{default}", []).append(operation.action or operation.name)
    return " ".join(f"{', '.join(names)}: {text}" for text, names in texts.items())


def dag_forms(operations: Iterable[Operation]) -> list[DagForm]:
    """Returns the forms of operations on one kind of subject, in registry order."""
    by_kind: dict[str, list[Operation]] = {}
    for operation in operations:
        by_kind.setdefault(operation.kind, []).append(operation)
    return [DagForm(kind=kind, operations=tuple(members)) for kind, members in by_kind.items()]


def form_of(operation: Operation) -> DagForm:
    """Returns the form of an operation with all operations that share it."""
    return form_by_kind(operation.kind, operation.scope)


def form_by_kind(kind: str, scope: Scope = "pipeline") -> DagForm:
    """Returns the form of a kind of DAG."""
    return DagForm(
        kind=kind, operations=tuple(one for one in OPERATIONS.values() if (one.scope, one.kind) == (scope, kind))
    )


def triggered_forms(operations: Iterable[Operation]) -> list[DagForm]:
    """Returns the forms whose DAGs run only when a person triggers them."""
    return [form for form in dag_forms(operations) if form.kind not in _KINDS_WITH_OWN_TASKS]


def pipeline_forms(spec: PipelineSpec) -> list[DagForm]:
    """Returns the forms of a pipeline whose DAGs run only when triggered, with the operations it can run."""
    pipeline_operations = [one for one in OPERATIONS.values() if one.scope == "pipeline"]
    return triggered_forms(one for one in pipeline_operations if unavailable_reason(one, spec) is None)


def declared_forms(*, mutations: bool, gold: bool, feeds: bool) -> list[DagForm]:
    """Returns the forms of pipelines with these features, for any source.

    Args:
        mutations: they declare mutations. gold: they declare gold tables. feeds: they declare feeds.
    """
    return triggered_forms(
        one
        for one in OPERATIONS.values()
        if one.scope == "pipeline"
        and (mutations or not one.needs_mutations)
        and (gold or not one.needs_gold)
        and (feeds or not one.needs_feeds)
    )


def relay_forms() -> list[DagForm]:
    """Returns the forms of a relay whose DAGs run only when triggered."""
    return triggered_forms(one for one in OPERATIONS.values() if one.scope == "relay")


def unavailable_reason(operation: Operation, spec: PipelineSpec) -> str | None:
    """Returns why the pipeline can never run the operation, as a sentence; None if it can."""
    needs = (
        (operation.needs_mutations, spec.mutations is not None, "mutations"),
        (operation.needs_gold, spec.gold.tables, "gold tables"),
        (operation.needs_feeds, spec.feeds, "feeds"),
        (operation.needs_models, spec.models, "models"),
    )
    for is_needed, is_declared, feature in needs:
        if is_needed and not is_declared:
            return f"It declares no {feature}."
    if operation.name == "reprocess" and not isinstance(spec.source, FileSourceSpec | RecordSourceSpec):
        return "It reads a Delta table, which has neither objects nor records to read again: start the pipeline over."
    if operation.name == "recover_files" and not isinstance(spec.source, FileSourceSpec):
        return "Lost rows are read again from objects, and its source has none: restore the table to a batch."
    return None


def restrictions(operation: Operation, spec: PipelineSpec) -> str:
    """Returns sentences about what the pipeline does not support of an operation, for the DAG's page; empty if none."""
    announced = {table.announces.table for table in spec.tables if table.announces is not None}
    immutable_in_place = [
        table.name for table in spec.event_tables if table.mutable is not None or table.name in announced
    ]
    if not immutable_in_place:
        return ""
    tables = ", ".join(f"`{name}`" for name in immutable_in_place)
    if operation.name == "reprocess":
        other_tables = [f"`{table.name}`" for table in spec.event_tables if table.name not in immutable_in_place]
        table_hint = f", or *Tables* to some of {', '.join(other_tables)}" if other_tables else ""
        return (
            f"Mutations change {tables}, or they are announced: in place they are refused (`REPROCESS_MUTABLE`). "
            f"Set *Shadow*{table_hint}."
        )
    if operation.name in ("restore", "recover_table", "recover_log"):
        all_tables_hint = "Leave *Table* empty: all tables are restored together, and all requests are applied again."
        return f"{tables} and the tables of requests and notifications are not put back alone (`RESTORE_MUTABLE`). " + (
            all_tables_hint if operation.name == "restore" else ""
        )
    return ""
