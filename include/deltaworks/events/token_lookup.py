"""Looks up the tokens of identifiers that the caller knows, so that it can use rows and messages keyed by token.

A token cannot be turned back: a caller builds its own map from identifiers to tokens. The values behind tokens are in
the vault, for fields with `action: vault`, and a reveal of them is recorded. Needs the right to unwrap the namespace's
token key, and none on the vault.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from deltaworks.errors import ConfigError, ContractError
from deltaworks.events.redaction_keys import load_redaction_keys
from deltaworks.privacy.tokens.envelope_encryption import normalize, token
from deltaworks.specs.catalog import Catalog


def lookup_tokens(catalog: Catalog, namespace: str, *, kind: str, values: Iterable[str]) -> Mapping[str, str | None]:
    """Returns the token of each identifier; None for erased people, whose events are dropped.

    Reads the key (cached by the process) and the current suppression list; writes nothing. Safe for concurrent use.

    Args:
        kind: as in `as` of the namespace's private fields, such as `player`.

    Raises:
        ConfigError: NAMESPACE_UNKNOWN; TOKEN_KIND_UNKNOWN; those of `load_redaction_keys`.
        ContractError, TransientError: from `load_redaction_keys`.
    """
    specs = catalog.namespace(namespace)
    kinds = sorted({name for spec in specs if spec.privacy is not None for name in spec.privacy.kinds})
    if kind not in kinds:
        raise ConfigError(
            "TOKEN_KIND_UNKNOWN",
            f"The namespace {namespace!r} has no identifiers of the kind {kind!r}.",
            hint=f"Use one of {', '.join(kinds)}.",
        )
    keys = load_redaction_keys(specs[0], catalog.environment.lake)
    if keys is None:  # `catalog.namespace` returns pipelines with personal data only
        raise ContractError("STORED_KEY_UNREADABLE", f"The namespace {namespace!r} has no token key.")
    now_us = int(time.time() * 1_000_000)
    tokens: dict[str, str | None] = {}
    for value in values:
        if not normalize(kind, value):
            continue
        computed = token(keys.token_key, kind=kind, value=value)
        tokens[value] = None if keys.suppression.matches(keys.token_key, [computed], at_us=now_us) else computed
    return tokens
