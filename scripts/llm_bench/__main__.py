"""
Measure what the gateway adds to the first token of an LLM answer.

    .venv/bin/python -m scripts.llm_bench [--calls 100] [--seconds 6] [--json]
"""

import argparse
import json
import sys
from collections.abc import Sequence

from scripts.llm_bench import measure, report


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 1 if an answer failed or an audio frame was lost."""
    parser = argparse.ArgumentParser(prog="python -m scripts.llm_bench", description=__doc__.strip().split("\n")[0])
    parser.add_argument("--calls", type=int, default=measure.TURNS, help="simultaneous answers (%(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each half of the run (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    result = measure.measure(options.calls, seconds=options.seconds)
    print(json.dumps(report.as_json(result), indent=2) if options.json else report.as_text(result))
    return 0 if not result.failed and result.frames.faultless else 1


if __name__ == "__main__":
    sys.exit(main())
