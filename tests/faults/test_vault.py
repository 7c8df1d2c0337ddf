"""Faults 18 and 25, and SIGKILL of the vault's job at each step; each also with its protection disabled."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltaworks.control.objects import LocalObjects
from deltaworks.errors import ContractError
from deltaworks.privacy import paths
from deltaworks.privacy.key_service import LocalKeyring
from deltaworks.privacy.vault.job import maintain
from deltaworks.privacy.vault.key_pages import EpochKeys, SubjectKeys
from deltaworks.privacy.vault.namespace_vault import NamespaceVault
from deltaworks.privacy.vault.tables import CellAddress, open_cell, seal_cell
from deltaworks.testing import present
from tests.faults.harness.vault_entry import STEPS
from tests.unit.privacy.vault.vault_harness import NAMESPACE, device_of, email_of, environment_of, seal_file, subject_of

pytestmark = pytest.mark.faults
NAMES = [f"player {number}" for number in range(40)]


def sealed(folder: Path) -> None:
    objects, keyring = LocalObjects(folder / "vault"), LocalKeyring(folder / "keys")
    for number in range(0, len(NAMES), 10):
        some = NAMES[number : number + 10]
        entries = [*(email_of(name) for name in some), *(device_of(name, f"of {name}") for name in some)]
        seal_file(objects, keyring, f"{number:04d}", entries)


def run(folder: Path, *arguments: str) -> int:
    program = [sys.executable, "-m", "tests.faults.harness.vault_entry", str(folder), *arguments]
    root = Path(__file__).parents[2]
    return subprocess.run(program, cwd=root, check=False, timeout=120).returncode


def stored(folder: Path) -> tuple[int, int, int]:
    """Returns the number of values that decrypt, of links, and of waiting sealed files."""
    home = NamespaceVault.open(environment_of(folder), NAMESPACE)
    subjects = [subject_of(name) for name in NAMES]
    keys = home.keys.get(subjects)
    rows = home.tables.identities(subjects=subjects).to_pylist()
    values = [
        open_cell(row["value"], keys[row["subject"]], CellAddress(NAMESPACE, row["subject"], row["kind"], row["token"]))
        for row in rows
    ]
    assert len(set(values)) == len(values), "a value is there twice"
    links = home.tables.links(subjects=subjects).num_rows
    return len(values), links, len(LocalObjects(folder / "vault").list(paths.sealed_files_path()))


@pytest.mark.parametrize("step", STEPS)
def test_a_job_that_is_killed_at_any_step_loses_and_doubles_nothing(step: str, tmp_path: Path) -> None:
    sealed(tmp_path)

    assert run(tmp_path, "--kill", step) == -signal.SIGKILL
    assert run(tmp_path) == 0

    assert stored(tmp_path) == (40, 80, 0)


def test_without_the_files_until_they_have_landed_a_kill_loses_them(tmp_path: Path) -> None:
    sealed(tmp_path)

    assert run(tmp_path, "--kill", "keys are made", "--off", "state_after_deed") == -signal.SIGKILL
    assert run(tmp_path) == 0

    assert stored(tmp_path) == (0, 0, 0)


def test_a_swapped_cell_opens_where_the_associated_data_are_taken_away_and_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = NamespaceVault.open(environment_of(tmp_path), NAMESPACE)
    key = home.keys.get_or_create(["p1_a"])["p1_a"]
    own, other = (CellAddress(NAMESPACE, "p1_a", kind, "p1_t") for kind in ("email", "phone"))

    with pytest.raises(ContractError, match="VAULT_CELL_UNREADABLE"):
        open_cell(seal_cell("ada@example.org", key, own), key, other)

    monkeypatch.setattr(CellAddress, "associated_data", property(lambda _: b""))
    assert open_cell(seal_cell("ada@example.org", key, own), key, other) == "ada@example.org"


@pytest.mark.parametrize("off", [False, True], ids=["protected", "epoch"])
def test_an_old_page_that_comes_back_after_the_rotation_opens_where_its_epoch_was_kept_and_nowhere_else(
    off: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = environment_of(tmp_path)
    home, objects = NamespaceVault.open(environment, NAMESPACE), LocalObjects(tmp_path / "vault")
    made = home.keys.get_or_create(["p1_a", "p1_b"])
    page = paths.vault_key_page(NAMESPACE, paths.vault_page_of("p1_a"))
    copy = present(objects.get(page))
    home.keys.shred(["p1_a"])
    if off:
        monkeypatch.setattr(EpochKeys, "destroy", lambda *_: None)

    maintain(environment, NAMESPACE, unreadable_retention_days=14, rotate_now=True, dry_run=False)
    objects.put(page, copy.data)

    look: Callable[[], Any] = lambda: NamespaceVault.open(environment, NAMESPACE).keys.get(["p1_a"])  # noqa: E731
    if off:
        assert look() == {"p1_a": made["p1_a"]}
    else:
        with pytest.raises(ContractError, match="VAULT_EPOCH_DESTROYED"):
            look()
    assert NamespaceVault.open(environment, NAMESPACE).keys.get(["p1_b"]) == {"p1_b": made["p1_b"]}


KILL_IN_ROTATION = """
import os, signal, sys
from pathlib import Path
from deltaworks.privacy.vault.job import rotate
from deltaworks.privacy.vault.key_pages import EpochKeys, SubjectKeys
from deltaworks.privacy.vault.namespace_vault import NamespaceVault
from tests.unit.privacy.vault.vault_harness import NAMESPACE, environment_of
owner, name = {"begin": (EpochKeys, "get_or_create"), "rewrap": (SubjectKeys, "rewrap"),
               "page": (SubjectKeys, "_rewrap_page"), "destroy": (EpochKeys, "destroy")}[sys.argv[2]]
original = getattr(owner, name)
def dying(*arguments, **more):
    original(*arguments, **more)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(owner, name, dying)
vault = NamespaceVault.open(environment_of(Path(sys.argv[1])), NAMESPACE)
rotate(NAMESPACE, vault.epochs, vault.keys, dry_run=False, force=True)
"""


@pytest.mark.parametrize("step", ["begin", "page", "rewrap", "destroy"])
def test_a_rotation_that_is_killed_at_any_step_is_continued_and_loses_no_key(step: str, tmp_path: Path) -> None:
    environment = environment_of(tmp_path)
    made = NamespaceVault.open(environment, NAMESPACE).keys.get_or_create(NAMES)
    root = Path(__file__).parents[2]

    killed = subprocess.run(
        [sys.executable, "-c", KILL_IN_ROTATION, str(tmp_path), step], cwd=root, check=False, timeout=60
    )
    rotation, _, _ = maintain(environment, NAMESPACE, unreadable_retention_days=14, dry_run=False)

    assert killed.returncode == -signal.SIGKILL
    home = NamespaceVault.open(environment, NAMESPACE)
    assert home.keys.get(NAMES) == made
    assert (rotation.epoch, home.epochs.numbers()) == (2, [2])
    assert isinstance(home.keys, SubjectKeys)
    assert home.keys.pages_older_than(2) == []
