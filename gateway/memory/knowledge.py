"""
The knowledge of agents: folders of text, Markdown, HTML and PDF files, split into passages and searched like memory.

The passages are in a database of their own. A file is updated in one transaction: a search sees all of its old
passages or all of its new ones.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import re
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Final, NamedTuple, Self
from urllib.parse import quote

from gateway import extras
from gateway.errors import StoreUnavailable
from gateway.file_stamp import FileStamp
from gateway.memory.embeddings.embedder import Embedder
from gateway.memory.stores.database import Connection, Migration, Schema, tables
from gateway.memory.stores.documents import NewDocument, carrying, create_document
from gateway.memory.stores.ranking import RankingOptions
from gateway.memory.stores.sqlite import SqliteStore

MOST_FILE_BYTES: Final = 2_000_000
PASSAGE_CHARACTERS: Final = 800

_MOST_PDF_BYTES: Final = 20_000_000
_PDF_SECONDS: Final = 60.0
_MOST_PASSAGES: Final = 20
_FOUND_SCORE: Final = 0.01  # the store adds documents that do not match, with a tenth of this score
_MARKDOWN: Final = (".md", ".markdown")
_HTML: Final = (".html", ".htm")
_HEADING: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*?)(?:[ \t]+#+)?[ \t]*")
_LONGEST_HEADING: Final = 200  # characters; a longer line is text
_FENCE: Final = re.compile(r"\s*(?:`{3,}[^`]*$|~{3})")
_HEADINGS: Final = ("h1", "h2", "h3", "h4", "h5", "h6")
_INLINE: Final = "a abbr b code em i img mark q s small span strong sub sup u".split()
_LINES: Final = ("br", "li", "tr")
_INVISIBLE: Final = ("nav", "script", "style", "template", "title")
_WRAPPED_LINE: Final = re.compile(r"(?<![.!?:\n])\n(?=\S)")

# Callers ask in other words than files answer, and age does not count. An agent can judge if a passage is of use.
_RANKING: Final = RankingOptions(half_life_days=0, meaning=3.0, near=-1.0)

_SCHEMA: Final[Schema] = (
    *tables("knowledge"),
    Migration("knowledge_files", "DELETE FROM documents"),  # its passages had no headings; all files are read again
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a file. `title` is the file name and the headings above the piece, `source` the path in the folder."""

    title: str
    text: str
    source: str


class _File(NamedTuple):
    agent: str
    name: str
    """Its path inside the agent's folder."""


class _Section(NamedTuple):
    headings: tuple[str, ...]
    body: str


class Knowledge:
    """The searchable folders of all agents. Made by `open`; `close` it. Raises StoreUnavailable."""

    def __init__(self, store: SqliteStore, folders: Mapping[str, Path]) -> None:
        self._store = store
        self._folders = folders
        self._seen: dict[_File, tuple[Path, FileStamp]] | None = None
        self._skipped: dict[_File, tuple[FileStamp, str]] = {}
        self._refreshing = asyncio.Lock()

    @classmethod
    async def open(cls, path: Path, folders: Mapping[str, Path], *, embedder: Embedder | None = None) -> Self:
        """
        Open the database at `path`. `folders` holds a folder for each agent that has one. Reads no file yet.

        With an embedder, which is closed with it, passages are also found by meaning.
        """
        return cls(await SqliteStore.open(path, schema=_SCHEMA, embedder=embedder, ranking=_RANKING), folders)

    async def close(self) -> None:
        await self._store.close()

    async def search(self, agent: str, text: str, limit: int = 5) -> list[Passage]:
        """The agent's passages that match `text`, best first. A refresh delays it by one file at most."""
        hits = await self._store.query(text, limit=min(limit, _MOST_PASSAGES), tags=_tags(agent))
        documents = [hit.document for hit in hits if hit.score > _FOUND_SCORE]
        # The first line is for the search alone: the file and the headings, which are in the title.
        return [Passage(found.title, found.content.partition("\n")[2], found.source) for found in documents]

    async def refresh(self) -> None:
        """Index what changed in the folders since the last refresh. Cheap if nothing did."""
        async with self._refreshing:
            found = await asyncio.to_thread(_scan, self._folders)
            if found == self._seen:
                return
            query = "SELECT agent, name, modified_ns, changed_ns, size FROM knowledge_sources"
            rows = await self._store.look(lambda connection: connection.execute(query).fetchall())
            known = {_File(agent, name): FileStamp(*stamp) for agent, name, *stamp in rows}
            for file in (known.keys() | self._skipped.keys()) - found.keys():
                await self._remove(file)
            for file, (path, stamp) in found.items():
                if stamp != (self._skipped[file][0] if file in self._skipped else known.get(file)):
                    await self._index(file, path, stamp)
            self._seen = found

    async def watch(self, seconds: float) -> None:
        """Refresh at this interval, until cancelled."""
        while True:
            try:
                await self.refresh()
            except StoreUnavailable as error:
                _log.warning("knowledge can't be refreshed", extra={"reason": str(error)})
            await asyncio.sleep(seconds)

    async def _index(self, file: _File, path: Path, stamp: FileStamp) -> None:
        try:
            digest, passages = await asyncio.to_thread(_read, path, file.name)
        except FileNotFoundError:
            return  # deleted since it was found; the next refresh removes it
        except (OSError, ValueError) as error:
            reason = error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)
            _, before = self._skipped.get(file, (None, ""))
            if before != reason:  # logged once per reason, however often the file changes
                _log.warning("knowledge file skipped", extra={"agent": file.agent, "file": file.name, "reason": reason})
            await self._remove(file)
            self._skipped[file] = stamp, reason
        else:
            await self._store.run(lambda connection: _keep(connection, file, stamp, digest, passages))
            self._skipped.pop(file, None)

    async def _remove(self, file: _File) -> None:
        await self._store.run(lambda connection: _drop(connection, file))
        self._skipped.pop(file, None)


