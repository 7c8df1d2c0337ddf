"""Event ids: texts unchanged, numbers as they were sent, and digests of ids with several fields."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from deltaworks.events.columns import ConversionErrors
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.events import Path, is_valid_unicode, parent_objects, value_at
from deltaworks.events.lossless_numbers import NumberLiteral, number_id_text
from deltaworks.events.reasons import ReasonCode
from deltaworks.specs.pipeline import PipelineSpec


class EventIdReader:
    """Reads event ids: the value at one path, or a digest of the values at several paths.

    Different ids never become equal: an id that parsing as a double may have rounded is read again from the raw event.
    """

    def __init__(self, spec: PipelineSpec) -> None:
        self.paths = tuple(tuple(text.split(".")) for text in spec.event.id)

    def read(
        self, events: Sequence[Mapping[str, Any]], load_lossless: Callable[[int], Any]
    ) -> tuple[list[str | None], ConversionErrors]:
        """Returns the id of each event, and errors by index.

        An id is None if a part is missing or no id is declared. Ids with invalid UTF-8 are returned unchanged;
        converting them to text fails later.

        Args:
            load_lossless: returns the event at an index with its numbers as literals, or None; called for ids that are
                doubles.

        Returns:
            Ids, and errors for numbers whose exact value is unknown; their id is None.
        """
        if not self.paths:
            return [None] * len(events), {}
        errors: ConversionErrors = {}
        parts = [self._texts(events, path, load_lossless, errors) for path in self.paths]
        if len(parts) == 1:
            return parts[0], errors
        return [_digest(texts) for texts in zip(*parts, strict=True)], errors

    @staticmethod
    def _texts(
        events: Sequence[Mapping[str, Any]], path: Path, load_lossless: Callable[[int], Any], errors: ConversionErrors
    ) -> list[str | None]:
        parents = parent_objects(events, path[:-1]) if len(path) > 1 else events
        values = [holder.get(path[-1]) for holder in parents]
        texts = [value if type(value) is str and value else _id_text(value) for value in values]
        # Loaded only if some id is not a text.
        for index, value in enumerate(values) if float in set(map(type, values)) else ():
            if type(value) is float:
                literal = value_at(load_lossless(index), path)
                texts[index] = number_id_text(literal, value) if type(literal) is NumberLiteral else None
                if texts[index] is None:
                    detail = f"{value!r} may have lost digits as a JSON number: send it as a string"
                    errors[index] = ConversionError(ReasonCode.OUT_OF_RANGE, detail)
        return texts


def _digest(texts: tuple[str | None, ...]) -> str | None:
    if None in texts:
        return None
    # Encoded as JSON, so ("a", "bc") and ("ab", "c") differ for any characters.
    try:
        return hashlib.blake2b(orjson.dumps(texts), digest_size=16).hexdigest()
    except TypeError:
        return next(text for text in texts if text is not None and not is_valid_unicode(text))


def _id_text(value: Any) -> str | None:
    if value is None or value == "" or isinstance(value, dict | list):
        return None
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def unambiguous_ids(parts: Sequence[Sequence[Any]], count: int) -> list[str | None]:
    """Returns the ids of `count` events from the values of their id fields. Ids that only `EventIdReader` can read are
    None.
    """
    if not parts:
        return [None] * count
    texts = [_unambiguous_texts(values) for values in parts]
    return texts[0] if len(texts) == 1 else [_digest(event_texts) for event_texts in zip(*texts, strict=True)]


def _unambiguous_texts(values: Sequence[Any]) -> list[str | None]:
    if set(map(type, values)) == {str} and "" not in values:
        return list(values)
    return [
        value
        if type(value) is str and value
        else str(value)
        if type(value) is int and -(1 << 63) <= value < 1 << 64
        else None
        for value in values
    ]
