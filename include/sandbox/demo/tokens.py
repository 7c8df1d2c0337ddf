"""Computes the tokens of a pipeline, to compare sent identifiers with landed rows."""

from __future__ import annotations

from collections.abc import Callable

from deltaworks.control.objects import open_objects
from deltaworks.errors import ConfigError
from deltaworks.privacy.stored_keys import namespace_token_key, open_key_service, privacy_settings
from deltaworks.privacy.tokens.envelope_encryption import token
from deltaworks.specs.catalog import Catalog


def get_tokens(catalog: Catalog, pipeline: str) -> Callable[[str, str], str]:
    """Returns a function that computes the pipeline's token from kind and value of an identifier.

    Raises:
        ConfigError: NAMESPACE_UNKNOWN, the pipeline declares no personal data; or any error of opening its key.
    """
    spec = catalog.pipeline(pipeline)
    if spec.privacy is None:
        raise ConfigError("NAMESPACE_UNKNOWN", f"{pipeline!r} declares no `privacy`.", hint="Add it to its file.")
    lake = catalog.environment.lake
    service = open_key_service(privacy_settings(spec, lake).keys)
    key = namespace_token_key(service, open_objects(lake), spec.privacy.namespace)
    return lambda kind, value: token(key, kind=kind, value=value)
