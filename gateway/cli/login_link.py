"""`gateway login-link`: prints a new login link for the dashboard."""

import argparse
import os
from pathlib import Path
from typing import Final

from gateway import settings
from gateway.cli.audit import write_entry
from gateway.history.audit_log import AuditAction, AuditNote
from gateway.settings import admin_token, local_url
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
    write_entry(given, AuditNote(AuditAction.LOGIN_LINK))
    print(f"{url.rstrip('/')}/login?code={LoginLinks(admin_token(given)).make()}")
    return 0
