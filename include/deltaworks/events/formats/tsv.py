"""Reads events of tab-separated log lines, as written by CloudFront and other servers (W3C extended format).

A line that starts with `#Fields:` names the fields of the following lines; other lines that start with `#` are skipped.
If `date` and `time` are fields, `datetime` combines both, in UTC.
"""

from __future__ import annotations

from collections.abc import Iterator

from deltaworks.events.budget import Budget, FramedEvent
from deltaworks.events.conversion_errors import ConversionError
from deltaworks.events.erasure_tombstones import parse_tombstone_line
from deltaworks.events.formats.json_recovery import Malformed
from deltaworks.events.formats.text import encode_line, iter_lines, oversized_line
from deltaworks.events.reasons import ReasonCode
from deltaworks.specs.sources.payload import TsvSpec

_DIRECTIVE_PREFIX = "#"
_FIELDS_DIRECTIVE = "#Fields:"
#: The field combined from a date and a time.
DATETIME_FIELD = "datetime"


class FieldLineFramer:
    """Parses lines with the declared field names, or with those of the last `#Fields:` line."""

    def __init__(self, spec: TsvSpec) -> None:
        self._columns = spec.columns
        self._null_values = frozenset(spec.null_values)

    def read_events(self, payload: bytes, budget: Budget) -> Iterator[FramedEvent]:
        """Yields every line as an event.

        Raises:
            ConversionError: a line precedes the field names.
        """
        names: tuple[str, ...] | None = self._columns or None
        for line in iter_lines(payload):
            text = line.rstrip("\r\n")
            if text.startswith(_FIELDS_DIRECTIVE) and len(text) <= budget.max_event_bytes:
                names = self._columns or tuple(text.removeprefix(_FIELDS_DIRECTIVE).split())
            elif text.strip() and not text.startswith(_DIRECTIVE_PREFIX):
                if names is None:
                    detail = "there is no #Fields line, and no columns are declared"
                    raise ConversionError(ReasonCode.OBJECT_WRONG_FORMAT, detail)
                yield oversized_line(text, budget) or self._event(names, text)

    def _event(self, names: tuple[str, ...], text: str) -> FramedEvent:
        raw, fields = encode_line(text), text.split("\t")
        if len(fields) == 1 and (erased := parse_tombstone_line(text)) is not None:
            return erased, raw
        if len(fields) != len(names):
            return Malformed(raw, f"{len(fields)} fields, {len(names)} expected"), raw
        event = {name: value for name, value in zip(names, fields, strict=True) if value not in self._null_values}
        if "date" in event and "time" in event and DATETIME_FIELD not in event:
            event[DATETIME_FIELD] = f"{event['date']}T{event['time']}Z"
        return event, raw
