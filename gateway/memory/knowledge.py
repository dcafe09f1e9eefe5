"""
The knowledge of agents: folders of text and Markdown files, split into passages and searched like memory.

The passages are in a database of their own. A file is updated in one transaction: a search sees all of its old
passages or all of its new ones.
"""

import asyncio
import hashlib
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from gateway.errors import StoreUnavailable
from gateway.memory.stores.database import Connection
from gateway.memory.stores.documents import NewDocument, carrying, create_document
from gateway.memory.stores.sqlite import SqliteStore

MOST_FILE_BYTES: Final = 2_000_000
PASSAGE_CHARACTERS: Final = 800

_MOST_PASSAGES: Final = 20
_FOUND_SCORE: Final = 0.01  # the store adds documents that do not match, with a tenth of this score
_MARKDOWN: Final = (".md", ".markdown")
_SUFFIXES: Final = (".txt", *_MARKDOWN)
_HEADING: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*?)(?:[ \t]+#+)?[ \t]*")
_LONGEST_HEADING: Final = 200  # characters; a longer line is text
_FENCE: Final = re.compile(r"\s*(?:`{3,}[^`]*$|~{3})")

_SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS knowledge_files (
        agent TEXT NOT NULL,
        name TEXT NOT NULL,
        modified_ns INTEGER NOT NULL,
        changed_ns INTEGER NOT NULL,
        size INTEGER NOT NULL,
        digest TEXT NOT NULL,
        PRIMARY KEY (agent, name)) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS documents_by_file ON documents (source)",
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a file. `title` is the file name and the headings above the piece, `source` the path in the folder."""

    title: str
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class _File:
    agent: str
    name: str
    """Its path inside the agent's folder."""


@dataclass(frozen=True, slots=True)
class _Stamp:
    """Shows, without reading the file, that it may have changed. The change time also covers a chmod."""

    modified_ns: int
    changed_ns: int
    size: int


@dataclass(frozen=True, slots=True)
class _Found:
    path: Path
    stamp: _Stamp


@dataclass(frozen=True, slots=True)
class _Skipped:
    stamp: _Stamp
    reason: str


@dataclass(frozen=True, slots=True)
class _Section:
    headings: tuple[str, ...]
    body: str


class Knowledge:
    """The searchable folders of all agents. Made by `open`; `close` it. Raises StoreUnavailable."""

    def __init__(self, store: SqliteStore, folders: Mapping[str, Path]) -> None:
        self._store = store
        self._folders = folders
        self._seen: dict[_File, _Found] | None = None
        self._skipped: dict[_File, _Skipped] = {}
        self._refreshing = asyncio.Lock()

    @classmethod
    async def open(cls, path: Path, folders: Mapping[str, Path]) -> Self:
        """Open the database at `path`. `folders` holds a folder for each agent that has one. Reads no file yet."""
        return cls(await SqliteStore.open(path, schema=_SCHEMA), folders)

    async def close(self) -> None:
        await self._store.close()

    async def search(self, agent: str, text: str, limit: int = 5) -> list[Passage]:
        """The agent's passages that match `text`, best first. A refresh delays it by one file at most."""
        hits = await self._store.query(text, limit=min(limit, _MOST_PASSAGES), tags=_tags(agent))
        documents = [hit.document for hit in hits if hit.score > _FOUND_SCORE]
        return [Passage(document.title, document.content, document.source) for document in documents]

    async def refresh(self) -> None:
        """Index what changed in the folders since the last refresh. Cheap if nothing did."""
        async with self._refreshing:
            found = await asyncio.to_thread(_scan, self._folders)
            if found == self._seen:
                return
            known = await self._store.run(_known)
            for file in (known.keys() | self._skipped.keys()) - found.keys():
                await self._remove(file)
            for file, now in found.items():
                before = self._skipped.get(file)
                if now.stamp != (before.stamp if before else known.get(file)):
                    await self._index(file, now)
            self._seen = found

    async def watch(self, seconds: float) -> None:
        """Refresh at this interval, until cancelled."""
        while True:
            try:
                await self.refresh()
            except StoreUnavailable as error:
                _log.warning("knowledge can't be refreshed", extra={"reason": str(error)})
            await asyncio.sleep(seconds)

    async def _index(self, file: _File, found: _Found) -> None:
        try:
            digest, passages = await asyncio.to_thread(_read, found.path, file.name)
        except FileNotFoundError:
            return  # deleted since it was found; the next refresh removes it
        except OSError as error:
            await self._skip(file, found.stamp, error.strerror or type(error).__name__)
        except ValueError as problem:
            await self._skip(file, found.stamp, str(problem))
        else:
            await self._store.run(lambda connection: _keep(connection, file, found.stamp, digest, passages))
            self._skipped.pop(file, None)

    async def _skip(self, file: _File, stamp: _Stamp, reason: str) -> None:
        """Leave this file out. Logged once per reason, however often the file changes."""
        before = self._skipped.get(file)
        if before is None or before.reason != reason:
            _log.warning("knowledge file skipped", extra={"agent": file.agent, "file": file.name, "reason": reason})
        await self._remove(file)
        self._skipped[file] = _Skipped(stamp, reason)

    async def _remove(self, file: _File) -> None:
        await self._store.run(lambda connection: _drop(connection, file))
        self._skipped.pop(file, None)


def rendered(passages: Iterable[Passage], max_characters: int = 2500) -> str:
    """The passages as text for an agent, each below its title, truncated at the end."""
    text = "\n\n".join(f"[{passage.title}]\n{passage.text}" for passage in passages)
    return text if len(text) <= max_characters else text[: max_characters - 1].rsplit(" ", 1)[0] + "…"


# Files


def _scan(folders: Mapping[str, Path]) -> dict[_File, _Found]:
    """Every text file. Unreadable ones are left out."""
    found = {}
    for agent, folder in folders.items():
        root = Path(os.path.realpath(folder))
        for path in _text_files(root):
            if stamp := _stamp(path, root):
                # File names may not be valid Unicode; text in the database must be.
                name = os.fsencode(path.relative_to(root).as_posix()).decode(errors="replace")
                found[_File(agent, name)] = _Found(path, stamp)
    return found


def _text_files(root: Path) -> Iterator[Path]:
    for directory, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            if name.lower().endswith(_SUFFIXES) and not name.startswith("."):
                yield Path(directory, name)


def _stamp(path: Path, root: Path) -> _Stamp | None:
    """None for anything but a regular file, and for links that leave the folder."""
    try:
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
            return None
        status = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return _Stamp(status.st_mtime_ns, status.st_ctime_ns, status.st_size)


def _read(path: Path, name: str) -> tuple[str, list[Passage]]:
    """The file's digest and passages. Raises OSError, or ValueError with the reason why it can't be used."""
    with path.open("rb") as file:
        content = file.read(MOST_FILE_BYTES + 1)
    if len(content) > MOST_FILE_BYTES:
        raise ValueError(f"larger than {MOST_FILE_BYTES // 1_000_000} MB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    if "\0" in text:
        raise ValueError("not UTF-8 text")
    return hashlib.blake2b(content).hexdigest(), passages_of(name, text)


# Passages


def passages_of(name: str, text: str) -> list[Passage]:
    """Split a file at its headings, and below them at paragraphs, into pieces of up to 800 characters."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    sections = list(_sections(lines)) if name.lower().endswith(_MARKDOWN) else [_Section((), "\n".join(lines))]
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


def _known(connection: Connection) -> dict[_File, _Stamp]:
    rows = connection.execute("SELECT agent, name, modified_ns, changed_ns, size FROM knowledge_files")
    return {_File(agent, name): _Stamp(*stamp) for agent, name, *stamp in rows}


def _keep(connection: Connection, file: _File, stamp: _Stamp, digest: str, passages: Iterable[Passage]) -> None:
    """Replace the file's passages, unless its content is the same."""
    row = connection.execute("SELECT digest FROM knowledge_files WHERE agent = ? AND name = ?", (file.agent, file.name))
    if row.fetchone() != (digest,):
        _drop(connection, file)
        moment = datetime.now(UTC)
        for passage in passages:
            new = NewDocument(passage.title, passage.text, passage.source, _tags(file.agent))
            create_document(connection, new, moment)
    connection.execute(
        "INSERT OR REPLACE INTO knowledge_files VALUES (?, ?, ?, ?, ?, ?)",
        (file.agent, file.name, stamp.modified_ns, stamp.changed_ns, stamp.size, digest),
    )


def _drop(connection: Connection, file: _File) -> None:
    connection.execute("DELETE FROM knowledge_files WHERE agent = ? AND name = ?", (file.agent, file.name))
    tagged, tokens = carrying(_tags(file.agent)[1])
    connection.execute(f"DELETE FROM documents WHERE source = ? AND {tagged}", (file.name, *tokens))
