"""Fuzzes project declarations: any text must give a spec or a validation error that names its file, in limited time."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import strategies as st

from deltaworks.errors import ConfigError
from deltaworks.events.parse import Parser
from deltaworks.specs.catalog import PROJECT_ROOT
from deltaworks.specs.loading import read_yaml
from deltaworks.specs.project import load_catalog
from deltaworks.testing import write_files
from tests.fuzz.cases import Case
from tests.fuzz.mutations import ODD_VALUES
from tests.fuzz.targets import Inputs

NAME = "shop"
#: File of each variant's text in a project.
PLACES = {
    "pipeline": f"include/pipelines/{NAME}/pipeline.yaml",
    "relay": "include/relays/landing.yaml",
    "environment": "include/environments/local.yaml",
}
_MINIMAL = {
    "pipeline": {
        "pipeline": NAME,
        "description": "orders",
        "owner": "tests",
        "source": {
            "kind": "s3_sqs",
            "relay": "landing",
            "bucket": "landing",
            "format": "json",
            "max_object_bytes": "64MiB",
        },
        "unwrap": {"path": "body"},
        "event": {"name": {"path": "name"}, "time": {"path": "time", "unit": "epoch_seconds"}, "id": ["id"]},
        "tables": [
            {
                "name": "events",
                "catch_all": True,
                "columns": [{"name": "device", "path": "a.device", "type": "string"}],
            },
            {
                "name": "orders",
                "when": {"name": ["order", "refund"]},
                "columns": [{"name": "amount", "path": "amount", "type": "decimal(12,2)", "required": True}],
                "rules": [{"name": "positive", "check": "amount > 0", "on_fail": "quarantine"}],
                "partition_by": ["event_date"],
            },
        ],
    },
    "relay": {
        "relay": "landing",
        "description": "",
        "owner": "tests",
        "queue_url": "env:QUEUE",
        "buckets": ["landing"],
    },
    "environment": {
        "environment": "local",
        "lake": {"root": "file:///nowhere/lake"},
        "landing": {"root": "file:///nowhere/landing"},
        "messaging": {},
    },
}
_TEXTS = st.sampled_from(
    [
        *(
            "",
            "~",
            "null",
            "[]",
            "{}",
            "- a",
            "a: b: c",
            "a:\n\t- b",
            "'",
            '"',
            "|",
            "&a",
            "*a",
            "? a",
            "!!x y",
            "%YAML 9.9\n---\n",
            "--- a\n--- b",
        ),
        *(
            "a: &a [*a]",
            "&a {b: *a}",
            "<<: 3",
            "<<: [*a]",
            "a: !!binary x",
            "a: !!timestamp x",
            "a: !!int x",
            "a: !!float x",
            "a: !!set {b}",
        ),
        *(
            "a: 2001-99-99",
            "a: 2001-12-14t21:59:43.10-05:99",
            "a: 0o9",
            "a: 0x",
            "a: 190:20:99",
            "a: .inf",
            "a: 1e999",
            "a: a",
            "\0",
            "\x85",
            "\ufeff",
        ),
        *(
            "? [a]\n: b",
            "? {a: b}\n: c",
            "1: 2",
            "true: 1",
            "null: 1",
            "a: 1\na: 2",
            "a: !!python/object:os.system x",
            "a: !<tag:yaml.org,2002:map> []",
        ),
        "a: &a [1]\n"
        + "\n".join(f"b{n}: &b{n} [{', '.join(['*' + ('a' if not n else f'b{n - 1}')] * 9)}]" for n in range(9)),
    ]
)
_DEEP = st.builds(
    lambda opening, depth, closing: opening * depth + "a" + closing * depth,
    st.sampled_from(["[", "{a: ", "- ", "? ", "!x ", "a:\n "]),
    st.sampled_from([9, 50, 50, 400]),
    st.sampled_from(["]", "}", ""]),
)
_TYPES = st.sampled_from(
    [
        "array<" * 900 + "int" + ">" * 900,
        "struct<" * 500,
        "decimal(99999999999999999999,1)",
        "decimal(٣,1)",
        "map<int,int>",
        "decimal(²,0)",
        "",
    ]
)
_PATTERNS = st.sampled_from(
    ["(?P<a>" + "(a+)+" * 9 + ")", "(?P<a>x){99999999999}", "(" * 500, "(?P<a>a)" * 200, "(?P<>x)", "\\", "(?P<a>[)"]
)
_ODD = st.one_of(st.sampled_from(ODD_VALUES), _TYPES, _PATTERNS, st.text(max_size=6), st.integers(), st.floats())


def _spoilt(declared: Any, rng: Random, odd: list[Any]) -> Any:
    """Returns the declaration with one random value replaced."""
    if isinstance(declared, dict) and declared and rng.random() < 0.85:
        name = rng.choice(list(declared))
        if rng.random() < 0.08:
            return {**declared, str(odd[0])[:50]: odd[-1]}
        return {**declared, name: _spoilt(declared[name], rng, odd)}
    if isinstance(declared, list) and declared and rng.random() < 0.85:
        place = rng.randrange(len(declared))
        return [*declared[:place], _spoilt(declared[place], rng, odd), *declared[place + 1 :]]
    return rng.choice(odd)


def _inputs(variant: str) -> Inputs:
    right = _MINIMAL[variant]
    spoilt = st.builds(
        lambda odd, seed: json.dumps(_spoilt(right, Random(seed), odd), ensure_ascii=False),
        st.lists(_ODD, min_size=1, max_size=2),
        st.integers(0, 2**32),
    )
    head = json.dumps(right)[:-1]
    inside = st.builds(lambda text: f"{head}, owner: {text}}}", _DEEP | _TEXTS)
    texts = st.one_of(spoilt, spoilt, _TEXTS, _DEEP, inside, st.text(max_size=30))
    return texts.map(lambda text: text.encode("utf-8", "surrogatepass"))


@cache
def _project() -> tempfile.TemporaryDirectory[str]:
    """A project of one pipeline, one relay and one environment, cached for the process."""
    folder = tempfile.TemporaryDirectory(prefix="fuzz-project-")
    for variant, place in PLACES.items():
        write_files(Path(folder.name), {place: json.dumps(_MINIMAL[variant])})
    return folder


@dataclass(frozen=True, slots=True)
class Loaded:
    """Result of loading a declaration: the spec's digest, or the error's condition and message."""

    digest: str
    condition: str = ""
    message: str = ""

    def differs(self, other: Loaded) -> bool:
        return self != other


@dataclass(frozen=True, slots=True)
class DeclarationTarget:
    """Loads a fuzzed pipeline, relay or environment file in an otherwise valid project."""

    name: str = "declarations"
    kind: str = "yaml"

    def variants(self) -> Sequence[str]:
        return list(PLACES)

    def inputs(self, variant: str) -> Inputs:
        return _inputs(variant)

    def observe(self, case: Case) -> Loaded:
        root = Path(_project().name)
        path = root / PLACES[case.variant]
        path.write_bytes(case.data)
        try:
            catalog = load_catalog("local", root=root, only=[NAME])
            spec = catalog.pipelines[NAME]
            Parser(spec)
            return Loaded(repr((spec, catalog.relays, catalog.environment)))
        except ConfigError as error:
            return Loaded("", error.condition, error.message)
        finally:
            path.write_text(json.dumps(_MINIMAL[case.variant]))

    def problems(self, case: Case, observed: Loaded) -> Sequence[str]:
        place = Path(PLACES[case.variant])
        if observed.digest or place.name in observed.message or "landing" in observed.message:
            return []
        return [f"{observed.condition} does not name the file: {observed.message[:200]}"]

    def counts(self, observed: Loaded) -> tuple[int, int]:
        return 1, int(not observed.digest)


def real_declarations(variant: str) -> list[bytes]:
    """Returns the declarations of this repository's project."""
    folder = {"pipeline": "pipelines/*/pipeline.yaml", "relay": "relays/*.yaml", "environment": "environments/*.yaml"}[
        variant
    ]
    texts = [path.read_bytes() for path in sorted((PROJECT_ROOT / "include").glob(folder))]
    if variant == "pipeline":
        # A mutation rarely matters in a thousand lines, so one or two tables are enough.
        texts += [json.dumps(_MINIMAL[variant], indent=1).encode(), _first_tables(texts[0])]
    return [
        text.replace(b"pipeline: games", b"pipeline: shop").replace(b"pipeline: edits", b"pipeline: shop")
        for text in texts
    ]


def _first_tables(text: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        path.write_bytes(text)
        declared = read_yaml(path).values
    return json.dumps({**declared, "tables": declared.get("tables", [])[:2]}, indent=1, default=str).encode()
