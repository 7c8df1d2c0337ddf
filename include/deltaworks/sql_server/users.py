"""Users of the SQL server: their file, password hashes, logins and tokens.

The file of users is YAML, is read again when it changes, and holds hashes only:

    users:
      ana: {password: "scrypt$...", roles: [analyst]}

A login exchanges name and password for a token, which is valid in this process. Names that fail repeatedly are slowed
down. A login that succeeded before is recognized without hashing, so that attempts of others do not lock a person out.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from deltaworks.errors import ConfigError
from deltaworks.specs.base import suggest_name
from deltaworks.specs.sql_server import ALL_PIPELINES, SqlRoleSpec

_SCRYPT_COST, _SCRYPT_BLOCK, _SCRYPT_PARALLEL = 1 << 14, 8, 1
#: Upper limit of a hash's cost in the file: 64 MiB of memory.
_MAX_SCRYPT_COST: Final = 1 << 16
_MAX_PASSWORD_BYTES: Final = 1024
_TOKEN_SECONDS: Final = 12 * 3600.0
_REMEMBERED_SECONDS: Final = 600.0
#: Failures of a name within a minute, after which it is verified once a second at most.
_FREE_FAILURES: Final = 5
_MAX_TOKENS: Final = 10_000
_MAX_NAMES: Final = 10_000
#: Passwords that are hashed at the same time; each takes 16 MiB and about 50 ms.
_MAX_HASHING: Final = 2
_HASHING_WAIT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Access:
    """What a user may read. Users with equal access share sessions.

    Args:
        pipelines: names of readable pipelines.
        personal: those of them whose personal columns have values.
        query_log: whether the log of all queries is readable.
    """

    pipelines: frozenset[str]
    personal: frozenset[str] = frozenset()
    query_log: bool = False

    @classmethod
    def of_roles(cls, roles: list[SqlRoleSpec], pipelines: Mapping[str, Any]) -> Access:
        """Returns the sum of roles: each permission that one of them has."""
        readable, personal = set[str](), set[str]()
        for role in roles:
            names = set(pipelines) if ALL_PIPELINES in role.pipelines else set(role.pipelines) & set(pipelines)
            readable |= names
            personal |= names if role.personal else set()
        return cls(frozenset(readable), frozenset(personal), any(role.query_log for role in roles))


@dataclass(frozen=True, slots=True)
class User:
    """A user of the file: name, password hash and roles."""

    name: str
    password: str
    roles: tuple[str, ...]


class LoginError(Exception):
    """A refused login; `busy` if it may succeed later."""

    def __init__(self, text: str, *, busy: bool = False) -> None:
        super().__init__(text)
        self.busy = busy


def hash_password(password: str) -> str:
    """Returns the hash of a password for the file of users: scrypt with a random salt."""
    salt = secrets.token_bytes(16)
    digest = _scrypt(password.encode(), salt, _SCRYPT_COST, _SCRYPT_BLOCK, _SCRYPT_PARALLEL)
    parts = (str(_SCRYPT_COST), str(_SCRYPT_BLOCK), str(_SCRYPT_PARALLEL), _text(salt), _text(digest))
    return "$".join(("scrypt", *parts))


def matches_hash(password: str, stored: str) -> bool:
    """Returns whether a password has this hash. Takes about 50 ms.

    Raises:
        ValueError: the hash has another form than that of `hash_password`.
    """
    cost, block, parallel, salt, digest = _parse_hash(stored)
    return hmac.compare_digest(_scrypt(password.encode(), salt, cost, block, parallel), digest)


def _parse_hash(stored: str) -> tuple[int, int, int, bytes, bytes]:
    kind, *parts = stored.split("$")
    if kind != "scrypt" or len(parts) != 5:
        raise ValueError("write what `deltaworks sql --hash-password` prints")
    try:
        cost, block, parallel = map(int, parts[:3])
        salt, digest = (base64.b64decode(part, validate=True) for part in parts[3:])
    except (ValueError, binascii.Error):
        raise ValueError("the hash is damaged: write what `deltaworks sql --hash-password` prints") from None
    if not (1 << 14 <= cost <= _MAX_SCRYPT_COST and 1 <= block <= 8 and 1 <= parallel <= 4 and len(digest) == 32):
        raise ValueError("the hash has other costs than those of `deltaworks sql --hash-password`")
    return cost, block, parallel, salt, digest


def _scrypt(password: bytes, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(password, salt=salt, n=cost, r=block, p=parallel, maxmem=128 << 20, dklen=32)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def read_users(path: Path, roles: Mapping[str, SqlRoleSpec]) -> dict[str, User]:
    """Reads the file of users.

    Raises:
        ConfigError: SQL_USERS_INVALID, with the file and the user.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError("SQL_USERS_INVALID", f"{path} cannot be read: {error}") from error
    declared = content.get("users") if isinstance(content, dict) else None
    if not isinstance(declared, dict) or set(content) != {"users"}:
        raise ConfigError("SQL_USERS_INVALID", f"{path} must have one key, users, with a section for each name.")
    problems: list[str] = []
    users: dict[str, User] = {}
    for name, section in declared.items():
        try:
            users[str(name)] = _parse_user(str(name), section, roles)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise ConfigError("SQL_USERS_INVALID", f"{path} has invalid users.", items=problems)
    return users


