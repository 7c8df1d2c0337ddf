"""Decompression: multiple members, corrupt content, and size limits."""

from __future__ import annotations

import bz2
import gzip
import tracemalloc
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.events.decompression import ContentTooLarge, DamagedContent, decompress
from deltaworks.specs.sources.records import Compression


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
