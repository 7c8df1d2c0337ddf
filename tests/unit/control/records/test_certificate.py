"""The chain of certificates: whoever changes it in the lake is noticed, as the vault has its end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control import paths
from deltaworks.control.objects import LocalObjects
from deltaworks.control.records.certificate import Certificate, Certificates
from deltaworks.errors import ContractError
from deltaworks.testing import present
from tests.unit.control.records.recorded_erasure import ERASURE


class Chain:
    """Certificates of a namespace, and what someone with write access to the lake does to them."""

    def __init__(self, folder: Path, length: int) -> None:
        self.lake, self.vault = LocalObjects(folder / "lake"), LocalObjects(folder / "vault")
        self.certificates = Certificates(self.lake, "players", self.vault)
        for number in range(1, length + 1):
            self.certificates.append(self.certificate(number, self.certificates.newest()[1]))

    @staticmethod
    def certificate(number: int, previous_sha256: str, **changes: object) -> Certificate:
        recorded = ERASURE["certificate"]
        assert isinstance(recorded, Certificate)
        return recorded.replace(request_id=f"e{number:03d}", number=number, previous_sha256=previous_sha256, **changes)

    def key(self, number: int) -> str:
        return paths.erasure_certificate("players", f"e{number:03d}")

    def stored(self) -> dict[str, bytes]:
        """All certificates in the lake, by key."""
        keys = self.lake.list(paths.erasure_certificate("players"))
        return {key: stored.data for key in keys if (stored := self.lake.get(key))}

    def delete(self, number: int) -> None:
        self.lake.delete(self.key(number))

    def rewrite(self, length: int) -> None:
        """Writes an entire chain anew, with valid digests."""
        digest = ""
        for number in range(1, length + 1):
            data = self.certificate(number, digest, tokens=99).encode()
            self.lake.put(self.key(number), data)
            digest = hashlib.sha256(data).hexdigest()

    def append_forged(self) -> None:
        """Appends a certificate that no erasure wrote."""
        number = len(self.lake.list(paths.erasure_certificate("players"))) + 1
        stored = self.lake.get(self.key(number - 1))
        digest = hashlib.sha256(stored.data).hexdigest() if stored else ""
        self.lake.put(self.key(number), self.certificate(number, digest).encode())

    def end(self) -> str:
        with pytest.raises(ContractError) as broken:
            self.certificates.check()
        assert broken.value.condition == "CERTIFICATES_BROKEN"
        return broken.value.message


def test_an_unchanged_chain_is_counted(tmp_path: Path) -> None:
    assert Chain(tmp_path, 3).certificates.check() == 3
    assert Chain(tmp_path / "empty", 0).certificates.check() == 0


CHANGES: dict[str, Callable[[Chain], object]] = {
    "the newest is missing": lambda chain: chain.delete(4),
    "the two newest are missing": lambda chain: (chain.delete(4), chain.delete(3)),
    "all are missing": lambda chain: [chain.delete(number) for number in range(1, 5)],
    "the first is missing": lambda chain: chain.delete(1),
    "one in between is missing": lambda chain: chain.delete(2),
    "all are rewritten": lambda chain: chain.rewrite(4),
    "a shorter chain": lambda chain: (chain.delete(4), chain.rewrite(3)),
    "a longer chain": lambda chain: chain.rewrite(5),
    "one is appended": lambda chain: chain.append_forged(),
    "the newest is another": lambda chain: (chain.delete(4), chain.append_forged(), chain.append_forged()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed(change: str, tmp_path: Path) -> None:
    chain = Chain(tmp_path, 4)

    CHANGES[change](chain)

    assert "'players'" in chain.end()
    with pytest.raises(ContractError, match="CERTIFICATES_BROKEN"):
        chain.certificates.append(chain.certificate(9, ""))


def test_a_changed_byte_of_the_newest_is_noticed(tmp_path: Path) -> None:
    chain = Chain(tmp_path, 2)
    stored = present(chain.lake.get(chain.key(2)))

    chain.lake.put(chain.key(2), stored.data.replace(b'"tokens": 3', b'"tokens": 4'))

    assert "number 2" in chain.end()


def test_the_message_counts_what_is_missing(tmp_path: Path) -> None:
    chain = Chain(tmp_path, 3)
    chain.delete(3)

    assert "it has 2 certificates, and the vault has recorded 3" in chain.end()


def test_without_the_vault_only_the_inside_of_a_chain_is_verified(tmp_path: Path) -> None:
    chain = Chain(tmp_path, 3)
    chain.delete(3)

    assert chain.certificates.check_within_lake() == 2
    chain.delete(1)
    with pytest.raises(ContractError, match="CERTIFICATES_BROKEN"):
        chain.certificates.check_within_lake()


class Interrupted(Exception):
    """The process ends."""


@pytest.mark.parametrize("after", [0, 1, 2])
def test_an_append_that_was_interrupted_anywhere_is_continued(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes are: the head that announces the certificate, the certificate, the head that names it."""
    chain, writes = Chain(tmp_path, 2), 0

    def counted(self: LocalObjects, write: Callable[..., object], *args: object) -> object:
        nonlocal writes
        if writes == after:
            raise Interrupted
        writes += 1
        return write(self, *args)

    digest = chain.certificates.newest()[1]
    with monkeypatch.context() as patched:
        for name in ("put", "put_if_absent"):
            write = getattr(LocalObjects, name)
            patched.setattr(LocalObjects, name, lambda self, *args, write=write: counted(self, write, *args))
        with pytest.raises(Interrupted):
            chain.certificates.append(chain.certificate(3, digest))

    assert chain.certificates.check() == (3 if after == 2 else 2)
    # The repeated run creates another certificate, as it has another time.
    chain.certificates.append(chain.certificate(3, digest, by="another run"))
    assert chain.certificates.check() == 3
    chain.delete(3)
    assert "recorded 3" in chain.end()


@given(length=st.integers(1, 4), removed=st.sets(st.integers(1, 4)), forged=st.integers(0, 2))
def test_only_the_chain_that_was_appended_is_accepted(
    length: int, removed: set[int], forged: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    chain = Chain(tmp_path_factory.mktemp("chain"), length)
    stored = chain.stored()
    for number in removed:
        chain.delete(number)
    for _ in range(forged):
        chain.append_forged()

    if chain.stored() == stored:
        assert chain.certificates.check() == length
    else:
        chain.end()
