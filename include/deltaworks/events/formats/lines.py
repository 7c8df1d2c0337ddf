"""Lines of a payload of text, and the bytes a text was made of."""

from __future__ import annotations

import io

_BYTE_ORDER_MARK = "\ufeff"


def lines_of(payload: bytes) -> list[str]:
    """The lines with their ends. Bytes that are no UTF-8 stay what they are, and make a misfit where they are used."""
    text = payload.decode("utf-8", "surrogateescape").removeprefix(_BYTE_ORDER_MARK)
    return list(io.StringIO(text, newline=""))


def bytes_of(text: str) -> bytes:
    """What the text was made of."""
    return text.encode("utf-8", "surrogateescape")
