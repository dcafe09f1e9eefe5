"""`gateway setup`: points a phone number of a carrier account at this gateway."""

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import Final

from gateway import settings
from gateway.cli import terminal
from gateway.cli.audit import write_entry
from gateway.errors import SettingsError
from gateway.history.audit_log import AuditAction, AuditNote
from gateway.settings import Settings
from gateway.telephony.number_setup import Redirection, TelnyxAccount, TwilioAccount, webhook_urls
from gateway.telephony.phone_numbers import e164

DESCRIPTION: Final = "Set a phone number's webhook through the carrier's API and show what changed."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("carrier", choices=("twilio", "telnyx"))
    parser.add_argument("--number", default="", help="which number, if the account has several")
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    loaded = settings.load(os.environ, Path.cwd())
    if not loaded.public_url.startswith("https://"):
        raise SettingsError("set PUBLIC_URL to the https address that carriers reach, such as your tunnel")
    number = e164(options.number) or ""
    if options.number and not number:
        raise SettingsError(f"{options.number!r} is not a phone number; write it like +12025550100")
    redirection = _redirection(options.carrier, loaded, number)
    if not options.dry_run:
        redirection.apply()
        write_entry(loaded, AuditNote(AuditAction.NUMBER_SETUP, item=options.carrier))
    changes, number = redirection.changes, redirection.number
    if changes:
        text = [f"{number} {'would point' if options.dry_run else 'points'} here now"]
        text += [f"  {one.what}: {one.before or '(none)'} -> {one.after or '(none)'}" for one in changes]
    else:
        text = [f"{number} already points here"]
    changed = bool(changes) and not options.dry_run
    terminal.output(options.json, {"number": number, "changed": changed, "changes": list(map(asdict, changes))}, text)
    return 0


def _redirection(carrier: str, loaded: Settings, number: str) -> Redirection:
    urls = webhook_urls(loaded.public_url)
    if carrier == "twilio":
        if loaded.twilio_auth_token is None:
            raise SettingsError("set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN; the Twilio console shows both")
        sid, token = loaded.twilio_account_sid, loaded.twilio_auth_token
        twilio = TwilioAccount(api_url=loaded.twilio_api_url, account_sid=sid, auth_token=token)
        return twilio.find(number, webhook_url=urls["twilio"], status_url=urls["twilio status"])
    if loaded.telnyx_api_key is None:
        raise SettingsError("set TELNYX_API_KEY and TELNYX_PUBLIC_KEY; the Telnyx portal shows both")
    telnyx = TelnyxAccount(api_url=loaded.telnyx_api_url, api_key=loaded.telnyx_api_key)
    return telnyx.find(number, webhook_url=urls["telnyx"])
