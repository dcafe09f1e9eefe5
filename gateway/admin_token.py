"""The admin token: from the settings, or made at the first start and stored under DATA_DIR."""

import os
import secrets
from typing import Final

from gateway.errors import SettingsError
from gateway.settings import Secret, Settings

FILE: Final = "admin-token"


def admin_token(settings: Settings) -> Secret:
    """The token in use. Makes DATA_DIR with mode 0700; raises SettingsError if that fails."""
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.data_dir.chmod(0o700)
        return settings.gateway_admin_token or _kept(settings)
    except UnicodeDecodeError:
        raise SettingsError(f"{settings.data_dir / FILE} is not text; delete it, and a new one is made") from None
    except OSError as error:
        problem = error.strerror or type(error).__name__
        raise SettingsError(
            f"DATA_DIR {settings.data_dir} can't be used: {problem}; set DATA_DIR to a folder of yours"
        ) from None


def kept_token(settings: Settings) -> Secret | None:
    """The token that an earlier start has made; None if there is no file, or it can't be read."""
    try:
        return Secret((settings.data_dir / FILE).read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError):
        return None


def _kept(settings: Settings) -> Secret:
    path = settings.data_dir / FILE
    if path.is_file() and (kept := path.read_text(encoding="utf-8").strip()):
        return Secret(kept)
    made = secrets.token_urlsafe(32)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(made + "\n")
    return Secret(made)
