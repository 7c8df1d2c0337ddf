"""`python -m collector NAME --spool FOLDER`: runs the collector that include/collectors/NAME.yaml declares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from collector.process import CollectorProcess
from deltaworks.errors import DeltaworksError
from deltaworks.specs.catalog import project_root
from deltaworks.specs.collector_file import load_collector


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until a signal; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m collector", description=__doc__)
    parser.add_argument("name", help="name of a file in include/collectors")
    parser.add_argument(
        "--spool", type=Path, required=True, help=("spool folder of this process, on a persistent disk")
    )
    parser.add_argument("--project", type=Path, default=None, help="project folder with include/collectors")
    options = parser.parse_args(arguments)
    try:
        spec = load_collector(options.name, root=options.project or project_root())
        return CollectorProcess(spec, options.spool).run()
    except DeltaworksError as error:
        print(error, file=sys.stderr)  # noqa: T201
        print(error.as_line(), flush=True)  # noqa: T201
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
