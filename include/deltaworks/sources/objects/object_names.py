"""What the names of an object may be: its key, its tag, its version. They come in messages that others may write.

A tag goes into a request's header, where a line break would begin another header; a key becomes a path below a local
landing folder, where `..` would lead out of it. S3 itself holds no object whose names these rules refuse.
"""

from __future__ import annotations

import re
from pathlib import Path

#: S3's own bound.
_KEY_BYTES = 1_024
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,254}")
# Visible ASCII but the quote, as in the headers they are sent in. S3's own tags have at most some 40 characters.
_TAG = re.compile(r"[\x21\x23-\x7e]{0,256}")
_VERSION = re.compile(r"[\x21-\x7e]{1,1024}")


def is_valid_bucket(name: str) -> bool:
    """Whether a client can address a bucket of this name at all."""
    return _BUCKET.fullmatch(name) is not None


def is_valid_etag(etag: str) -> bool:
    """Whether a tag, without its quotes, can be sent as a condition. The empty one stands for none."""
    return _TAG.fullmatch(etag) is not None


def is_valid_version_id(version_id: str | None) -> bool:
    """Whether a version can be asked for; None stands for none."""
    return version_id is None or _VERSION.fullmatch(version_id) is not None


def is_valid_key(key: str) -> bool:
    """Whether a bucket can hold an object of this key: short enough, no NUL, never above the bucket's root."""
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return False
    return 0 < len(encoded) <= _KEY_BYTES and b"\0" not in encoded and not _escapes_root(key)


def _escapes_root(key: str) -> bool:
    """S3's rule: read from the left, there are never more segments that go up than segments to go up from."""
    depth = 0
    for segment in key.split("/"):
        depth += -1 if segment == ".." else segment not in ("", ".")
        if depth < 0:
            return True
    return False


def local_path(folder: Path, key: str) -> Path | None:
    """Where the object of a key lies below the folder that stands for its bucket; None for a key that leads elsewhere.

    A bucket may hold `a/../b` beside `b`; a folder cannot, and a path that begins at its root is another folder's.
    """
    if not is_valid_key(key) or key.startswith("/") or ".." in key.split("/"):
        return None
    return folder / key
