"""Object names: every name that a bucket can hold is valid, and none leaves its root."""

from __future__ import annotations

import posixpath
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from deltaworks.sources.objects.object_names import is_valid_etag, is_valid_key, local_path

SEGMENTS = st.lists(st.sampled_from(["..", ".", "", "a", "b.gz", "...", "..a", "ä", "a b"]), min_size=1, max_size=8)
ROOT = Path("/landing/bucket")


@given(SEGMENTS.map("/".join))
@example("/etc/passwd")
@example("a/../../x")
def test_a_local_key_is_below_its_folder_or_rejected(key: str) -> None:
    path = local_path(ROOT, key)

    if path is not None:
        assert posixpath.normpath(path).startswith(str(ROOT))
        assert ".." not in path.parts


@given(SEGMENTS.map("/".join))
def test_a_key_with_a_prefix_outside_the_bucket_is_rejected(key: str) -> None:
    parts = [part for part in key.split("/") if part not in ("", ".")]
    beginnings = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    leads_out = any(posixpath.normpath(f"/r/{beginning}").split("/")[1:2] != ["r"] for beginning in beginnings)

    assert is_valid_key(key) == (key != "" and not leads_out)


@given(st.from_regex(r"[0-9a-f]{32}(-[0-9]{1,5})?", fullmatch=True))
def test_etags_of_s3_are_valid(tag: str) -> None:
    assert is_valid_etag(tag)


@given(st.text(min_size=1))
def test_no_valid_etag_can_end_a_header(tag: str) -> None:
    if is_valid_etag(tag):
        tag.encode("ascii")
        assert tag.isprintable()
        assert '"' not in tag
