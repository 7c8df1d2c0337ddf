"""The kinds of sources a pipeline can declare, and the one it reads where it declares several by name."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from deltaworks.errors import ContractError
from deltaworks.specs.sources.delta import DeltaSourceSpec
from deltaworks.specs.sources.objects import FileSourceSpec
from deltaworks.specs.sources.records import KafkaSourceSpec, KinesisSourceSpec

SourceSpec = Annotated[
    FileSourceSpec | KafkaSourceSpec | KinesisSourceSpec | DeltaSourceSpec, Field(discriminator="kind")
]
_SOURCE: TypeAdapter[Any] = TypeAdapter(SourceSpec)


def chosen_source(declared: dict[str, Any]) -> dict[str, Any]:
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
        raise ValueError("sources: write a name for each source, and what it is")
    for source_name, source in sources.items():
        try:
            _SOURCE.validate_python(source)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in ("sources", source_name, *first["loc"][1:]))
            raise ValueError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from None
    if not isinstance(name, str) or name not in sources:
        nearest = difflib.get_close_matches(str(name), sources, n=1, cutoff=0.4)
        advice = f"did you mean {nearest[0]!r}?" if nearest else f"sources are {', '.join(map(str, sources))}"
        raise ValueError(f"source: with `sources` it is the name of one of them, not {name!r}; {advice}")
    return rest | {"source": sources[name]}


def partition_columns_of(source: SourceSpec) -> tuple[str, ...]:
    """The fields that are read from the keys of objects; none for a source without objects."""
    return source.partition_columns if isinstance(source, FileSourceSpec) else ()


def objects_of(source: SourceSpec, *, pipeline: str, refused: str) -> FileSourceSpec:
    """The source as one of objects, for what reads them again.

    Raises:
        ContractError: SOURCE_HAS_NO_OBJECTS; `refused` says what cannot be done.
    """
    if isinstance(source, FileSourceSpec):
        return source
    raise ContractError(
        "SOURCE_HAS_NO_OBJECTS",
        f"{pipeline!r} reads {source.kind} ({source.place()}), which keeps no objects: {refused}.",
        hint="What has landed is in the tables; rows kept whole in quarantine can be replayed.",
    )