def rendered(passages: Iterable[Passage], max_characters: int = 2500) -> str:
    """The passages as text for an agent, each below its title, truncated at the end."""
    text = "\n\n".join(f"[{passage.title}]\n{passage.text}" for passage in passages)
    return text if len(text) <= max_characters else text[: max_characters - 1].rsplit(" ", 1)[0] + "…"


@dataclass(frozen=True)
class FolderReport:
    """
    An agent's folder, for `gateway doctor`.

    `skipped` holds the reason for each file, and each folder in it, that can't be used; "." is the folder itself.
    """

    files: int
    passages: int
    indexed: int
    """Files that the index has in their present version."""
    skipped: Mapping[str, str]


def examine_folder(agent: str, folder: Path, database: Path) -> FolderReport:
    """Read every file as `Knowledge.refresh` does, and compare with its index. Changes nothing; blocks."""
    skipped: dict[str, str] = {}

    def skip(error: OSError) -> None:
        skipped[os.path.relpath(error.filename, os.path.realpath(folder))] = error.strerror or type(error).__name__

    found, passages = _scan({agent: folder}, skip), 0
    for file, (path, _) in found.items():
        try:
            passages += len(_read(path, file.name)[1])
        except (OSError, ValueError) as error:
            skipped[file.name] = error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)
    known: dict[str, FileStamp] = {}
    with contextlib.suppress(sqlite3.Error):  # no gateway has run here yet
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True)) as index:
            query = "SELECT name, modified_ns, changed_ns, size FROM knowledge_sources WHERE agent = ?"
            known = {name: FileStamp(*stamp) for name, *stamp in index.execute(query, (agent,))}
    indexed = sum(known.get(file.name) == stamp for file, (_, stamp) in found.items())
    return FolderReport(len(found) - len(skipped.keys() & {file.name for file in found}), passages, indexed, skipped)


# Files


def _scan(
    folders: Mapping[str, Path], on_error: Callable[[OSError], None] | None = None
) -> dict[_File, tuple[Path, FileStamp]]:
    """Every visible file. Folders that can't be read are left out, after `on_error`."""
    found = {}
    for agent, folder in folders.items():
        root = Path(os.path.realpath(folder))
        for directory, subfolders, names in os.walk(root, onerror=on_error):
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            for path in (Path(directory, name) for name in sorted(names) if not name.startswith(".")):
                if stamp := _stamp(path, root):
                    # File names may not be valid Unicode; text in the database must be.
                    name = os.fsencode(path.relative_to(root).as_posix()).decode(errors="replace")
                    found[_File(agent, name)] = path, stamp
    return found


def _stamp(path: Path, root: Path) -> FileStamp | None:
    """None for anything but a regular file, and for links that leave the folder."""
    try:
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
            return None
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return FileStamp.from_status(status)


def _read(path: Path, name: str) -> tuple[str, list[Passage]]:
    """The file's digest and passages. Raises OSError, or ValueError with the reason why it can't be used."""
    suffix = path.suffix.lower()
    if suffix not in (".txt", ".pdf", *_MARKDOWN, *_HTML):
        raise ValueError("not a text, Markdown, HTML or PDF file")
    most = _MOST_PDF_BYTES if suffix == ".pdf" else MOST_FILE_BYTES
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"larger than {most // 1_000_000} MB")
    if suffix == ".pdf":
        return hashlib.blake2b(content).hexdigest(), _passages(name, _pdf_pages(path))
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    if "\0" in text:
        raise ValueError("not UTF-8 text")
    return hashlib.blake2b(content).hexdigest(), passages_of(name, text)


def _pdf_pages(path: Path) -> list[_Section]:
    if not extras.is_installed("pdf"):
        raise ValueError(f"PDF files need the extra pdf; run: {extras.how_to_install('pdf')}")
    command = [sys.executable, "-m", "gateway.memory.pdf_text", str(path)]
    try:
        printed = subprocess.run(command, capture_output=True, check=True, timeout=_PDF_SECONDS).stdout.decode()
    except subprocess.CalledProcessError:
        raise ValueError("not a PDF file that can be read") from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"takes more than {_PDF_SECONDS:.0f} s to read") from None
    if not printed.strip():
        raise ValueError("no text in it; scanned pages are not read")
    pages = [(number, text.strip()) for number, text in enumerate(printed.split("\f"), 1)]
    return [_Section((f"page {number}",), _WRAPPED_LINE.sub(" ", text)) for number, text in pages if text]


