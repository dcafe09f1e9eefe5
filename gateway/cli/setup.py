"""`gateway setup`: points a phone number of a carrier account at this gateway."""

import argparse
import os
from dataclasses import asdict
from pathlib import Path
from typing import Final

import orjson

from gateway import settings
from gateway.errors import SettingsError
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
    redirection = (_twilio if options.carrier == "twilio" else _telnyx)(loaded, number)
    if not options.dry_run:
        redirection.apply()
    print(_json(redirection, options.dry_run) if options.json else _text(redirection, options.dry_run))
    return 0


def _twilio(loaded: Settings, number: str) -> Redirection:
    if loaded.twilio_auth_token is None:
        raise SettingsError("set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN; the Twilio console shows both")
    urls = webhook_urls(loaded.public_url)
    account = TwilioAccount(
        api_url=loaded.twilio_api_url, account_sid=loaded.twilio_account_sid, auth_token=loaded.twilio_auth_token
    )
    return account.find(number, webhook_url=urls["twilio"], status_url=urls["twilio status"])


def _telnyx(loaded: Settings, number: str) -> Redirection:
    if loaded.telnyx_api_key is None:
        raise SettingsError("set TELNYX_API_KEY and TELNYX_PUBLIC_KEY; the Telnyx portal shows both")
    account = TelnyxAccount(api_url=loaded.telnyx_api_url, api_key=loaded.telnyx_api_key)
    return account.find(number, webhook_url=webhook_urls(loaded.public_url)["telnyx"])


def _json(redirection: Redirection, dry_run: bool) -> str:
    changes = [asdict(change) for change in redirection.changes]
    changed = bool(changes) and not dry_run
    return orjson.dumps({"number": redirection.number, "changed": changed, "changes": changes}).decode()


def _text(redirection: Redirection, dry_run: bool) -> str:
    if not redirection.changes:
        return f"{redirection.number} already points here"
    head = f"{redirection.number} {'would point' if dry_run else 'points'} here now"
    lines = [
        f"  {change.what}: {change.before or '(none)'} -> {change.after or '(none)'}" for change in redirection.changes
    ]
    return "\n".join([head, *lines])
