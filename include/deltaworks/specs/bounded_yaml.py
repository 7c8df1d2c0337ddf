"""Reads YAML within size limits. Rejects documents early that are too deep or too large, with their line.

With aliases, a hundred bytes can expand to billions of values. Nested mapping keys double the parser's time per level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer, ComposerError
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import AliasEvent, ScalarEvent
from ruamel.yaml.nodes import MappingNode, ScalarNode
from ruamel.yaml.reader import ReaderError

from deltaworks.specs.yaml_errors import InvalidYamlError, explain_yaml_error

#: Limits of a document, higher than any spec needs.
MAX_VALUES, MAX_DEPTH = 200_000, 100
_MAX_MESSAGE_LENGTH = 200


class _ScalarKeyComposer(Composer):
    """Rejects mapping keys that are not scalars."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if not (isinstance(parent, MappingNode) and index is None):
            return super().compose_node(parent, index)
        event = self.parser.peek_event()
        key = super().compose_node(parent, index) if isinstance(event, ScalarEvent | AliasEvent) else None
        if not isinstance(key, ScalarNode):
            raise ComposerError(None, None, "a key must be a text, not a list or mapping", event.start_mark)
        return key


def load_yaml(data: bytes, *, kind: Literal["rt", "safe"] = "safe") -> Any:
    """Parses a text with a single YAML document.

    Args:
        kind: `rt` keeps line numbers.

    Raises:
        InvalidYamlError: the text is not valid YAML, or too deep or too large.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidYamlError(data.count(b"\n", 0, error.start) + 1, "the text is not UTF-8") from error
    # Pure Python: the C parser, the default of `safe`, has no limits.
    yaml = YAML(typ=kind, pure=True)
    yaml.Composer = _ScalarKeyComposer
    yaml.max_depth = MAX_DEPTH
    try:
        document = yaml.load(text)
        _check_size(document)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column) if mark else (1, None)
        problem = explain_yaml_error(str(error.problem or error.context), line=line, column=column, text=text)
        raise InvalidYamlError(line, problem) from error
    except ReaderError as error:
        problem = f"the character #x{error.character:04x}, which YAML does not allow"
        raise InvalidYamlError(text.count("\n", 0, error.position) + 1, problem) from error
    except Exception as error:  # the parser raises various errors for invalid tags, dates and numbers
        raise InvalidYamlError(1, f"a value that cannot be read: {error}"[:_MAX_MESSAGE_LENGTH]) from error
    return document


def _check_size(document: Any) -> None:
    """Rejects documents that become infinite or huge through aliases, because traversing them would take as long."""
    values, depth, level = 1, 0, [document]
    while level:
        level = [value for node in level for value in _children(node)]
        values, depth = values + len(level), depth + 1
        if values > MAX_VALUES or depth > MAX_DEPTH:
            bound = f"{MAX_VALUES} values" if values > MAX_VALUES else f"{MAX_DEPTH} levels"
            raise MarkedYAMLError(problem=f"with its aliases it exceeds {bound}")


def _children(node: Any) -> Iterable[Any]:
    if isinstance(node, Mapping):
        return node.values()
    return node if isinstance(node, list | tuple | set) else ()
