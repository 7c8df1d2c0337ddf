"""Users of the SQL server: their file, logins and tokens."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from deltaworks.errors import ConfigError
from deltaworks.specs.sql_server import SqlRoleSpec
from deltaworks.sql_server import users
from deltaworks.sql_server.users import Access, Authenticator, LoginError, UserFile, hash_password, matches_hash
from tests.unit.sql_server.sql_harness import HASH, PASSWORD, write_users

ROLES = {"seller": SqlRoleSpec(pipelines=("shop",)), "privacy": SqlRoleSpec(pipelines=("*",), personal=True)}


def basic(name: str, password: str = PASSWORD) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


@pytest.fixture
def authenticator(tmp_path: Path) -> Authenticator:
    return Authenticator(UserFile(write_users(tmp_path, {"sam": ["seller"]}), ROLES))


def test_a_password_has_its_hash_and_no_other_one_does() -> None:
    assert matches_hash(PASSWORD, HASH)
    assert not matches_hash(PASSWORD + " ", HASH)
    assert PASSWORD not in HASH


def test_equal_passwords_have_different_hashes() -> None:
    assert hash_password("a") != hash_password("a")


@pytest.mark.parametrize(
    ("users_of_file", "problem"),
    [
        ({"sam": {"password": HASH, "roles": ["sellr"]}}, "did you mean 'seller'"),
        ({"sam": {"password": "secret", "roles": ["seller"]}}, "--hash-password"),
        ({"sam": {"password": HASH.replace("16384", "2"), "roles": ["seller"]}}, "other costs"),
        ({"sam": {"password": HASH, "roles": []}}, "roles is a list"),
        ({"sam": {"password": HASH}}, "password and roles"),
        ({"s:m": {"password": HASH, "roles": ["seller"]}}, "without a colon"),
    ],
)
def test_an_invalid_user_is_named_with_its_problem(
    tmp_path: Path, users_of_file: dict[str, object], problem: str
) -> None:
    file = tmp_path / "users.yaml"
    file.write_text(yaml.safe_dump({"users": users_of_file}))
    with pytest.raises(ConfigError, match="SQL_USERS_INVALID") as caught:
        UserFile(file, ROLES)
    assert problem in str(caught.value)
    assert next(iter(users_of_file)) in str(caught.value)


@pytest.mark.parametrize("text", ["", "users", "users: []", "users: {}\nroles: {}", "a: [", "\x00"])
def test_a_damaged_file_is_rejected_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "users.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"SQL_USERS_INVALID.*users\.yaml"):
        UserFile(file, ROLES)


def test_a_login_gets_a_token_that_is_valid_without_the_password(authenticator: Authenticator) -> None:
    user, token = authenticator.login(basic("sam"))
    assert user.name == "sam"
    assert authenticator.login(f"Bearer {token}") == (user, token)


@pytest.mark.parametrize("header", ["", "Basic", "Basic %%%", basic("sam", "no"), basic("eve"), "Bearer x", "Digest x"])
def test_other_logins_are_refused(authenticator: Authenticator, header: str) -> None:
    with pytest.raises(LoginError):
        authenticator.login(header)


def test_a_login_without_padding_is_read(authenticator: Authenticator) -> None:
    assert authenticator.login(basic("sam").rstrip("="))[0].name == "sam"


def test_a_token_ends_with_its_time(authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "_TOKEN_SECONDS", 0.0)
    _, token = authenticator.login(basic("sam"))
    with pytest.raises(LoginError, match="expired"):
        authenticator.login(f"Bearer {token}")


def test_a_changed_password_ends_tokens_and_logins(tmp_path: Path) -> None:
    file = UserFile(write_users(tmp_path, {"sam": ["seller"]}), ROLES)
    authenticator = Authenticator(file)
    _, token = authenticator.login(basic("sam"))
    write_users(tmp_path, {"sam": ["seller"]}, password=hash_password("another"))
    file.reload()
    for header in (f"Bearer {token}", basic("sam")):
        with pytest.raises(LoginError):
            authenticator.login(header)


def test_a_file_that_becomes_invalid_keeps_its_last_users(tmp_path: Path) -> None:
    file = UserFile(write_users(tmp_path, {"sam": ["seller"]}), ROLES)
    (tmp_path / "users.yaml").write_text("users: []")
    with pytest.raises(ConfigError):
        file.reload()
    assert file.get("sam") is not None


def test_failed_logins_are_slowed_down_and_do_not_lock_out_who_is_logged_in(authenticator: Authenticator) -> None:
    _, token = authenticator.login(basic("sam"))
    for _ in range(5):
        with pytest.raises(LoginError):
            authenticator.login(basic("sam", "guess"))
    with pytest.raises(LoginError, match="Too many failed logins") as caught:
        authenticator.login(basic("sam", "guess"))
    assert caught.value.busy
    assert authenticator.login(f"Bearer {token}")[0].name == "sam"
    assert authenticator.login(basic("sam"))[0].name == "sam"


def test_a_repeated_login_is_recognized_without_hashing(
    authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch
) -> None:
    authenticator.login(basic("sam"))
    monkeypatch.setattr(users, "matches_hash", lambda *_: pytest.fail("the password was hashed again"))
    assert authenticator.login(basic("sam"))[0].name == "sam"


def test_names_and_tokens_of_clients_are_bounded(authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "_MAX_NAMES", 10)
    monkeypatch.setattr(users, "_MAX_TOKENS", 10)
    monkeypatch.setattr(users, "matches_hash", lambda password, _: password == PASSWORD)
    for number in range(50):
        authenticator.login(basic("sam"))
        with pytest.raises(LoginError):
            authenticator.login(basic(f"name{number}", "guess"))
    assert len(authenticator._tokens) == 10
    assert len(authenticator._failures) == 10


def test_roles_add_up() -> None:
    pipelines = {"shop": None, "people": None}
    seller, privacy = ROLES["seller"], SqlRoleSpec(pipelines=("people",), personal=True)
    access = Access.of_roles([seller, privacy], pipelines)
    assert access == Access(frozenset({"shop", "people"}), frozenset({"people"}))
    assert Access.of_roles([SqlRoleSpec(pipelines=("*",))], pipelines).pipelines == {"shop", "people"}
    assert Access.of_roles([], pipelines).pipelines == frozenset()
