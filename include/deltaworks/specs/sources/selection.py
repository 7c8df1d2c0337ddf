"""The kinds of sources a pipeline can declare, and the one it reads where it declares several by name."""

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
#: Built where a pipeline declares several, as models are.
_SOURCE: TypeAdapter[Any] = TypeAdapter(SourceSpec, config=ConfigDict(defer_build=True))


def selected_source(declared: dict[str, Any]) -> dict[str, Any]:
    """A pipeline's declaration with the source that is chosen by name, where `sources` has several.

    All of them are checked: an error in one shows before somebody switches to it.

    Raises:
        ValueError: `source` names none of them, or one of them is wrong.
    """
    if "sources" not in declared:
        return declared
    rest = {key: value for key, value in declared.items() if key != "sources"}
    sources, name = declared["sources"], declared.get("source")
    if not isinstance(sources, dict) or not sources:
        raise_problems([(("sources",), "write a name for each source, and what it is")])
    if not isinstance(name, str) or name not in sources:
        nearest = difflib.get_close_matches(str(name), sources, n=1, cutoff=0.4)
        advice = f"did you mean {nearest[0]!r}?" if nearest else f"sources are {', '.join(map(str, sources))}"
        raise_problems([(("source",), f"with `sources` it is the name of one of them, not {name!r}; {advice}")])
    _check_unselected({key: source for key, source in sources.items() if key != name})
    return rest | {"source": sources[name]}


def _check_unselected(sources: dict[str, Any]) -> None:
    """Refuse what is wrong with sources that are not chosen; the chosen one is checked as the pipeline's own."""
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
    """An error of a check of ours, to be raised again."""
    return PydanticCustomError("declared", "{problem}", {"problem": details["msg"].removeprefix("Value error, ")})


def partition_columns_of(source: SourceSpec) -> tuple[str, ...]:
    """The fields that are read from the keys of objects; none for a source without objects."""
    return source.partition_columns if isinstance(source, FileSourceSpec) else ()


def require_object_source(source: SourceSpec, *, pipeline: str, unsupported: str) -> FileSourceSpec:
    """The source as one of objects, for what reads them again.

    Raises:
        ContractError: SOURCE_HAS_NO_OBJECTS; `refused` says what cannot be done.
    """
    if isinstance(source, FileSourceSpec):
        return source
    raise ContractError(
        "SOURCE_HAS_NO_OBJECTS",
        f"{pipeline!r} reads {source.kind} ({source.display_name()}), which keeps no objects: {unsupported}.",
        hint="What has landed is in the tables; rows kept whole in quarantine can be replayed.",
    )
