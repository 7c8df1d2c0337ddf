"""Locks container images by digest: `docker/images.lock`, and the references in Dockerfile and docker-compose.yaml.

A tag may point to another image later, but a digest never changes. Digests come only from the registry, so a checkout
has no lock file at first. `make images` fetches them, writes the lock file, and adds the digest to each tag. Afterwards
references without their digest are rejected.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from deltaworks.errors import ConfigError, DeltaworksError, TransientError
from deltaworks.specs.catalog import project_root

LOCK = "docker/images.lock"
_FILES = ("Dockerfile", "docker-compose.yaml")
_FROM = re.compile(r"^(FROM\s+(?:--platform=\S+\s+)?)(\S+)(.*)$")
_IMAGE = re.compile(r"^(\s*image:\s*)([^\s$#]+)(.*)$")
_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")
_TIMEOUT_SECONDS = 120
_HEADER = "# Digests of the images in Dockerfile and docker-compose.yaml, written by `make images`."


@dataclass(frozen=True, slots=True)
class ImageReference:
    """A reference to an external image: file, line, tag, and digest; the digest is empty if it has none."""

    file: str
    line: int
    tag: str
    digest: str = ""


def image_references(root: Path) -> list[ImageReference]:
    """Returns all references in Dockerfile and docker-compose.yaml, except build stages and the image built here."""
    references = []
    for file in _FILES:
        stages: set[str] = set()
        for number, line in enumerate((root / file).read_text(encoding="utf-8").splitlines(), start=1):
            match = _match(file, line)
            if match is None:
                continue
            tag, _, digest = match[2].partition("@")
            if tag not in stages:
                references.append(ImageReference(file=file, line=number, tag=tag, digest=digest))
            if stage := re.search(r"\bAS\s+(\S+)", match[3], re.IGNORECASE):
                stages.add(stage[1])
    return references


def read_images(root: Path) -> dict[str, str] | None:
    """Returns the locked digests by tag; None without a lock file.

    Raises:
        ConfigError: IMAGE_NOT_LOCKED, a line is not of the form tag@digest.
    """
    path = root / LOCK
    if not path.is_file():
        return None
    digests = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line or line.startswith("#"):
            continue
        tag, _, digest = line.partition("@")
        if not _DIGEST.match(digest):
            raise ConfigError("IMAGE_NOT_LOCKED", f"{path}:{number}: expected tag@sha256:digest.")
        digests[tag] = digest
    return digests


def check_images(root: Path) -> bool:
    """Checks that every reference has its locked digest; returns False without a lock file.

    Raises:
        ConfigError: IMAGE_NOT_LOCKED, with the first reference that has no digest or another one than the lock file.
    """
    digests = read_images(root)
    if digests is None:
        return False
    for reference in image_references(root):
        recorded = digests.get(reference.tag, "")
        if not recorded or reference.digest != recorded:
            problem = f"does not carry the digest {recorded}" if recorded else f"has no digest in {LOCK}"
            raise ConfigError("IMAGE_NOT_LOCKED", f"{reference.file}:{reference.line}: {reference.tag} {problem}.")
    return True


def record_images(root: Path) -> dict[str, str]:
    """Fetches the digests of all tags from their registries, and writes them into the lock file and all references.

    Writes nothing unless every registry responds.

    Returns:
        The digests by tag.

    Raises:
        TransientError: IMAGE_NOT_RESOLVED.
    """
    digests = {tag: _resolve(tag) for tag in sorted({reference.tag for reference in image_references(root)})}
    for file in _FILES:
        path = root / file
        lines = [_with_digest(file, line, digests) for line in path.read_text(encoding="utf-8").splitlines()]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    recorded = [f"{tag}@{digest}" for tag, digest in digests.items()]
    (root / LOCK).write_text("\n".join([_HEADER, *recorded]) + "\n", encoding="utf-8")
    return digests


def _match(file: str, line: str) -> re.Match[str] | None:
    return (_FROM if file == "Dockerfile" else _IMAGE).match(line)


def _with_digest(file: str, line: str, digests: dict[str, str]) -> str:
    match = _match(file, line)
    tag = match[2].partition("@")[0] if match else ""
    return f"{match[1]}{tag}@{digests[tag]}{match[3]}" if match and tag in digests else line


def _resolve(tag: str) -> str:
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", tag]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
        digest, problem = done.stdout.strip(), done.stderr.strip()[-500:]
    except (OSError, subprocess.TimeoutExpired) as error:
        digest, problem = "", str(error)
    if not _DIGEST.match(digest):
        raise TransientError(
            "IMAGE_NOT_RESOLVED", f"`{' '.join(command)}` gave no digest: {problem or digest or 'no output'}."
        )
    return digest


def main(arguments: list[str] | None = None) -> int:
    """Writes the digests of all images, or checks that every reference has its own."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args(arguments)
    root = project_root()
    try:
        if options.check:
            state = "carry their digests" if check_images(root) else f"are named by tag: there is no {LOCK} yet"
            print(f"==> images {state}")
        else:
            for tag, digest in record_images(root).items():
                print(f"==> {tag}@{digest}")
    except DeltaworksError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
