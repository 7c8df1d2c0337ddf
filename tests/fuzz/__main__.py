"""Fuzzes the product's readers: `python -m tests.fuzz --minutes 10 --seed 7 [--only json,csv]`.

Prints a progress line every ten seconds, each kind of failure with the command that replays it, and a final table.
Exits with 1 after any failure.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from tests.fuzz.campaign import Campaign, replay
from tests.fuzz.cases import read_cases
from tests.fuzz.process import ROOT
from tests.fuzz.registry import NAMES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, help="repeats a run, as far as the machine is as fast")
    parser.add_argument("--only", default="", help=f"targets with commas between: {', '.join(NAMES)}")
    parser.add_argument("--folder", type=Path, default=ROOT / ".deltaworks" / "fuzz", help="where failures are saved")
    parser.add_argument("--replay", type=Path, nargs="+", metavar="FILE", help="judge saved inputs, or folders of them")
    options = parser.parse_args()
    if options.replay:
        files = read_cases(options.replay)
        wrong = replay(files, options.folder / "replay")
        print(f"{len(files)} inputs, {len(wrong)} wrong")
        return int(bool(wrong))
    only = [name.strip() for name in options.only.split(",") if name.strip()]
    if unknown := set(only) - set(NAMES):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    seed = random.randrange(1 << 31) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    return Campaign(only or NAMES, seed, options.minutes * 60, options.folder).run()


if __name__ == "__main__":
    sys.exit(main())
