"""Validates object keys, ETags and version ids. They come from queue messages, which third parties may send.

An ETag goes into a request header, where a line break would start another header. A key becomes a path below a local
landing folder, where `..` would leave it. No object in S3 has a name that is rejected here.
"""

from __future__ import annotations

import re
from pathlib import Path

#: Maximum length of an S3 key in bytes.
_KEY_BYTES = 1_024
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,254}")
# Visible ASCII except the quote, as in HTTP headers. S3's own ETags have at most about 40 characters.
_TAG = re.compile(r"[\x21\x23-\x7e]{0,256}")
_VERSION = re.compile(r"[\x21-\x7e]{1,1024}")


def is_valid_bucket(name: str) -> bool:
    """Returns whether a bucket of this name can exist."""
    return _BUCKET.fullmatch(name) is not None


def is_valid_etag(etag: str) -> bool:
    """Returns whether an ETag without quotes can be sent in a condition such as If-Match. The empty string means no
    ETag.
    """
    return _TAG.fullmatch(etag) is not None


def is_valid_version_id(version_id: str | None) -> bool:
    """Returns whether a version id can be requested; None means no version."""
    return version_id is None or _VERSION.fullmatch(version_id) is not None


def is_valid_key(key: str) -> bool:
    """Returns whether an object can have this key: short enough, no NUL, never above the bucket's root."""
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return False
    return 0 < len(encoded) <= _KEY_BYTES and b"\0" not in encoded and not _escapes_root(key)


def _escapes_root(key: str) -> bool:
    """Returns whether a path leaves its root, by S3's rule: at no position may `..` segments outnumber the other
    segments before it.
    """
    depth = 0
    for segment in key.split("/"):
        depth += -1 if segment == ".." else segment not in ("", ".")
        if depth < 0:
            return True
    return False


def local_path(folder: Path, key: str) -> Path | None:
    """Returns the path of an object below the folder that represents its bucket; None for a key outside the folder.

    A bucket can hold both `a/../b` and `b`; a folder cannot. An absolute key is outside the folder.
    """
    if not is_valid_key(key) or key.startswith("/") or ".." in key.split("/"):
        return None
    return folder / key
