"""
Prints the text of a PDF file, with a form feed after each page.

Runs as a process of its own, with the lowest priority: a large file takes seconds of CPU time that live calls need.
"""

import os
import sys

from pypdf import PdfReader


def main() -> None:
    os.nice(19)
    for page in PdfReader(sys.argv[1]).pages:
        sys.stdout.buffer.write(page.extract_text().encode(errors="replace") + b"\f")


if __name__ == "__main__":
    main()
