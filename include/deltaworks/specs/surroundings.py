"""What a pipeline has to agree with outside of its declaration: its folder, relay, group, files, and the cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from deltaworks.errors import ConfigError
from deltaworks.specs.base import Place, nearest_of
from deltaworks.specs.declared_mistakes import Declared
from deltaworks.specs.mistakes import Mistake, meant
from deltaworks.specs.pipeline import PipelineSpec
from deltaworks.specs.shares import ClusterShares
from deltaworks.specs.sources.objects import FileSourceSpec


def surrounding_mistakes(
    spec: PipelineSpec,
    declared: Declared,
    *,
    relays: Collection[str],
    wrong_relays: Mapping[str, ConfigError],
    shares: ClusterShares,
    groups: Collection[str] = (),
) -> Iterator[tuple[Place, Mistake]]:
    """Everything about a pipeline that does not agree with what is around it, by its place.

    Args:
        groups: the groups of streams that the environment declares; where it declares none, any name makes one.
    """
    group = spec.stream_group
    if groups and group is not None and group not in groups:
        text = f"the environment declares no group {group!r} below stream_groups; {nearest_of(group, groups)}"
        yield ("stream_group",), declared.mistake(("stream_group",), text)
    for place, text in (*_problems(spec, declared, relays, wrong_relays), *_share_problems(spec, shares)):
        yield place, declared.mistake(place, text)


def _share_problems(spec: PipelineSpec, shares: ClusterShares) -> Iterator[tuple[Place, str]]:
    """A share of its own that no cluster of the environment can give."""
    own = spec.stream.share
    excess = shares.excess(shares.of_stream(own, live=bool(spec.live))) if own is not None else None
    if excess is not None:
        key, text = excess
        yield ("stream", "share", key), text


def _problems(
    spec: PipelineSpec, declared: Declared, relays: Collection[str], wrong_relays: Mapping[str, ConfigError]
) -> Iterator[tuple[Place, str]]:
    folder = declared.path.parent
    if spec.pipeline != folder.name:
        yield (
            ("pipeline",),
            f"the folder is called {folder.name!r}, the pipeline {spec.pipeline!r}: give both the same name",
        )
    if isinstance(spec.source, FileSourceSpec) and spec.source.relay not in relays:
        name = spec.source.relay
        wrong = wrong_relays.get(name)
        if wrong is not None:
            yield ("source", "relay"), f"the relay {name!r} is declared wrongly itself: {wrong.message}"
        else:
            yield ("source", "relay"), f"there is no relay {name!r} in include/relays; {nearest_of(name, relays)}"
    for index, gold in enumerate(spec.gold.tables):
        if not (folder / gold.sql).is_file():
            present = [path.relative_to(folder).as_posix() for path in folder.rglob("*.sql")]
            nearest = meant(gold.sql, present)
            advice = f"did you mean {nearest!r}?" if nearest is not None else "create it"
            place = ("gold", "tables", index, "sql")
            yield place, f"gold table {gold.name!r} names {gold.sql}, which is not in its folder; {advice}"
