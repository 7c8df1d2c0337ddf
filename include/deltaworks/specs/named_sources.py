"""A pipeline that can read one of several sources: `sources` has them by name, `source` names the one that is read."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import TypeAdapter, ValidationError

from deltaworks.specs.source import SourceSpec

_SOURCE: TypeAdapter[Any] = TypeAdapter(SourceSpec)


def chosen_source(declared: dict[str, Any]) -> dict[str, Any]:
    """A pipeline's declaration with the source that is chosen by name, where `sources` has several.

    All of them are checked: one that is wrong is told before somebody switches to it.

    Raises:
        ValueError: `source` names none of them, or one of them is wrong.
    """
    if "sources" not in declared:
        return declared
    rest = {key: value for key, value in declared.items() if key != "sources"}
    known, name = declared["sources"], declared.get("source")
    if not isinstance(known, dict) or not known:
        raise ValueError("sources: write a name for each source, and what it is")
    for each, source in known.items():
        try:
            _SOURCE.validate_python(source)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in ("sources", each, *first["loc"][1:]))
            raise ValueError(f"{place}: {first['msg'].removeprefix('Value error, ')}") from None
    if not isinstance(name, str) or name not in known:
        nearest = difflib.get_close_matches(str(name), known, n=1, cutoff=0.4)
        advice = f"did you mean {nearest[0]!r}?" if nearest else f"sources are {', '.join(map(str, known))}"
        raise ValueError(f"source: with `sources` it is the name of one of them, not {name!r}; {advice}")
    return rest | {"source": known[name]}
