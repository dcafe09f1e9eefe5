"""`gateway recordings`: a key for recordings, and a new key for those that exist."""

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from cryptography.fernet import Fernet

from gateway import settings
from gateway.calls.recording_files import RecordingCipher, rotate
from gateway.cli import terminal
from gateway.cli.audit import write_entry
from gateway.errors import SettingsError
from gateway.history.audit_log import AuditAction, AuditNote, AuditOutcome
from gateway.invocation import command
from gateway.text.figures import count

DESCRIPTION: Final = (
    "Print a new key for RECORD_KEY, or encrypt all recordings in RECORD_DIR with its first key (rotate)."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("key", "rotate"))


def run(options: argparse.Namespace) -> int:
    if options.action == "key":
        print(Fernet.generate_key().decode())
        return 0
    loaded = settings.load(os.environ, Path.cwd())
    if loaded.record_dir is None:
        raise SettingsError("RECORD_DIR is not set; set it to the folder of the recordings")
    if loaded.record_key is None:
        raise SettingsError(f"RECORD_KEY is not set; make a key with: {command('recordings key')}")
    try:
        with terminal.progress("encrypting recordings"):
            result = rotate(loaded.record_dir, RecordingCipher(loaded.record_key))
    except OSError as error:
        raise SettingsError(f"RECORD_DIR {loaded.record_dir} can't be used: {error.strerror}") from None
    outcome = AuditOutcome.INCOMPLETE if result.failed or result.live else AuditOutcome.DONE
    write_entry(loaded, AuditNote(AuditAction.RECORDING_ROTATE, outcome=outcome))
    for problem in result.failed:
        print(f"gateway: {problem}", file=sys.stderr)
    if result.live:
        print(f"{count(result.live, 'live call')} left as they are; run this again when they are over")
    print(f"{count(result.encrypted, 'recording')} encrypted with the first key")
    return 1 if result.failed or result.live else 0
