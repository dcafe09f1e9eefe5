"""
Compare the gateway's CPU time per call with that of a bridge that only passes frames on.

    .venv/bin/python -m scripts.bare_bridge [--calls 200] [--rounds 5] [--seconds 6] [--json]
"""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial

from gateway.bench import runner
from scripts.bare_bridge.compare import compare, comparison_as_json, comparison_as_text


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if calls did not come up or frames were lost."""
    parser = argparse.ArgumentParser(prog="python -m scripts.bare_bridge", description=__doc__.strip().split("\n")[0])
    parser.add_argument("--calls", type=int, default=200, help="simultaneous calls (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each of the two (%(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each run (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if options.calls < 1 or options.rounds < 1 or options.seconds <= 0:
        parser.error("--calls, --rounds and --seconds must be above 0")
    measure = partial(runner.measure, options.calls, seconds=options.seconds)
    found = compare(measure, rounds=options.rounds, progress=lambda step: print(step, file=sys.stderr, flush=True))
    print(json.dumps(comparison_as_json(found), indent=2) if options.json else comparison_as_text(found))
    return 0 if found.faultless else 1


if __name__ == "__main__":
    sys.exit(main())
