"""`deltaworks pipelines check` warns with numbers if the cluster has too little capacity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.specs.checks.project import ProjectCheck, check_project
from deltaworks.testing import write_files
from tests.unit.specs.conftest import ENVIRONMENT, PIPELINE

SHARES = """\
shares:
  cluster: {{workers: {workers}, worker_cores: 2, worker_memory: {memory}}}
  stream: {{executors: {stream}, executor_cores: 1, executor_memory: 1g}}
  maintenance: {{executor_cores: 1, executor_memory: 1g}}
  reprocess: {{executors: {reprocess}, executor_cores: 1, executor_memory: 1g}}
"""


@pytest.fixture
def checked(make_project: Callable[..., Path]) -> Callable[..., ProjectCheck]:
    def check(*, workers: int, stream: int, reprocess: int = 1, memory: str = "2g") -> ProjectCheck:
        declared = SHARES.format(workers=workers, stream=stream, reprocess=reprocess, memory=memory)
        return check_project("local", root=make_project(environment=ENVIRONMENT + declared))

    return check


def reported_warnings(project: ProjectCheck) -> list[str]:
    assert project.errors == []
    return [str(warning) for warning in project.warnings]


def test_a_cluster_with_room_for_streams_and_one_job_of_each_class_has_no_warning(
    checked: Callable[..., ProjectCheck],
) -> None:
    assert reported_warnings(checked(workers=2, stream=2)) == []


def test_a_job_without_an_executor_next_to_the_streams_waits_forever(checked: Callable[..., ProjectCheck]) -> None:
    assert reported_warnings(checked(workers=2, stream=4)) == [
        f"include/environments/local.yaml:6: shares.cluster: shop__stream 4 + {name} 1 are 5 cores, "
        f"and the cluster has 4; a {name} job waits forever"
        for name in ("maintenance", "reprocess")
    ]


def test_a_job_starts_with_some_of_its_executors(checked: Callable[..., ProjectCheck]) -> None:
    (warning,) = reported_warnings(checked(workers=2, stream=3, reprocess=2))

    assert "shop__stream 3 + maintenance 1 + reprocess 2 are 6 cores, and the cluster has 4" in warning
    assert "jobs of one class wait for those of another" in warning


def test_memory_is_limited_like_cores(checked: Callable[..., ProjectCheck]) -> None:
    (warning,) = reported_warnings(checked(workers=2, stream=2, memory="1536m"))

    assert "shop__stream 2048 + maintenance 1024 + reprocess 1024 are 4096 MB of executors" in warning
    assert "has 3072" in warning


def test_streams_that_do_not_fit_have_one_warning(make_project: Callable[..., Path]) -> None:
    declared = SHARES.format(workers=1, stream=2, reprocess=1, memory="2g")
    root = make_project(environment=ENVIRONMENT + declared)
    write_files(root, {"include/pipelines/store/pipeline.yaml": PIPELINE.replace("pipeline: shop", "pipeline: store")})

    (warning,) = reported_warnings(check_project("local", root=root))

    assert "the streams do not fit: shop__stream 2 + store__stream 2 are 4 cores, and the cluster has 2" in warning


def test_more_streams_than_slots_have_a_warning_without_a_cluster(make_project: Callable[..., Path]) -> None:
    root = make_project(environment=f"{ENVIRONMENT}shares: {{stream: {{slots: 1}}}}\n")
    write_files(root, {"include/pipelines/store/pipeline.yaml": PIPELINE.replace("pipeline: shop", "pipeline: store")})

    (warning,) = reported_warnings(check_project("local", root=root))

    assert "shares.stream.slots: 2 streams need as many slots, and the pool 'streams' has 1" in warning


def test_without_a_cluster_there_are_no_warnings(make_project: Callable[..., Path]) -> None:
    declared = "shares: {stream: {executors: 500}}\n"

    assert reported_warnings(check_project("local", root=make_project(environment=ENVIRONMENT + declared))) == []


def test_a_group_takes_the_share_of_one_stream(make_project: Callable[..., Path]) -> None:
    declared = SHARES.format(workers=1, stream=2, reprocess=1, memory="2g")
    root = make_project(pipeline=PIPELINE + "stream_group: small\n", environment=ENVIRONMENT + declared)
    other = PIPELINE.replace("pipeline: shop", "pipeline: store") + "stream_group: small\n"
    write_files(root, {"include/pipelines/store/pipeline.yaml": other})

    (warning, *_) = reported_warnings(check_project("local", root=root))

    assert "small__stream_group 2 + maintenance 1 are 3 cores, and the cluster has 2" in warning
