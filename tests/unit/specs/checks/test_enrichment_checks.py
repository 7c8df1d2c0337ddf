"""Errors in look-ups and private fields are reported with file, line and key before a stream starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deltaworks.specs.checks.project import check_project

DECLARED = """\
pipeline: shop
description: orders
owner: tests
source: {kind: s3_sqs, relay: landing, bucket: landing}
event:
  name: {path: name}
  time: {path: time}
  id: client.ip
enrich:
  - {name: geo, kind: mmdb, path: client/ip, database: City.mmdb, fields: {country: country.iso_code}}
private:
  - {path: client.ip, keep: network}
tables:
  - name: orders
    when: {name: order}
    columns:
      - {name: country, path: _geo.contry, type: string}
"""
SOUND = DECLARED.replace("  id: client.ip\n", "").replace("client/ip", "client.ip").replace("contry", "country")


def messages(root: Path) -> list[str]:
    folder = "include/pipelines/shop/"
    return [str(spec_error).removeprefix(folder) for spec_error in check_project("local", root=root).errors]


def test_every_error_has_line_key_and_closest_name(make_project: Callable[..., Path]) -> None:
    assert messages(make_project(pipeline=DECLARED)) == [
        "pipeline.yaml:8: event.id: 'client.ip' is private: name, routing, time and id of an event must not "
        "be masked; choose another field; also on line 12",
        "pipeline.yaml:17: tables.0.columns.0.path: _geo has no field 'contry'; did you mean 'country'?",
    ]
    slash = SOUND.replace("path: client.ip, database", "path: client/ip, database")
    assert messages(make_project(pipeline=slash)) == [
        "pipeline.yaml:9: enrich.0.path: separate the names of a path by dots: write client.ip",
    ]


def test_a_valid_spec_has_no_errors_and_no_warnings(make_project: Callable[..., Path]) -> None:
    check = check_project("local", root=make_project(pipeline=SOUND))

    assert (check.errors, check.warnings) == ([], [])


def test_maxminddb_without_its_extension_has_a_warning(
    make_project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "maxminddb.extension", None)

    (warning,) = check_project("local", root=make_project(pipeline=SOUND)).warnings

    assert str(warning).startswith(
        "include/pipelines/shop/pipeline.yaml:9: enrich.0.kind: maxminddb is installed without its C extension"
    )
