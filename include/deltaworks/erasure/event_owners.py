"""Finds the people to whom events in landed objects belong: redacts each event like the parser and searches it for
tokens.

Events that were redacted before landing contain tokens, which redaction leaves unchanged. In other events redaction
replaces identifiers by the same tokens. So a person is found in both, also in undeclared texts.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from deltaworks.erasure.token_search import TokenSearch, combine_searches, has_token_form
from deltaworks.events.budget import OverBudget
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.events import EventReader
from deltaworks.events.formats.json_recovery import Malformed
from deltaworks.privacy.redactor import Redactor
from deltaworks.specs.pipeline import PipelineSpec

#: Request id by index of the event to erase within one piece of a payload.
Owners = dict[int, str]


class EventOwners:
    """Assigns events to erasure requests. Not thread-safe.

    Args:
        specs: pipelines that read the object, all with the same event boundaries.
        key: token key of the namespace.
        searches: token search by request id.
    """

    def __init__(self, specs: Sequence[PipelineSpec], key: bytes, searches: Mapping[str, TokenSearch]) -> None:
        self._readers = [(EventReader(spec), Redactor(spec.privacy, key)) for spec in specs if spec.privacy is not None]
        self._searches = searches
        self._combined_search = combine_searches(searches.values())
        #: Searched tokens that do not have the usual form, such as ids created by mutations.
        self._untyped_ids = {token for token in self._combined_search.tokens if not has_token_form(token)}

    def owners_in_piece(self, value: Any, raw: bytes, *, at_ms: int) -> tuple[int, Owners]:
        """Returns the number of events in a piece, and the events to erase.

        Args:
            at_ms: time when the object landed; tokens of children depend on the day.
        """
        if isinstance(value, Malformed | OverBudget):
            request = self._first_request(self._combined_search.tokens_in_bytes(raw))
            return 1, {} if request is None else {0: request}
        events, owners = 0, Owners()
        for reader, redactor in self._readers:
            event_value = value if len(self._readers) == 1 else copy.deepcopy(value)
            events = 0
            for index, (inner, inner_raw) in enumerate(reader.unwrap_arrays([(event_value, raw)])):
                events = index + 1
                if index not in owners:
                    request = self._owner_of_event(reader, redactor, inner, inner_raw, at_ms)
                    owners.update({} if request is None else {index: request})
        if events > 1 and not owners:
            # The wrapper of events may contain a token that none of its events contains.
            request = self._first_request(self._combined_search.tokens_in_bytes(raw))
            owners = {} if request is None else dict.fromkeys(range(events), request)
        return events, owners

    def _owner_of_event(
        self, reader: EventReader, redactor: Redactor, value: Any, raw: bytes, at_ms: int
    ) -> str | None:
        present = self._combined_search.tokens_in_bytes(raw)
        if not present and not reader.is_erased(value):
            try:
                event = redactor.redact_reread(reader.read_event(value), at_ms=at_ms)
            except ConversionError:
                return None
            present = self._combined_search.tokens_in_bytes(_encode_event(event))
            if not present and self._untyped_ids:
                present = self._untyped_ids.intersection(_texts(event))
        return self._first_request(present)

    def _first_request(self, tokens: set[str]) -> str | None:
        if not tokens:
            return None
        return next(request for request, search in sorted(self._searches.items()) if tokens & search.tokens)


def _encode_event(event: Any) -> bytes:
    try:
        return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, ValueError):
        return json.dumps(event, default=str).encode("utf-8", "replace")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield str(name)
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
