"""Error messages of specs: plain text with line and advice."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from deltaworks.errors import ConfigError
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.environment import EnvironmentSpec
from deltaworks.specs.loading import read_yaml
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.project import load_catalog
from deltaworks.specs.relay import RelaySpec
from deltaworks.specs.spec_errors import MESSAGE_BUILDERS, PATTERNS
from deltaworks.specs.validation_errors import Declaration, to_spec_errors
from deltaworks.specs.yaml_reader import YamlDocument, load_yaml
from tests.unit.specs.conftest import PIPELINE

MakeProject = Callable[..., Path]
GOLD = "gold:\n  tables:\n"
FIRST = "    - {name: daily, sql: daily.sql, reads: [weekly], partition_by: event_date}\n"
SECOND = "    - {name: weekly, sql: daily.sql, reads: [daily], partition_by: event_date}\n"
ORDERS = '    columns:\n      - {name: amount, path: amount, type: "decimal(12,2)"}\n'
PATH_OF_A_LIST = (
    'a path cannot select list elements: declare items as a column of a type such as "array<struct<...>>", and '
    "select elements in gold"
)
#: What the small pipeline has, what stands there instead, and everything that is said of it: line, key and words.
MESSAGES = {
    "a list as a text": (
        "    columns:",
        "    partition_by: event_date\n    columns:",
        [(15, "tables.0.partition_by", "write a list: [event_date]")],
    ),
    "a text as a list": ("owner: tests", "owner: [tests]", [(3, "owner", "write a text instead of a list")]),
    "a number as a text": ("owner: tests", "owner: 12", [(3, "owner", 'write a text, in quotes: "12"')]),
    "nothing": ("owner: tests", "owner:", [(3, "owner", "write a text instead of nothing")]),
    "a text as a number": (
        "trigger_seconds: 60",
        "trigger_seconds: soon",
        [(18, "stream.trigger_seconds", "write a number instead of 'soon'")],
    ),
    "half a second": (
        "trigger_seconds: 60",
        "max_run_seconds: 60.5",
        [(18, "stream.max_run_seconds", "write a whole number instead of 60.5")],
    ),
    "too few seconds": (
        "trigger_seconds: 60",
        "lease_ttl_seconds: 1",
        [(18, "stream.lease_ttl_seconds", "write 3 or more instead of 1")],
    ),
    "no seconds": (
        "trigger_seconds: 60",
        "trigger_seconds: 0",
        [(18, "stream.trigger_seconds", "write more than 0 instead of 0")],
    ),
    "a size of memory": (
        "trigger_seconds: 60",
        "driver_memory: 1gb",
        [(18, "stream.driver_memory", "write a number with m or g, such as 512m or 2g, instead of '1gb'")],
    ),
    "a section as a text": (
        "stream:\n  trigger_seconds: 60",
        "stream: fast",
        [(17, "stream", "write keys and values instead of 'fast'")],
    ),
    "a choice": (
        "path: time}",
        "path: time, unit: epoch_milli}",
        [
            (
                11,
                "event.time.unit",
                "write epoch_seconds, epoch_millis or iso8601 instead of 'epoch_milli'; did you mean 'epoch_millis'?",
            )
        ],
    ),
    "a yes or no": (
        'type: "decimal(12,2)"',
        'type: "decimal(12,2)", required: perhaps',
        [(16, "tables.0.columns.0.required", "write true or false instead of 'perhaps'")],
    ),
    "one of several kinds": (
        "stream:",
        GOLD + FIRST.replace("weekly", "orders").replace("}", ", affects: none}") + "stream:",
        [(19, "gold.tables.0.affects", "write all, same or keys and values instead of 'none'")],
    ),
    "a key in one of several kinds": (
        "stream:",
        GOLD + FIRST.replace("weekly", "orders").replace("}", ", affects: {day: [1]}}") + "stream:",
        [(19, "gold.tables.0.affects.day", "unknown key 'day'; did you mean 'days'?")],
    ),
    "a key of what an input affects": (
        "stream:",
        GOLD + FIRST.replace("weekly", "orders").replace("}", ", affects: {orders: {dys: [1]}}}") + "stream:",
        [(19, "gold.tables.0.affects.orders.dys", "unknown key 'dys'; did you mean 'days'?")],
    ),
    "a word for what an input affects": (
        "stream:",
        GOLD + FIRST.replace("weekly", "orders").replace("}", ", affects: {orders: onward}}") + "stream:",
        [(19, "gold.tables.0.affects.orders", "write all, onwards or keys and values instead of 'onward'")],
    ),
    "a key of intervals": (
        "stream:",
        GOLD
        + FIRST.replace("weekly", "orders").replace("}", ", checks: {intervals: {by: a, form: b, to: c}}}")
        + "stream:",
        [
            (19, "gold.tables.0.checks.intervals.from", "this key is required"),
            (19, "gold.tables.0.checks.intervals.form", "unknown key 'form'; did you mean 'from'?"),
        ],
    ),
    "a decimal without quotes": (
        '"decimal(12,2)"',
        "decimal(12,2)",
        [(16, "tables.0.columns.0.type", 'quote it, because of its comma: type: "decimal(12,2)"')],
    ),
    "a map without quotes, and keys behind it": (
        '"decimal(12,2)"',
        "map<string, long>, required: true",
        [(16, "tables.0.columns.0.type", 'quote it, because of its comma: type: "map<string,long>"')],
    ),
    "a mistake in a table alone": (
        '"decimal(12,2)"',
        "number",
        [
            (
                16,
                "tables.0.columns.0.type",
                "unknown type 'number'; known types are string, int, long, float, double, boolean, date, timestamp, "
                "binary, decimal(p,s), array<T>, map<string,T>, struct<a: T>",
            )
        ],
    ),
    "no tables": (
        "tables:\n  - name: orders\n    when: {name: order}\n" + ORDERS,
        "tables: []\n",
        [(12, "tables", "write 1 or more here")],
    ),
    "a path of JSONPath": (
        "path: amount",
        "path: $.page",
        [(16, "tables.0.columns.0.path", "a path starts with a field name and not with $: write page")],
    ),
    "a path into a list": (
        "path: amount",
        'path: "items[0].x"',
        [(16, "tables.0.columns.0.path", PATH_OF_A_LIST)],
    ),
    "a phrase as a schedule": (
        "stream:",
        "maintenance: {schedule: every 15 minutes}\nstream:",
        [
            (
                17,
                "maintenance.schedule",
                "write a cron expression of five parts (minute, hour, day, month, weekday), such as "
                "\"*/15 * * * *\", instead of 'every 15 minutes'",
            )
        ],
    ),
    "a table twice": (
        "stream:",
        "  - name: orders\n    catch_all: true\nstream:",
        [
            (
                17,
                "tables.1.name",
                "table orders is declared twice in this pipeline; give one of them another name; also on line 13",
            )
        ],
    ),
    "a column twice": (
        "stream:",
        "      - {name: amount, path: x, type: long}\nstream:",
        [
            (
                17,
                "tables.0.columns.1.name",
                "column amount is declared twice; give one of them another name; also on line 16",
            )
        ],
    ),
    "a circle": (
        "stream:",
        GOLD + FIRST + SECOND + "stream:",
        [
            (
                19,
                "gold.tables.0.reads",
                "gold tables form a cycle: daily reads weekly reads daily; also on line 20",
            )
        ],
    ),
    "a missing file": (
        "stream:",
        GOLD + FIRST.replace("weekly", "orders").replace("daily.sql", "daly.sql") + "stream:",
        [
            (
                19,
                "gold.tables.0.sql",
                "gold table 'daily' refers to daly.sql, which does not exist in its folder; did you mean 'daily.sql'?",
            )
        ],
    ),
    "an unknown relay": (
        "relay: landing",
        "relay: landings",
        [(6, "source.relay", "there is no relay 'landings' in include/relays; did you mean 'landing'?")],
    ),
    "another folder": (
        "pipeline: shop",
        "pipeline: store",
        [(1, "pipeline", "the folder is 'shop' and the pipeline 'store': give both the same name")],
    ),
    "several mistakes in one table": (
        "    columns:",
        "    zorder_by: [amont, event_date]\n    writer: spark\n    evolve: add_columns\n    columns:",
        [
            (15, "tables.0.zorder_by.0", "'amont' is not a column of this table; did you mean 'amount'?"),
            (15, "tables.0.zorder_by.1", "event_date is a partition column: Z-order cannot use it"),
            (
                17,
                "tables.0.evolve",
                "evolve: add_columns needs writer: fan_out; with writer: spark use evolve: rescue",
            ),
        ],
    ),
}
#: What the small pipeline has, what stands there instead, the line that is named, and what is said of it.
NO_YAML = {
    "a tab": ("  kind: s3_sqs", "\tkind: s3_sqs", 5, "YAML does not allow tabs: use spaces"),
    "a key twice": (
        "stream:",
        "owner: others\nstream:",
        17,
        "duplicate key 'owner'; the first is on line 3: keep one of them",
    ),
    "a key twice in a section": (
        "  bucket: landing",
        "  bucket: landing\n  kind: kafka",
        8,
        "duplicate key 'kind'; the first is on line 5: keep one of them",
    ),
    "a cron expression without quotes": (
        "stream:",
        "maintenance:\n  schedule: */15 * * * *\nstream:",
        18,
        'quote a text that starts with *: schedule: "*/15 * * * *"',
    ),
    "a struct without quotes": (
        '"decimal(12,2)"',
        "struct<a: int, b: string>",
        16,
        'quote it, because of its colons: type: "struct<a: int, b: string>"',
    ),
    "an at sign": ("owner: tests", "owner: @tests", 3, "quote a text that starts with @"),
    "unexpected colon on this line": (
        "description: orders",
        "description: orders: all",
        2,
        "unexpected colon on this line: quote the value with the colon",
    ),
    "another column": (
        "owner: tests",
        "  owner: tests",
        3,
        "unexpected colon on this line: quote the value with the colon",
    ),
    "a bracket": ("{path: name}", "{path: name", 11, "a bracket is not closed: write , or }"),
    "a quote": ("owner: tests", "owner: 'tests", 19, "a quote or a bracket is not closed"),
}
#: Words of pydantic, of its dependencies and of Python that nobody who writes YAML should have to know.
FOREIGN = re.compile(
    r"Input should|Field required|Value error|valid (?:tuple|dictionary|integer|boolean|string)|instance of|\btuple\b|"
    r"\bdict\b|NoneType|Extra inputs|unable to|pydantic|at least 1 item|\bnull\b|None\b"
)


def errors_in(root: Path) -> list[str]:
    """The lines of the refusal, without the folder of the project."""
    with pytest.raises(ConfigError) as caught:
        load_catalog("local", root=root)
    assert caught.value.condition == "SPEC_INVALID"
    header, *lines = caught.value.message.split("\n  ")
    assert header.startswith(f"{len(lines)} error")
    return [line.removeprefix(f"{root}/include/pipelines/shop/pipeline.yaml:") for line in lines]


@pytest.mark.parametrize(("good", "bad", "messages"), MESSAGES.values(), ids=MESSAGES)
def test_an_error_has_exactly_the_expected_messages(
    make_project: MakeProject, good: str, bad: str, messages: list[tuple[int, str, str]]
) -> None:
    assert good in PIPELINE
    root = make_project(pipeline=PIPELINE.replace(good, bad, 1))
    (root / "include/pipelines/shop/daily.sql").write_text("SELECT event_date FROM orders")

    assert errors_in(root) == [f"{line}: {key}: {words}" for line, key, words in messages]


@pytest.mark.parametrize(("good", "bad", "line", "messages"), NO_YAML.values(), ids=NO_YAML)
def test_yaml_errors_are_explained(make_project: MakeProject, good: str, bad: str, line: int, messages: str) -> None:
    assert good in PIPELINE

    with pytest.raises(ConfigError) as caught:
        load_catalog("local", root=make_project(pipeline=PIPELINE.replace(good, bad, 1)))

    assert caught.value.condition == "SPEC_NOT_YAML"
    assert caught.value.message.partition("pipeline.yaml:")[2] == f"{line}: {messages}."


def test_an_invalid_override_has_its_file_and_line(make_project: MakeProject, environment_text: str) -> None:
    override = "overrides:\n  pipelines:\n    shop:\n      stream: {trigger_seconds: soon}\n"

    with pytest.raises(ConfigError) as caught:
        load_catalog("local", root=make_project(environment=environment_text + override))

    messages = "overrides.pipelines.shop.stream.trigger_seconds: write a number instead of 'soon'"
    assert f"include/environments/local.yaml:8: {messages}" in caught.value.message


def test_an_error_next_to_an_override_is_located_in_the_file(
    make_project: MakeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELTAWORKS_SET__pipelines__shop__stream__trigger_seconds", "5")
    invalid = PIPELINE.replace("    when: {name: order}\n", "").replace("trigger_seconds: 60", "max_run_seconds: 1")

    assert errors_in(make_project(pipeline=invalid)) == [
        "13: tables.0: give `when` a condition, or set catch_all: true for all events, or catch_all: rest "
        "for events that match no `when`",
        "17: stream.max_run_seconds: write 10 or more instead of 1",
    ]


def test_overrides_of_removed_pipelines_are_allowed(make_project: MakeProject, environment_text: str) -> None:
    override = "overrides: {pipelines: {games: {stream: {trigger_seconds: 5}}}}\n"

    assert list(load_catalog("local", root=make_project(environment=environment_text + override)).pipelines) == ["shop"]


def error_types(schema: Any) -> Iterator[str]:
    """Every type of error that a schema of pydantic's core can raise.

    Raises:
        AssertionError: the schema has a part whose errors nobody has looked at.
    """
    kind = schema["type"]
    bounds = {"gt": "greater_than", "ge": "greater_than_equal", "lt": "less_than", "le": "less_than_equal"}
    own = {
        "str": ["string_type", "string_unicode"],
        "int": ["int_type", "int_parsing", "int_parsing_size", "int_from_float"],
        "float": ["float_type", "float_parsing", "finite_number"],
        "bool": ["bool_type", "bool_parsing"],
        "tuple": ["tuple_type"],
        "dict": ["dict_type"],
        "literal": ["literal_error"],
        "model": ["model_type"],
        "model-fields": ["model_attributes_type", "missing", "extra_forbidden"],
        "tagged-union": ["union_tag_invalid", "union_tag_not_found", "model_attributes_type"],
        "function-after": ["value_error", "declared"],
        "function-before": ["value_error", "declared"],
        "function-plain": ["value_error", "declared"],
        **{key: [] for key in ("nullable", "default", "union", "definitions", "definition-ref", "any", "model-field")},
    }
    assert kind in own, f"give every error of a {kind} its words in deltaworks.specs.spec_errors"
    yield from own[kind]
    yield from (name for key, name in bounds.items() if key in schema)
    if kind == "str":
        limits = {"string_too_short": "min_length", "string_too_long": "max_length"}
        yield from (name for name, limit in limits.items() if limit in schema)
        if "pattern" in schema:
            assert schema["pattern"] in PATTERNS, "say in words what fits the pattern"
            yield "string_pattern_mismatch"
    elif kind == "tuple":
        yield from (f"too_{key}" for key, limit in (("short", "min_length"), ("long", "max_length")) if limit in schema)
    for key in ("schema", "keys_schema", "values_schema"):
        if key in schema:
            yield from error_types(schema[key])
    inner = schema.get("choices", {})
    for part in [
        *schema.get("items_schema", []),
        *schema.get("definitions", []),
        *(inner.values() if isinstance(inner, dict) else inner),
        *(schema["fields"].values() if kind == "model-fields" else []),
    ]:
        yield from error_types(part[0] if isinstance(part, tuple) else part)


@pytest.mark.parametrize("model", [PipelineSpec, RelaySpec, EnvironmentSpec])
def test_every_error_type_of_the_models_has_a_message(model: type[BaseModel]) -> None:
    raised = {*error_types(model.__pydantic_core_schema__)} - {"extra_forbidden"}

    assert len(raised) > 10
    assert raised - {*MESSAGE_BUILDERS} == set()


def leaves(node: Any, key_path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a declaration."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield (*key_path, key)
        yield from leaves(value, (*key_path, key))


def largest_example() -> dict[str, Any]:
    """The declaration in the documents that has every key."""
    text = (PROJECT_ROOT / "docs/reference/pipeline/index.md").read_text()
    examples = re.findall(r"<!-- example: pipeline -->\n```yaml\n(.*?)```", text, re.DOTALL)
    path = Path(PROJECT_ROOT / "docs/reference/pipeline/index.md")
    assert examples, path
    return dict(load_yaml(max(examples, key=len).encode()).values)


EXAMPLE = largest_example()
ODD = st.sampled_from([None, True, 12, -1, 1.5, "", "x y", "2026-01-01", [], ["x"], [1], {}, {"x": 1}, [{}], "all"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(key_path=st.sampled_from(list(leaves(EXAMPLE))), value=ODD)
def test_no_message_contains_terms_of_libraries(key_path: tuple[Any, ...], value: Any) -> None:
    data = copy.deepcopy(EXAMPLE)
    node: Any = data
    for part in key_path[:-1]:
        node = node[part]
    node[key_path[-1]] = value
    declared = Declaration(Path("pipeline.yaml"), YamlDocument(data), data)

    try:
        PipelineSpec.model_validate(data)
    except ValidationError as error:
        reported_errors = to_spec_errors(error, declared, PipelineSpec)
        assert reported_errors
        for spec_error in reported_errors:
            shown = spec_error.text.replace(json.dumps(value), "")
            assert FOREIGN.search(shown) is None, f"{key_path} = {value!r}: {spec_error.text}"


def test_the_specs_of_this_project_have_no_error() -> None:
    paths = sorted((PROJECT_ROOT / "include/pipelines").glob("*/pipeline.yaml"))

    read = [PipelineSpec.model_validate(read_yaml(path).values).pipeline for path in paths]

    assert read == [path.parent.name for path in paths]
