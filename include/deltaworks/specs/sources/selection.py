"""The source of a pipeline: declared directly, or selected by name from several declared ones."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from deltaworks.errors import ContractError
from deltaworks.specs.base import raise_problems
from deltaworks.specs.sources.delta import DeltaSourceSpec
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.specs.sources.records import KafkaSourceSpec, KinesisSourceSpec

SourceSpec = Annotated[
    FileSourceSpec | KafkaSourceSpec | KinesisSourceSpec | DeltaSourceSpec, Field(discriminator="kind")
]
#: Built lazily, like models.
_SOURCE: TypeAdapter[Any] = TypeAdapter(SourceSpec, config=ConfigDict(defer_build=True))


def selected_source(declared: dict[str, Any]) -> dict[str, Any]:
    """Replaces the name in `source` by the source of that name, if the pipeline declares several in `sources`.

    All sources are validated, so that errors are found before a switch.

    Raises:
        ValueError: `source` names none of them, or one of them is invalid.
    """
    if "sources" not in declared:
        return declared
    rest = {key: value for key, value in declared.items() if key != "sources"}
    sources, name = declared["sources"], declared.get("source")
    if not isinstance(sources, dict) or not sources:
        raise_problems([(("sources",), "write a mapping from names to sources")])
    if not isinstance(name, str) or name not in sources:
        nearest = difflib.get_close_matches(str(name), sources, n=1, cutoff=0.4)
        advice = f"did you mean {nearest[0]!r}?" if nearest else f"known sources: {', '.join(map(str, sources))}"
        raise_problems([(("source",), f"with `sources` it must be the name of one of them, not {name!r}; {advice}")])
    _check_unselected({key: source for key, source in sources.items() if key != name})
    return rest | {"source": sources[name]}


def _check_unselected(sources: dict[str, Any]) -> None:
    """Validates the sources that are not selected. The selected one is validated with the pipeline."""
    problems: list[InitErrorDetails] = []
    for name, source in sources.items():
        try:
            _SOURCE.validate_python(source)
        except ValidationError as error:
            problems += [
                InitErrorDetails(
                    type=_to_custom_error(details), loc=("sources", name, *details["loc"]), input=details["input"]
                )
                if details["type"] in ("value_error", "declared")
                else InitErrorDetails(
                    type=details["type"],
                    loc=("sources", name, *details["loc"]),
                    input=details["input"],
                    ctx=details.get("ctx", {}),
                )
                for details in error.errors()
            ]
    if problems:
        raise ValidationError.from_exception_data("sources", problems)


def _to_custom_error(details: ErrorDetails) -> PydanticCustomError:
    """Converts an error of a nested validation, so that the outer validator can raise it."""
    return PydanticCustomError("declared", "{problem}", {"problem": details["msg"].removeprefix("Value error, ")})


def partition_columns_of(source: SourceSpec) -> tuple[str, ...]:
    """Returns the fields that the source reads from object keys; empty for sources without objects."""
    return source.partition_columns if isinstance(source, FileSourceSpec) else ()


def require_object_source(source: SourceSpec, *, pipeline: str, unsupported: str) -> FileSourceSpec:
    """Returns the source; raises if it does not read objects.

    Args:
        unsupported: the operation that needs objects, for the message.

    Raises:
        ContractError: SOURCE_HAS_NO_OBJECTS.
    """
    if isinstance(source, FileSourceSpec):
        return source
    raise ContractError(
        "SOURCE_HAS_NO_OBJECTS",
        f"{pipeline!r} reads {source.kind} ({source.display_name()}), which keeps no objects: {unsupported}.",
    )
