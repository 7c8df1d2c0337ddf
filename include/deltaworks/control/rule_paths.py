"""Where what belongs to rules lies in the lake, beside what `deltaworks.control.paths` has."""

from __future__ import annotations

from typing import Final

from deltaworks.control import paths

#: The name of the process that judges rules, and the DAG that runs it, by which commands call it.
RULES_PROCESS: Final = "rules"
RULES_DAG: Final = RULES_PROCESS


def rules_control() -> str:
    """The control folder of the process that judges rules."""
    return "control/rules"


def rule_states(pipeline: str) -> str:
    """The folder of the states of a pipeline's rules."""
    return paths.pipeline_control(pipeline, "rules/states") + "/"


def rule_state(pipeline: str, rule: str) -> str:
    """The object that says how far a rule is judged, and how its figures stand."""
    return f"{rule_states(pipeline)}{rule}.json"


def rule_baseline(pipeline: str, rule: str, name: str) -> str:
    """The object that fixes what is usual of a rule's figures on one date."""
    return paths.pipeline_control(pipeline, f"rules/baselines/{rule}/{name}.json")


def pipeline_annotations(pipeline: str, name: str = "") -> str:
    """The folder of what people noted of a pipeline, or one note in it."""
    return paths.pipeline_control(pipeline, f"annotations/{name}") + ("" if name else "/")
