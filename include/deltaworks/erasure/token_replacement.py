"""Replaces tokens of erased people by random ones in rows that are kept. The random tokens are recorded nowhere."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from deltaworks.erasure.token_search import TokenSearch
from deltaworks.privacy.envelope_encryption import random_token


class TokenReplacer:
    """Replaces tokens consistently: one object replaces the same token always by the same random one."""

    def __init__(self, search: TokenSearch) -> None:
        self._search = search
        self._random_by_token: dict[str, str] = {}

    def replace(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows with replaced tokens. Use small batches, since every value is converted to Python."""
        columns = [
            pa.array([self._replace_value(value) for value in column.to_pylist()], column.type)
            for column in rows.columns
        ]
        return pa.RecordBatch.from_arrays(columns, schema=rows.schema)

    def _replace_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._replace_text(value)
        if isinstance(value, bytes):
            return self._replace_text(value.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        if isinstance(value, dict):
            return {name: self._replace_value(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._replace_value(item) for item in value)
        return value

    def _replace_text(self, text: str) -> str:
        if text in self._search.tokens:
            return self._random_token(text)
        for token in self._search.tokens_in_bytes(text.encode("utf-8", "surrogateescape")):
            text = text.replace(token, self._random_token(token))
        return text

    def _random_token(self, token: str) -> str:
        if token not in self._random_by_token:
            self._random_by_token[token] = random_token()
        return self._random_by_token[token]
