"""Overrides settings of a rule for a backtest, for example `fire.above=0.07`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.alert_rule import RuleSpec
from deltaworks.specs.base import suggest_name
from deltaworks.specs.yaml_reader import InvalidYamlError, load_yaml

#: Keys that cannot be overridden, because they identify the rule.
_FIXED_KEYS = ("name", "sql", "reads")


def with_overrides(rule: RuleSpec, settings: Sequence[str]) -> RuleSpec:
    """Returns the rule with keys overridden, each as `key=value` or `key.subkey=value`; `null` removes a key.

    Raises:
        ConfigError: RULE_SETTING_INVALID, an unknown key, a missing value, or an invalid rule.
    """
    data: dict[str, Any] = rule.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for setting in settings:
        path, separator, text = setting.partition("=")
        keys = path.strip().split(".")
        if not separator or not path:
            raise _invalid_error(f"{setting!r} has no value", "Write --set fire.above=0.07.")
        if keys[0] not in RuleSpec.model_fields or keys[0] in _FIXED_KEYS:
            settable = [name for name in RuleSpec.model_fields if name not in _FIXED_KEYS]
            raise _invalid_error(
                f"there is no key {keys[0]!r} to set", f"{suggest_name(keys[0], settable).capitalize()}."
            )
        node = data
        for key in keys[:-1]:
            below = node.setdefault(key, {})
            if not isinstance(below, dict):
                raise _invalid_error(f"{key!r} has nothing below it", f"Write --set {key}=….")
            node = below
        try:
            value = load_yaml(text.encode("utf-8", "surrogateescape")).values
        except InvalidYamlError as error:
            raise _invalid_error(f"{setting!r}: {error.problem}", "Write --set fire.above=0.07.") from error
        if value is None:
            node.pop(keys[-1], None)
        else:
            node[keys[-1]] = value
    try:
        return RuleSpec.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key_path = ".".join(str(part) for part in first["loc"])
        raise _invalid_error(
            f"{key_path}: {first['msg']}", "Correct the --set option; the declaration is unchanged."
        ) from error


def _invalid_error(problem: str, hint: str) -> ConfigError:
    return ConfigError("RULE_SETTING_INVALID", f"The rule cannot be overridden: {problem}.", hint=hint)
