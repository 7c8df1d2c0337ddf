"""Searches tokens in bytes and in columns of any type: complete values, substrings, and nested fields.

Tokens are recognized by their form, so a text is scanned once for any number of tokens. Ids without this form, which
mutations create, are found as complete values only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from deltaworks.privacy.tokens.envelope_encryption import TOKEN_LENGTH, TOKEN_PREFIX, is_token

_PREFIX_BYTES: Final = TOKEN_PREFIX.encode()
#: Matches tokens with a look-ahead, so that overlapping candidates are found. Random tokens of erased people do not
#: match.
_TOKEN_PATTERN: Final = re.compile(_PREFIX_BYTES + rb"(?=([a-z2-7]{%d}))" % (TOKEN_LENGTH - len(TOKEN_PREFIX)))
_MAX_CACHED_ANSWERS: Final = 1_000_000
RowMask = npt.NDArray[np.bool_]


def has_token_form(token: str) -> bool:
    """Returns whether an id has the form of a token, so that it can be found inside texts. Ids of mutations do not have
    it.
    """
    return token.startswith(TOKEN_PREFIX) and is_token(token)


class TokenSearch:
    """Searches for a set of tokens. Thread-safe.

    Args:
        tokens: tokens to find.
        predicate: returns whether another text with the form of a token is a match, for tokens known by digest only.
    """

    def __init__(self, tokens: Iterable[str], *, predicate: Callable[[str], bool] | None = None) -> None:
        self.tokens = frozenset(tokens)
        self._predicate = predicate
        self._answers: dict[bytes, bool] = {}
        self._encoded = frozenset(token.encode() for token in self.tokens if has_token_form(token))
        self._values = pa.array(sorted(self.tokens), pa.string())

    def tokens_in_bytes(self, data: bytes | memoryview) -> set[str]:
        """Returns the tokens in these bytes."""
        return {
            token.decode()
            for letters in set(_TOKEN_PATTERN.findall(data))
            if self._is_searched(token := _PREFIX_BYTES + letters)
        }

    def tokens_in_column(self, values: Any) -> set[str]:
        """Returns the tokens in a column."""
        present: set[str] = set()
        for leaf in _text_leaves(values):
            exact = leaf.filter(self._equals_token(leaf))
            present.update(exact.unique().to_pylist())
            present |= self.tokens_in_bytes(_text_bytes(leaf))
        return present

    def matching_rows(self, batch: pa.RecordBatch) -> RowMask:
        """Returns a mask of the rows with any of the tokens in any column."""
        mask = np.zeros(batch.num_rows, dtype=np.bool_)
        for column in batch.columns:
            mask |= self._mask(column)
        return mask

    def _is_searched(self, text: bytes) -> bool:
        return text in self._encoded or (self._predicate is not None and self._matches_predicate(text))

    def _matches_predicate(self, text: bytes) -> bool:
        # Results are cached: most texts repeat, and each check costs an HMAC.
        answer = self._answers.get(text)
        if answer is None:
            answer = self._predicate is not None and self._predicate(text.decode())
            if len(self._answers) < _MAX_CACHED_ANSWERS:
                self._answers[text] = answer
        return answer

    def _equals_token(self, leaf: pa.Array) -> pa.Array:
        return pc.is_in(leaf, value_set=self._values.cast(leaf.type))

    def _mask(self, values: pa.Array) -> RowMask:
        kind = values.type
        if pa.types.is_dictionary(kind):
            return self._dictionary_mask(values)
        if _is_text(kind):
            return self._text_mask(_to_large_string(values))
        mask = np.zeros(len(values), dtype=np.bool_)
        if pa.types.is_struct(kind):
            for index in range(kind.num_fields):
                mask |= self._mask(pc.struct_field(values, [index]))
        elif pa.types.is_map(kind):
            return self._mask(values.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))))
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
            inner = self._mask(pc.list_flatten(values))
            mask[np.asarray(pc.list_parent_indices(values))[inner]] = True
        return mask

    def _dictionary_mask(self, values: pa.DictionaryArray) -> RowMask:
        entries = self._mask(values.dictionary)
        if not entries.any():
            return np.zeros(len(values), dtype=np.bool_)
        codes = values.indices
        return np.asarray(
            entries[pc.fill_null(codes, 0).to_numpy()] & pc.is_valid(codes).to_numpy(zero_copy_only=False)
        )

    def _text_mask(self, values: pa.Array) -> RowMask:
        mask = np.asarray(self._equals_token(values).to_numpy(zero_copy_only=False), dtype=np.bool_)
        # A text as long as a token can only be equal to a token; longer texts may contain one.
        lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy()
        min_length = TOKEN_LENGTH if self._predicate is not None else TOKEN_LENGTH + 1
        rows = np.flatnonzero(lengths >= min_length)
        if len(rows):
            mask[rows[self._rows_containing_token(values.take(pa.array(rows)))]] = True
        return mask

    def _rows_containing_token(self, texts: pa.Array) -> list[int]:
        data, offsets = _text_bytes(texts), _offsets(texts)
        starts = [
            match.start() for match in _TOKEN_PATTERN.finditer(data) if self._is_searched(_PREFIX_BYTES + match[1])
        ]
        if not starts:
            return []
        rows = np.searchsorted(offsets, starts, side="right") - 1
        # Exclude matches that span two texts.
        return [int(row) for row, start in zip(rows, starts, strict=True) if start + TOKEN_LENGTH <= offsets[row + 1]]


def combine_searches(searches: Iterable[TokenSearch]) -> TokenSearch:
    """Returns one search for the tokens of several searches."""
    return TokenSearch({token for search in searches for token in search.tokens})


def _is_text(kind: pa.DataType) -> bool:
    views = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return views or any(
        check(kind)
        for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _to_large_string(values: pa.Array) -> pa.Array:
    """Casts texts and bytes to large strings; invalid UTF-8 is preserved."""
    if pa.types.is_binary(values.type) or pa.types.is_binary_view(values.type) or pa.types.is_large_binary(values.type):
        values = values.cast(pa.large_binary())
        return pa.Array.from_buffers(pa.large_string(), len(values), values.buffers(), offset=values.offset)
    return values.cast(pa.large_string())


def _offsets(texts: pa.Array) -> npt.NDArray[np.int64]:
    """Returns the start of each text in `_text_bytes`, and the end of the last one."""
    buffer = texts.buffers()[1]
    offsets = np.frombuffer(buffer, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    relative: npt.NDArray[np.int64] = offsets - offsets[0]
    return relative


def _text_bytes(texts: pa.Array) -> memoryview:
    """Returns the concatenated bytes of all texts."""
    offset_buffer, data = texts.buffers()[1], texts.buffers()[2]
    if data is None or not len(texts):
        return memoryview(b"")
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(data)[int(offsets[0]) : int(offsets[-1])]


def _text_leaves(values: Any) -> list[pa.Array]:
    """Returns the strings of a column of any type, one array for each nested string field."""
    if isinstance(values, pa.ChunkedArray):
        return [leaf for chunk in values.chunks for leaf in _text_leaves(chunk)]
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _text_leaves(values.dictionary)
    if _is_text(kind):
        return [_to_large_string(values)] if len(values) else []
    return [leaf for part in _children(values) for leaf in _text_leaves(part)]


def _children(values: pa.Array) -> list[pa.Array]:
    kind = values.type
    if pa.types.is_struct(kind):
        return [pc.struct_field(values, [index]) for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [values.keys, values.items]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [pc.list_flatten(values)]
    return []
