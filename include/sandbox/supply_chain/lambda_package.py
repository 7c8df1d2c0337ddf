"""Packages the collector as a zip file for AWS Lambda (`make lambda`).

The zip contains the collector, all declarations, the redaction of personal data, and their locked dependencies. boto3
is part of Lambda's runtime. The same checkout and lock file give the same bytes, so a deployment changes only with its
content.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import project_root

HANDLER = "deltaworks.collector_host.aws_lambda.handle"
TARGET = Path("dist") / "collector-lambda.zip"
#: Dependencies of the collector and the declarations, by distribution name.
PACKAGES = (
    "annotated-types",
    "cffi",
    "cryptography",
    "orjson",
    "pydantic",
    "pydantic-core",
    "PyYAML",
    "typing-extensions",
    "typing-inspection",
    "zstandard",
)
#: Project files: code below `include`, and declarations, which keep their paths.
_CODE = (
    "collector",
    "deltaworks/__init__.py",
    "deltaworks/control/__init__.py",
    "deltaworks/control/background.py",
    "deltaworks/control/objects.py",
    "deltaworks/control/objects.py",
    "deltaworks/errors",
    "deltaworks/operations/__init__.py",
    "deltaworks/collector_host/aws_lambda.py",
    "deltaworks/collector_host/redaction.py",
    "deltaworks/privacy",
    "deltaworks/specs",
)
_DECLARED = ("collectors", "environments", "pipelines", "relays")
_EXCLUDED = ("__pycache__", ".dist-info", ".pyc", "/RECORD", "/direct_url.json")
#: The earliest timestamp that a zip file supports.
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
_MODE = 0o644 << 16


def package(target: Path, *, root: Path) -> int:
    """Writes the zip file; returns the number of files in it.

    Raises:
        ConfigError: PACKAGE_MISSING.
    """
    files = dict(sorted({**dict(_installed()), **dict(_project_files(root))}.items()))
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w") as archive:
        for name, path in files.items():
            entry = zipfile.ZipInfo(name, _FIXED_TIME)
            entry.external_attr = _MODE
            # Fixed creator system and compression level, so the bytes do not depend on the machine.
            entry.create_system = 3
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    return len(files)


def _project_files(root: Path) -> Iterator[tuple[str, Path]]:
    include = root / "include"
    for name in _CODE:
        for path in _files(include / name):
            yield path.relative_to(include).as_posix(), path
    for name in _DECLARED:
        for path in _files(include / name):
            yield path.relative_to(root).as_posix(), path


def _installed() -> Iterator[tuple[str, Path]]:
    for name in PACKAGES:
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError as error:
            raise ConfigError("PACKAGE_MISSING", f"{name} is not installed.") from error
        for file in files:
            text = file.as_posix()
            if ".." not in text and not any(part in f"/{text}" for part in _EXCLUDED):
                yield text, Path(str(file.locate()))


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*")):
        if file.is_file() and not any(part in file.as_posix() for part in _EXCLUDED):
            yield file


def main() -> int:
    """Writes the zip file to `--to`, by default `dist/collector-lambda.zip`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=None, help=f"the file; {TARGET} by default")
    options = parser.parse_args()
    target = options.to or project_root() / TARGET
    count = package(target, root=project_root())
    print(f"{target}: {count} files, {target.stat().st_size / 2**20:.1f} MiB. Its handler: {HANDLER}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
