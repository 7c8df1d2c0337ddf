"""Whose events a landed object holds: each is stripped as the parser would strip it, and looked through for tokens.

What was stripped before it landed has tokens already, and stripping leaves them; of what was not, identifiers become
the tokens that the person's request names. So a person is found in both, also in texts that nobody declared.
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

#: By the places of the events within one piece of a payload, the request each goes for.
Owners = dict[int, str]


class EventOwners:
    """Tells whose events are. Used by one thread.

    Args:
        specs: the pipelines that read the object, all of which find the same events in it.
        key: of the namespace's tokens.
        searches: the tokens of each request, by its id.
    """

    def __init__(self, specs: Sequence[PipelineSpec], key: bytes, searches: Mapping[str, TokenSearch]) -> None:
        self._readers = [(EventReader(spec), Redactor(spec.privacy, key)) for spec in specs if spec.privacy is not None]
        self._searches = searches
        self._combined_search = combine_searches(searches.values())
        #: Ids that mutations gave, which have not the form of a token.
        self._untyped_ids = {token for token in self._combined_search.tokens if not has_token_form(token)}

    def owners_in_piece(self, value: Any, raw: bytes, *, at_ms: int) -> tuple[int, Owners]:
        """How many events a piece holds, and which of them go.

        Args:
            at_ms: when the object landed, which tokens of a day depend on.
        """
        if isinstance(value, Malformed | OverBudget):
            request = self._first_request(self._combined_search.tokens_in_bytes(raw))
            return 1, {} if request is None else {0: request}
        events, owners = 0, Owners()
        for reader, walker in self._readers:
            own = value if len(self._readers) == 1 else copy.deepcopy(value)
            events = 0
            for place, (inner, inner_raw) in enumerate(reader.unwrap_arrays([(own, raw)])):
                events = place + 1
                if place not in owners:
                    request = self._owner_of_event(reader, walker, inner, inner_raw, at_ms)
                    owners.update({} if request is None else {place: request})
        if events > 1 and not owners:
            # A wrapper of many may name somebody whom none of its events does.
            request = self._first_request(self._combined_search.tokens_in_bytes(raw))
            owners = {} if request is None else dict.fromkeys(range(events), request)
        return events, owners

    def _owner_of_event(self, reader: EventReader, walker: Redactor, value: Any, raw: bytes, at_ms: int) -> str | None:
        present = self._combined_search.tokens_in_bytes(raw)
        if not present and not reader.is_erased(value):
            try:
                event = walker.redact_reread(reader.read_event(value), at_ms=at_ms)
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
