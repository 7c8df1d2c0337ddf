"""What a heartbeat says of the error that a stream ended with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from deltaworks.control.error_redaction import redact_values
from deltaworks.control.job import as_deltaworks_error

#: The line of a traceback that says what went wrong. Spark brings those of its Python processes as text.
_ERROR_LINE: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception): .+$", re.MULTILINE)
_MESSAGE_LENGTH: Final = 500


def failure_record(error: Exception) -> Mapping[str, Any]:
    """The record of an error: with its condition where it is known, also where another process raised it, or else
    STREAM_FAILED with what was said last, which is nearest to the cause."""
    mapped = as_deltaworks_error(error)
    if mapped.condition != "JOB_FAILED":
        return mapped.as_record()
    text = redact_values(str(error))
    message = _ERROR_LINE.findall(text)[-1] if _ERROR_LINE.search(text) else text.strip() or type(error).__name__
    return {
        "condition": "STREAM_FAILED",
        "message": message[:_MESSAGE_LENGTH],
        "hint": "Read the driver log: it has the whole traceback.",
    }
