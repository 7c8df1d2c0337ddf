"""Counts the bytes that decompressors are given, to show that work grows in proportion to the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class FedBytes:
    """A factory of decompressors that counts what they are given.

    Attributes:
        total: bytes given to all decompressors so far.
    """

    def __init__(self, create: Callable[..., Any]) -> None:
        self._create = create
        self.total = 0

    def __call__(self, *arguments: Any, **options: Any) -> _Counted:
        return _Counted(self, self._create(*arguments, **options))


class _Counted:
    def __init__(self, counter: FedBytes, inner: Any) -> None:
        self._counter, self._inner = counter, inner

    def decompress(self, data: Any, *arguments: Any) -> Any:
        self._counter.total += len(data)
        return self._inner.decompress(data, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
