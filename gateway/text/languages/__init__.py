"""
Data by language, one TOML file each: words for symbols (`speech`), phrases of callers (`voice_commands`), how facts are
compared (`claims`), how callers state them (`statements`), and, in English only, the words of topic names (`topics`).
"""

import re
import tomllib
from functools import lru_cache
from importlib import resources
from typing import Any, Final

LANGUAGES: Final = ("en", "de", "es", "fr")


@lru_cache(maxsize=64)
def load_language(language: str) -> dict[str, Any] | None:
    """The data for a language tag such as `en` or `de-AT`; None for an unknown language."""
    tag = language.lower().replace("_", "-")
    for name in (tag, tag.partition("-")[0]):
        file = resources.files("gateway.text.languages") / f"{name}.toml"
        if re.fullmatch("[a-z0-9-]+", name) and file.is_file():
            return tomllib.loads(file.read_text(encoding="utf-8"))
    return None
