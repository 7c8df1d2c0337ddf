"""Airflow shows here, as an import error of this file, what is declared wrongly in the project. It makes no DAG.

The other DAG files leave a wrong pipeline or relay out, so that the rest goes on; this one is where it shows.
"""

from __future__ import annotations

from deltaworks.specs.project import load_catalog

load_catalog(skip_invalid=True).check()