def _parse_user(name: str, section: object, roles: Mapping[str, SqlRoleSpec]) -> User:
    if not name or ":" in name or not name.isprintable() or len(name) > 200:
        raise ValueError("a name is printable text without a colon")
    if not isinstance(section, dict) or set(section) != {"password", "roles"}:
        raise ValueError("write password and roles, and nothing else")
    password, declared = section["password"], section["roles"]
    if not isinstance(password, str) or not isinstance(declared, list) or not declared:
        raise ValueError("password is a text, roles is a list")
    _parse_hash(password)
    for role in declared:
        if role not in roles:
            raise ValueError(f"unknown role {role!r}; {suggest_name(str(role), roles)}")
    return User(name, password, tuple(declared))


class UserFile:
    """The users of a file, read again when the file changes. Thread-safe.

    A file that became invalid is ignored until it is mended: its last valid users stay.
    """

    def __init__(self, path: Path, roles: Mapping[str, SqlRoleSpec]) -> None:
        self._path, self._roles = path, roles
        self._lock = threading.Lock()
        self._stamp = self._current_stamp()
        self._users = read_users(path, roles)

    def reload(self) -> None:
        """Reads the file again if it has changed.

        Raises:
            ConfigError: SQL_USERS_INVALID; the users remain those of the last valid file.
        """
        stamp = self._current_stamp()
        with self._lock:
            if stamp == self._stamp:
                return
            self._stamp = stamp
        users = read_users(self._path, self._roles)
        with self._lock:
            self._users = users

    def get(self, name: str) -> User | None:
        """Returns the user of this name."""
        with self._lock:
            return self._users.get(name)

    def _current_stamp(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return (status.st_mtime_ns, status.st_size, status.st_ino)


@dataclass(frozen=True, slots=True)
class OneUser:
    """A single user, of a server that a person starts for themselves."""

    user: User

    def reload(self) -> None:
        """Does nothing: the user never changes."""

    def get(self, name: str) -> User | None:
        """Returns the user if it has this name."""
        return self.user if name == self.user.name else None


@dataclass(slots=True)
class _Failures:
    count: int
    last: float


class Authenticator:
    """Verifies logins and issues tokens. Thread-safe.

    A token is valid for twelve hours in this process, as long as the user has the same password.
    """

    def __init__(self, users: UserFile | OneUser) -> None:
        self._users = users
        self._lock = threading.Lock()
        self._hashing = threading.BoundedSemaphore(_MAX_HASHING)
        self._key = secrets.token_bytes(32)
        #: By digest of the token: name, password hash and expiry.
        self._tokens: OrderedDict[bytes, tuple[str, str, float]] = OrderedDict()
        #: By digest of name, password and hash: the time of a successful verification.
        self._remembered: OrderedDict[bytes, float] = OrderedDict()
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        #: An unknown name takes as long as a wrong password.
        self._decoy = hash_password(secrets.token_urlsafe(16))

    def login(self, header: str) -> tuple[User, str]:
        """Verifies an `Authorization` header. Returns the user and its token, which is new after a login.

        Raises:
            LoginError: name, password or token is invalid, or too many passwords are being verified.
        """
        scheme, _, value = header.strip().partition(" ")
        if scheme.lower() == "bearer":
            return self._user_of_token(value.strip()), value.strip()
        if scheme.lower() != "basic":
            raise LoginError("Log in with user name and password.")
        try:
            # Some clients leave out the padding.
            padded = value.strip().rstrip("=") + "=" * (-len(value.strip().rstrip("=")) % 4)
            name, separator, password = base64.b64decode(padded, validate=True).decode().partition(":")
        except (ValueError, binascii.Error):
            raise LoginError("The login cannot be read.") from None
        if not separator or len(password.encode()) > _MAX_PASSWORD_BYTES or len(name) > 200:
            raise LoginError("User name or password is wrong.")
        user = self._verified(name, password)
        return user, self._issue(user)

    def _verified(self, name: str, password: str) -> User:
        user = self._users.get(name)
        stored = self._decoy if user is None else user.password
        digest = self._digest("\0".join((name, password, stored)))
        now = time.monotonic()
        with self._lock:
            if user is not None and now - self._remembered.get(digest, -_REMEMBERED_SECONDS) < _REMEMBERED_SECONDS:
                return user
            self._delay_after_failures(name, now)
        if not self._hashing.acquire(timeout=_HASHING_WAIT_SECONDS):
            raise LoginError("Too many logins at the same time. Try again in a few seconds.", busy=True)
        try:
            is_valid = matches_hash(password, stored) and user is not None
        finally:
            self._hashing.release()
        with self._lock:
            if user is None or not is_valid:
                self._record_failure(name, now)
                raise LoginError("User name or password is wrong.")
            self._failures.pop(name, None)
            _put_bounded(self._remembered, digest, now, _MAX_NAMES)
        return user

    def _delay_after_failures(self, name: str, now: float) -> None:
        failures = self._failures.get(name)
        if failures is None or failures.count < _FREE_FAILURES or now - failures.last > 60:
            return
        if now - failures.last < 1.0:
            raise LoginError(f"Too many failed logins as {name!r}. Try again in a second.", busy=True)

    def _record_failure(self, name: str, now: float) -> None:
        failures = self._failures.pop(name, None)
        count = 1 if failures is None or now - failures.last > 60 else failures.count + 1
        _put_bounded(self._failures, name, _Failures(count, now), _MAX_NAMES)

    def _issue(self, user: User) -> str:
        token = secrets.token_urlsafe(32)
        with self._lock:
            entry = (user.name, user.password, time.monotonic() + _TOKEN_SECONDS)
            _put_bounded(self._tokens, self._digest(token), entry, _MAX_TOKENS)
        return token

    def _user_of_token(self, token: str) -> User:
        with self._lock:
            name, password, expires = self._tokens.get(self._digest(token), ("", "", 0.0))
        user = self._users.get(name)
        if user is None or user.password != password or time.monotonic() >= expires:
            raise LoginError("The login has expired or is invalid. Log in again.")
        return user

    def _digest(self, text: str) -> bytes:
        return hmac.digest(self._key, text.encode("utf-8", "surrogateescape"), "sha256")


def _put_bounded(items: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    """Adds an item as the newest; the oldest one goes if there are more than `most`."""
    items.pop(key, None)
    items[key] = value
    if len(items) > most:
        items.popitem(last=False)
