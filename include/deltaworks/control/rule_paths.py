"""Keys of rules in the lake."""

from __future__ import annotations

from typing import Final

from deltaworks.control import paths

#: The name of the process that evaluates rules.
RULES_PROCESS: Final = "rules"


def rules_control() -> str:
    """Returns the control folder of the process that evaluates rules."""
    return "control/rules"


def rule_states(pipeline: str) -> str:
    """Returns the folder of a pipeline's rule states."""
    return paths.pipeline_control(pipeline, "rules/states") + "/"


def rule_state(pipeline: str, rule: str) -> str:
    """Returns the key of the state of a rule: the last evaluated minute and the state of each series."""
    return f"{rule_states(pipeline)}{rule}.json"


def rule_baseline(pipeline: str, rule: str, name: str) -> str:
    """Returns the key of the baseline of a rule's values on one date."""
    return paths.pipeline_control(pipeline, f"rules/baselines/{rule}/{name}.json")


def pipeline_annotations(pipeline: str, name: str = "") -> str:
    """Returns the folder of a pipeline's annotations, or one annotation."""
    return paths.pipeline_control(pipeline, f"annotations/{name}") + ("" if name else "/")
