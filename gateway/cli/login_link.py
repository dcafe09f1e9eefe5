"""`gateway login-link`: prints a new login link for the dashboard."""

import argparse
import os
from pathlib import Path
from typing import Final

from gateway import settings
from gateway.cli.audit import write_entry
from gateway.errors import SettingsError
from gateway.history.audit_log import AuditAction, AuditNote
from gateway.invocation import command
from gateway.settings import existing_token, is_url, local_url
from gateway.web.login_sessions import LINK_SECONDS, LoginLinks

DESCRIPTION: Final = (
    f"Print a link that logs in to the dashboard, once, within {LINK_SECONDS // 60} minutes. It works with the gateway "
    "that has the same admin token."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", default="", help="the gateway's address (default: PUBLIC_URL, else from HOST and PORT)"
    )


def run(options: argparse.Namespace) -> int:
    given = settings.load(os.environ, Path.cwd())
    url = options.url or given.public_url or local_url(given.host, given.port)
    if not is_url(url, ("https", "http")):
        raise SettingsError(f"--url is {url!r}; write it like https://voice.example.com")
    token = existing_token(given)
    if token is None:
        how = f"start one with `{command('serve')}`, or set GATEWAY_ADMIN_TOKEN to the token of the one at {url}"
        raise SettingsError(f"no gateway has been started with DATA_DIR={given.data_dir}; {how}")
    write_entry(given, AuditNote(AuditAction.LOGIN_LINK))
    print(f"{url.rstrip('/')}/login?code={LoginLinks(token).make()}")
    return 0