class _HtmlText(HTMLParser):
    """Collects the visible text of a page, with headings as in Markdown."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._hidden = 0
        self._pieces: list[str] = []
        self.feed(page)
        self.close()
        self.text = "".join(self._pieces)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in _INVISIBLE
        if tag in _HEADINGS:
            self._pieces.append(f"\n\n{'#' * int(tag[1])} ")
        elif tag not in _INLINE:
            self._pieces.append("\n" if tag in _LINES else "\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(self._hidden - (tag in _INVISIBLE), 0)
        if tag not in (*_INLINE, *_LINES):
            self._pieces.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._pieces.append(re.sub(r"\s+", " ", data))


# Passages


def passages_of(name: str, text: str) -> list[Passage]:
    """Split a file at its headings, and below them at paragraphs, into pieces of up to 800 characters."""
    suffix = Path(name).suffix.lower()
    text = _HtmlText(text).text if suffix in _HTML else text
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    has_headings = suffix in (*_MARKDOWN, *_HTML)
    return _passages(name, list(_sections(lines)) if has_headings else [_Section((), "\n".join(lines))])


def _passages(name: str, sections: Sequence[_Section]) -> list[Passage]:
    return [
        Passage(" > ".join((name, *section.headings)), piece, name)
        for section in _with_bare_headings(sections)
        for piece in _packed(_pieces(section.body))
    ]


def _sections(lines: Iterable[str]) -> Iterator[_Section]:
    headings: dict[int, str] = {}  # by level, from the top down
    body: list[str] = []
    fenced = False
    for line in lines:
        fenced ^= bool(_FENCE.match(line))  # in code, a line that looks like a heading is a comment
        heading = None if fenced or len(line) > _LONGEST_HEADING else _HEADING.fullmatch(line)
        if heading is None:
            body.append(line)
            continue
        yield _Section(tuple(headings.values()), "\n".join(body).strip())
        level = len(heading[1])
        headings = {upper: text for upper, text in headings.items() if upper < level} | {level: heading[2]}
        body = []
    yield _Section(tuple(headings.values()), "\n".join(body).strip())


def _with_bare_headings(sections: Sequence[_Section]) -> Iterator[_Section]:
    """A heading without text below it is a statement of its own: it becomes the body."""
    for section, following in zip(sections, [*sections[1:], _Section((), "")], strict=True):
        depth = len(section.headings)
        if depth and not section.body and following.headings[:depth] != section.headings:
            yield _Section(section.headings, section.headings[-1])
        else:
            yield section


def _pieces(body: str) -> Iterator[str]:
    """The paragraphs, long ones in parts."""
    for paragraph in re.split(r"\n\s*\n", body.strip()):
        start = 0
        while len(paragraph) - start > PASSAGE_CHARACTERS:
            end = _break(paragraph, start)
            yield paragraph[start:end].strip()
            start = end
        yield paragraph[start:].strip()


def _break(paragraph: str, start: int) -> int:
    """Where to split: after a line, else a sentence, else a word."""
    half, end = start + PASSAGE_CHARACTERS // 2, start + PASSAGE_CHARACTERS
    for mark in ("\n", ". ", " "):
        if (place := paragraph.rfind(mark, half, end)) >= 0:
            return place + len(mark)
    return end


def _packed(pieces: Iterable[str]) -> Iterator[str]:
    """Join neighbouring pieces, as many as fit."""
    packed = ""
    for piece in filter(None, pieces):
        if packed and len(packed) + len(piece) + 2 > PASSAGE_CHARACTERS:
            yield packed
            packed = ""
        packed = f"{packed}\n\n{piece}" if packed else piece
    if packed:
        yield packed


# Database


def _tags(agent: str) -> tuple[str, str]:
    return "knowledge", f"agent:{agent}"


def _keep(connection: Connection, file: _File, stamp: FileStamp, digest: str, passages: Iterable[Passage]) -> None:
    """Replace the file's passages, unless its content is the same."""
    row = connection.execute("SELECT digest FROM knowledge_sources WHERE agent = ? AND name = ?", file)
    if row.fetchone() != (digest,):
        _drop(connection, file)
        moment = datetime.now(UTC)
        for passage in passages:
            about = passage.title.replace(file.name, Path(file.name).stem, 1)
            content = f"{about}\n{passage.text}"
            create_document(connection, NewDocument(passage.title, content, file.name, _tags(file.agent)), moment)
    connection.execute("INSERT OR REPLACE INTO knowledge_sources VALUES (?, ?, ?, ?, ?, ?)", (*file, *stamp, digest))


def _drop(connection: Connection, file: _File) -> None:
    connection.execute("DELETE FROM knowledge_sources WHERE agent = ? AND name = ?", file)
    tagged, tokens = carrying(_tags(file.agent)[1])
    connection.execute(f"DELETE FROM documents WHERE source = ? AND {tagged}", (file.name, *tokens))
