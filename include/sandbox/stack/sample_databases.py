"""Databases of addresses for pipelines that look clients up, where nobody has put one into the stack's lake.

A stream whose database is missing does not start. MaxMind's are downloads under a licence of their own, so the embedded
stack begins with invented networks; a database that is put later stays.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from deltaworks.control import paths
from deltaworks.specs.project import load_catalog
from generator.networks import build_databases
from sandbox.stack.environment import loaded_env
from sandbox.stack.home import StackHome


def put_sample_databases(home: StackHome, only: Collection[str] | None = None) -> tuple[str, ...]:
    """Put what declared pipelines look addresses up in, where the lake has nothing under that name and an invented one
    stands in; which those are. Idempotent.

    Args:
        only: pipelines the stack runs; by default those DELTAWORKS_PIPELINES names, or all.
    """
    catalog = load_catalog(root=home.project, skip_invalid=True, only=only)
    names = {look_up.database for spec in catalog.pipelines.values() for look_up in spec.enrich if look_up.database}
    if not names:
        return ()
    from deltaworks.control.objects import open_objects

    samples = build_databases(built_at=int(time.time()))
    with loaded_env(home):
        objects = open_objects(load_catalog(root=home.project, skip_invalid=True, only=only).environment.lake)
        missing = sorted(name for name in names & samples.keys() if objects.get(paths.database(name)) is None)
        for name in missing:
            objects.put(paths.database(name), samples[name])
    return tuple(missing)
