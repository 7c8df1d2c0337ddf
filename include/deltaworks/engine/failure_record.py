"""Builds the error record that a failed stream writes to its heartbeat."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from deltaworks.control.error_redaction import redact_values
from deltaworks.control.job import as_deltaworks_error

#: Matches the error line of a traceback: Spark returns Python tracebacks of its workers as text.
_ERROR_LINE: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception): .+$", re.MULTILINE)
_MESSAGE_LENGTH: Final = 500


def failure_record(error: Exception) -> Mapping[str, Any]:
    """Returns the record of an error for the heartbeat.

    It has the error's condition, also if the error was raised in a Spark worker. An unknown error gets STREAM_FAILED
    with the last error line of its traceback, which is closest to the cause.
    """
    mapped = as_deltaworks_error(error)
    if mapped.condition != "JOB_FAILED":
        return mapped.as_record()
    text = redact_values(str(error))
    message = _ERROR_LINE.findall(text)[-1] if _ERROR_LINE.search(text) else text.strip() or type(error).__name__
    return {
        "condition": "STREAM_FAILED",
        "message": message[:_MESSAGE_LENGTH],
        "hint": "Read the driver log for the full traceback.",
    }
