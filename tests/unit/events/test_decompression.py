"""Decompression: multiple members, corrupt content, and size limits."""

from __future__ import annotations

import bz2
import gzip
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isal import isal_zlib

from deltaworks.events.decompression import ContentTooLarge, DamagedContent, decompress
from deltaworks.specs.sources.records import Compression
from tests.fed_bytes import FedBytes


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


KINDS: dict[Compression, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "bzip2": bz2.compress, "zstd": zstd}
EACH = pytest.mark.parametrize("kind", KINDS)


@EACH
@given(members=st.lists(st.binary(max_size=3_000), min_size=1, max_size=4))
def test_every_member_is_read_whether_it_is_detected_or_declared(kind: Compression, members: list[bytes]) -> None:
    data = b"".join(map(KINDS[kind], members))

    assert decompress(data, "auto", max_bytes=None) == b"".join(members)
    assert decompress(data, kind, max_bytes=None) == b"".join(members)
    assert decompress(data, "none", max_bytes=None) == data


@EACH
@given(content=st.binary(max_size=3_000), share=st.floats(0, 0.999))
def test_truncated_content_raises_and_is_never_half_read(kind: Compression, content: bytes, share: float) -> None:
    data = KINDS[kind](content)
    with pytest.raises(DamagedContent, match=f"its {kind} content is corrupt"):
        decompress(data[: int(len(data) * share)], kind, max_bytes=None)


@EACH
@pytest.mark.parametrize("damage", ["plain text", "garbage behind", "bytes changed"])
def test_corrupt_or_wrongly_declared_content_raises(kind: Compression, damage: str) -> None:
    content = b'{"level": 7}' * 500
    data = KINDS[kind](content)
    changed = data[: len(data) // 2] + bytes(byte ^ 0xFF for byte in data[len(data) // 2 :][:8]) + data[-4:]
    damaged = {"plain text": content, "garbage behind": data + b"garbage", "bytes changed": changed}[damage]
    with pytest.raises(DamagedContent, match=f"its {kind} content is corrupt"):
        decompress(damaged, kind, max_bytes=None)


@EACH
def test_memory_never_exceeds_the_limit(kind: Compression) -> None:
    bomb = KINDS[kind](bytes(200 << 20))
    assert len(bomb) < 1 << 20
    allocated = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(ContentTooLarge, match="at most 1000000 are allowed"):
            decompress(bomb, "auto", max_bytes=1_000_000)
        held = tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - allocated
    finally:
        tracemalloc.stop()

    assert held < 40 << 20


@pytest.mark.parametrize("plain", [b"", b'{"a": 1}', b"B", b"BZh9 a word", b"\x28\xb5"])
def test_uncompressed_content_is_unchanged(plain: bytes) -> None:
    assert decompress(plain, "auto", max_bytes=1) == plain


@given(
    frames=st.lists(st.tuples(st.integers(0, 15), st.binary(max_size=300)), min_size=1, max_size=3), content=st.binary()
)
def test_frames_that_zstd_ignores_may_be_first(frames: list[tuple[int, bytes]], content: bytes) -> None:
    skippable = b"".join(
        bytes([0x50 + kind]) + b"\x2a\x4d\x18" + len(body).to_bytes(4, "little") + body for kind, body in frames
    )

    assert decompress(skippable + zstd(content), "auto", max_bytes=None) == content
    assert decompress(skippable + zstd(content) + skippable, "zstd", max_bytes=None) == content
    assert decompress(skippable, "auto", max_bytes=None) == skippable


@pytest.mark.parametrize(
    ("kind", "module", "name"), [("gzip", isal_zlib, "decompressobj"), ("bzip2", bz2, "BZ2Decompressor")]
)
def test_many_small_members_take_work_linear_in_their_size(
    kind: Compression, module: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in (b"", b"{}\n"):
        data = KINDS[kind](content) * 10_000
        fed = FedBytes(getattr(module, name))
        with monkeypatch.context() as patched:
            patched.setattr(module, name, fed)
            assert decompress(data, "auto", max_bytes=None) == content * 10_000
        assert len(data) <= fed.total < 200 * len(data), "the rest of the data must not be read again for each member"


@pytest.mark.parametrize("kind", ["gzip", "bzip2"])
def test_members_are_bounded(kind: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    members = KINDS[kind](b"") * 101
    monkeypatch.setattr("deltaworks.events.decompression.MAX_MEMBERS", 100)
    with pytest.raises(ContentTooLarge, match=f"more than 100 {kind} members"):
        decompress(members, "auto", max_bytes=None)
    monkeypatch.setattr("deltaworks.events.decompression.MAX_MEMBERS", 101)
    assert decompress(members, "auto", max_bytes=None) == b""


@pytest.mark.parametrize("kind", ["gzip", "bzip2"])
@settings(max_examples=20)
@given(
    members=st.lists(st.tuples(st.binary(max_size=40), st.integers(0, 4_000)), min_size=1, max_size=5),
    padding=st.integers(0, 3),
)
def test_members_across_any_windows_are_read_completely(
    kind: Compression, members: list[tuple[bytes, int]], padding: int
) -> None:
    contents = [random.Random(size).randbytes(size * 20) + text for text, size in members]
    data = b"".join(map(KINDS[kind], contents)) + bytes(padding if kind == "gzip" else 0)
    assert decompress(data, "auto", max_bytes=None) == b"".join(contents)
