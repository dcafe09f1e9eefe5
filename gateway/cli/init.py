"""`gateway init`: writes a new configuration into a folder: settings, an agent, its prompt and a function."""

import argparse
import os
import secrets
from pathlib import Path
from typing import Final

from gateway.agents import find_text
from gateway.errors import SettingsError
from gateway.invocation import command_in, typed_path

DESCRIPTION = "Write gateway.toml, a prompt, functions.py and .env into a folder. Files that exist are kept."

_TOML: Final = """\
# Agents: who answers which number.

[agents.maya]
prompt = "prompts/maya.md"              # {{memory}}, {{now}} and {{caller}} are filled in for each call
greeting = "Hello, this is Maya. How can I help you?"
functions = "functions.py"              # Python functions that the agent can call
"""

_FUNCTIONS: Final = '''\
"""Functions that the agent can call. They are loaded again when this file changes."""

from typing import Annotated

from gateway import Conversation


async def opening_hours(conv: Conversation, day: Annotated[str, "day of the week"]) -> str:
    """When the shop is open."""
    return "closed" if day.lower() == "sunday" else "open from nine to six"
'''

_ENV: Final = """\
# Settings of this gateway; all of them have a default. Keep this file private: it holds keys.

# The login of the dashboard, and the token of the HTTP API
GATEWAY_ADMIN_TOKEN={token}

# Everything that is stored
DATA_DIR=data
VOICE_SESSION_ARCHIVE_DIR=data/archive

# Who may call, such as +12025550143; * for anyone
#ALLOWED_CALLERS=
# The https address at which carriers reach this machine
#PUBLIC_URL=
#TWILIO_ACCOUNT_SID=
#TWILIO_AUTH_TOKEN=
#TELNYX_API_KEY=
#TELNYX_PUBLIC_KEY=
# Without a key the voice engine runs on this machine
#DEEPGRAM_API_KEY=
#OPENAI_API_KEY=
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", nargs="?", default=".", type=typed_path, metavar="FOLDER", help="default: this folder"
    )


def run(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    prompt = find_text("prompts/maya.md", folder, missing="prompts/maya.md is missing; install voice-gateway again")
    files = {
        "gateway.toml": _TOML,
        "prompts/maya.md": f"{prompt}\n",
        "functions.py": _FUNCTIONS,
        ".env": _ENV.format(token=secrets.token_hex(32)),
    }
    for name, text in files.items():
        written = _write(folder / name, text, mode=0o600 if name == ".env" else 0o644)
        print(f"{'wrote' if written else 'kept '}  {folder / name}")
    print(f"\nNext: {command_in(folder, 'serve')}")
    return 0


def _write(path: Path, text: str, *, mode: int) -> bool:
    """Write a file unless it exists. Returns whether it was written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            try:
                file.write(text)
                file.flush()
            except OSError:
                path.unlink()  # else the next run would keep it
                raise
    except FileExistsError:
        if path.is_file():
            return False
        wrong = f"{path} is not a file" if path.exists() else f"{path.parent} is not a folder"
        raise SettingsError(f"{wrong}; choose another folder") from None
    except OSError as error:
        raise SettingsError(f"{path} can't be written: {error.strerror}; choose another folder") from None
    return True
