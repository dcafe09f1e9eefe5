import asyncio
import itertools
import json
import os
import re
import shutil
import sqlite3
import sys
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import StoreUnavailable
from gateway.memory.embeddings import minilm
from gateway.memory.embeddings.embedder import Embedder
from gateway.memory.knowledge import (
    MOST_FILE_BYTES,
    PASSAGE_CHARACTERS,
    Knowledge,
    Passage,
    examine_folder,
    passages_of,
    rendered,
)
from gateway.memory.stores.documents import NewDocument
from gateway.memory.stores.sqlite import SqliteStore

CAMPSITE = Path(__file__).parent.parent / "data" / "knowledge"
RETURNS = """# Orders

We ship on workdays.

## Returns

Send it back within 30 days. Refunds reach your card in a week.

## Opening hours

The shop opens at nine.
"""


@asynccontextmanager
async def opened(path, folders):
    knowledge = await Knowledge.open(path, folders)
    try:
        yield knowledge
    finally:
        await knowledge.close()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "maya"
    folder.mkdir()
    return folder


@pytest.fixture
async def knowledge(tmp_path, folder):
    async with opened(tmp_path / "knowledge.db", {"maya": folder}) as knowledge:
        yield knowledge


async def found(knowledge, text, agent="maya"):
    return [passage.text for passage in await knowledge.search(agent, text)]


async def stopped(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def skipped(caplog):
    return [(record.file, record.reason) for record in caplog.records if record.message == "knowledge file skipped"]


# Search


async def test_passage_is_found_by_words_in_another_form(knowledge, folder):
    (folder / "shop.md").write_text(RETURNS)
    await knowledge.refresh()
    assert await knowledge.search("maya", "how do I get refunded when returning an order?", limit=1) == [
        Passage(
            "shop.md > Orders > Returns",
            "Send it back within 30 days. Refunds reach your card in a week.",
            "shop.md",
        )
    ]


async def test_headings_are_searched_too(knowledge, folder):
    (folder / "shop.md").write_text(RETURNS)
    await knowledge.refresh()
    assert await found(knowledge, "opening hour") == ["The shop opens at nine."]


async def test_nothing_unrelated_is_returned(knowledge, folder):
    (folder / "shop.md").write_text(RETURNS)
    await knowledge.refresh()
    assert await found(knowledge, "giraffe") == []
    assert await found(knowledge, "") == []


async def test_limit_is_kept(knowledge, folder):
    for number in range(30):
        (folder / f"{number}.txt").write_text("kettle")
    await knowledge.refresh()
    assert len(await knowledge.search("maya", "kettles")) == 5
    assert len(await knowledge.search("maya", "kettles", limit=2)) == 2
    assert len(await knowledge.search("maya", "kettles", limit=1000)) == 20


async def test_agents_never_see_each_others_passages(tmp_path):
    folders = {name: tmp_path / name for name in ("maya", "otto")}
    for name, folder in folders.items():
        folder.mkdir()
        (folder / "kettle.txt").write_text(f"the kettle of {name}")
    async with opened(tmp_path / "knowledge.db", folders) as knowledge:
        await knowledge.refresh()
        (folders["maya"] / "kettle.txt").unlink()
        (folders["otto"] / "kettle.txt").write_text("the new kettle of otto")
        await knowledge.refresh()
        assert await found(knowledge, "kettle", "otto") == ["the new kettle of otto"]
        assert await found(knowledge, "kettle", "maya") == []
        assert await found(knowledge, "kettle", "nobody") == []


# Files that come, change and go


async def test_changed_file_replaces_its_passages(knowledge, folder):
    (folder / "shop.md").write_text(RETURNS)
    await knowledge.refresh()
    (folder / "shop.md").write_text("# Orders\n\nNothing can be returned.")
    await knowledge.refresh()
    assert await found(knowledge, "returns refund") == ["Nothing can be returned."]
    assert await found(knowledge, "opening") == []


async def test_deleted_file_leaves(knowledge, folder):
    (folder / "shop.md").write_text("kettle")
    await knowledge.refresh()
    (folder / "shop.md").unlink()
    await knowledge.refresh()
    assert await found(knowledge, "kettle") == []


async def test_renamed_file_is_found_under_its_new_name(knowledge, folder):
    (folder / "shop.md").write_text("kettle")
    await knowledge.refresh()
    (folder / "deep").mkdir()
    (folder / "shop.md").rename(folder / "deep" / "store.md")
    await knowledge.refresh()
    assert await knowledge.search("maya", "kettle") == [Passage("deep/store.md", "kettle", "deep/store.md")]


async def test_touched_file_is_not_indexed_twice(knowledge, folder):
    (folder / "shop.md").write_text("kettle")
    await knowledge.refresh()
    os.utime(folder / "shop.md", ns=(1, 1))
    await knowledge.refresh()
    assert await found(knowledge, "kettle") == ["kettle"]


async def test_changes_while_closed_are_noticed(tmp_path, folder):
    (folder / "stays.md").write_text("kettle one")
    (folder / "changes.md").write_text("kettle two")
    (folder / "goes.md").write_text("kettle three")
    async with opened(tmp_path / "knowledge.db", {"maya": folder}) as knowledge:
        await knowledge.refresh()
    (folder / "changes.md").write_text("kettle four")
    (folder / "goes.md").unlink()
    async with opened(tmp_path / "knowledge.db", {"maya": folder}) as knowledge:
        await knowledge.refresh()
        assert sorted(await found(knowledge, "kettle")) == ["kettle four", "kettle one"]


async def test_passages_of_an_older_version_are_made_again(tmp_path, folder):
    old = ("CREATE TABLE knowledge_files (agent TEXT, name TEXT)",)
    store = await SqliteStore.open(tmp_path / "knowledge.db", schema=old)
    await store.create(NewDocument("shop.md", "kettle", "shop.md", ("knowledge", "agent:maya")))
    await store.close()
    (folder / "shop.md").write_text("kettle")
    async with opened(tmp_path / "knowledge.db", {"maya": folder}) as knowledge:
        await knowledge.refresh()
        assert await found(knowledge, "kettle") == ["kettle"]


async def test_agent_without_folder_loses_its_passages(tmp_path, folder):
    (folder / "shop.md").write_text("kettle")
    async with opened(tmp_path / "knowledge.db", {"maya": folder}) as knowledge:
        await knowledge.refresh()
    async with opened(tmp_path / "knowledge.db", {}) as knowledge:
        await knowledge.refresh()
        assert await found(knowledge, "kettle") == []


async def test_missing_folder_holds_nothing_until_it_comes(tmp_path, folder):
    folder.rmdir()
    async with opened(tmp_path / "knowledge.db", {"maya": folder}) as knowledge:
        await knowledge.refresh()
        assert await found(knowledge, "kettle") == []
        folder.mkdir()
        (folder / "shop.md").write_text("kettle")
        await knowledge.refresh()
        assert await found(knowledge, "kettle") == ["kettle"]


async def test_search_during_refresh_sees_whole_files(knowledge, folder):
    """A file answers from its old state or its new one, never from half of either."""
    for word in ("old", "new"):
        for number in range(20):
            (folder / f"{number}.md").write_text(f"# One\n\n{word}{number}\n\n# Two\n\n{word}{number}")
        refresh = asyncio.create_task(knowledge.refresh())
        while word == "new" and not refresh.done():
            assert await found(knowledge, "old9 new9") in (["old9", "old9"], ["new9", "new9"])
        await refresh
    assert await found(knowledge, "old9 new9") == ["new9", "new9"]


async def test_watch_takes_in_changes_until_cancelled(knowledge, folder):
    watch = asyncio.create_task(knowledge.watch(0.001))
    (folder / "shop.md").write_text("kettle")
    while not await found(knowledge, "kettle"):
        await asyncio.sleep(0.001)
    (folder / "shop.md").unlink()
    while await found(knowledge, "kettle"):
        await asyncio.sleep(0.001)
    await stopped(watch)


async def test_watch_survives_a_failing_store(knowledge, folder, caplog):
    await knowledge.close()
    watch = asyncio.create_task(knowledge.watch(0.001))
    while len(caplog.records) < 2:
        await asyncio.sleep(0.001)
    assert {record.message for record in caplog.records} == {"knowledge can't be refreshed"}
    await stopped(watch)
    with pytest.raises(StoreUnavailable):
        await knowledge.refresh()


# Files that are of no use


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"caf\xe9", "not UTF-8 text"),
        (b"kettle\0", "not UTF-8 text"),
        (b"kettle " * (MOST_FILE_BYTES // 7 + 1), "larger than 2 MB"),
    ],
)
async def test_useless_file_is_skipped_and_named_once(knowledge, folder, caplog, content, reason):
    (folder / "a.txt").write_text("kettle")
    (folder / "b.txt").write_bytes(b"kettle in its better days")
    await knowledge.refresh()
    for more in (b"", b" "):
        (folder / "b.txt").write_bytes(content + more)
        await knowledge.refresh()
    assert skipped(caplog) == [("b.txt", reason)]
    assert await found(knowledge, "kettle") == ["kettle"]


async def test_repaired_file_comes_back(knowledge, folder, caplog):
    (folder / "a.txt").write_bytes(b"kettle \xff")
    await knowledge.refresh()
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbfkettle")
    await knowledge.refresh()
    assert await found(knowledge, "kettle") == ["kettle"]
    assert len(skipped(caplog)) == 1


async def test_only_visible_text_files_are_read(knowledge, folder, caplog):
    for name in (".hidden.md", "page.docx", ".git/notes.md", "notes.md~", "folder.md/inner.MARKDOWN"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("kettle")
    os.mkfifo(folder / "pipe.txt")
    for _ in range(2):
        await knowledge.refresh()
    assert [passage.source for passage in await knowledge.search("maya", "kettle")] == ["folder.md/inner.MARKDOWN"]
    reason = "not a text, Markdown, HTML or PDF file"
    assert skipped(caplog) == [("notes.md~", reason), ("page.docx", reason)]


async def test_links_lead_nowhere_outside(knowledge, folder, tmp_path):
    """A link inside the folder is followed: that is how Kubernetes mounts files."""
    (tmp_path / "maya-secret").mkdir()
    (tmp_path / "maya-secret" / "plan.md").write_text("secret kettle")
    (folder / "..data").mkdir()
    (folder / "..data" / "shop.md").write_text("kettle")
    (folder / "shop.md").symlink_to("..data/shop.md")
    (folder / "plan.md").symlink_to(tmp_path / "maya-secret" / "plan.md")
    (folder / "plans").symlink_to(tmp_path / "maya-secret")
    (folder / "loop.md").symlink_to("loop.md")
    (folder / "gone.md").symlink_to("nothing.md")
    await knowledge.refresh()
    assert await knowledge.search("maya", "kettle") == [Passage("shop.md", "kettle", "shop.md")]


async def test_name_that_is_not_unicode_does_no_harm(knowledge, folder):
    try:
        (folder / os.fsdecode(b"caf\xe9.md")).write_text("kettle")
    except OSError:
        pytest.skip("this file system takes only Unicode names")
    await knowledge.refresh()
    assert [passage.source for passage in await knowledge.search("maya", "kettle")] == ["caf\ufffd.md"]


# HTML and PDF


def test_html_is_read_as_its_visible_text():
    page = """<head><title>Shop</title><style>p { color: red }</style></head><nav>Home</nav>
        <h1>Caf&eacute;</h1><p>Open <b>daily</b>,<br>from nine.</p><h2>Food</h2><ul><li>Tea</li><li>Cake</li></ul>
        <script>if (1 < 2) alert("no")</script>"""
    assert passages_of("cafe.html", page) == [
        Passage("cafe.html > Café", "Open daily,\nfrom nine.", "cafe.html"),
        Passage("cafe.html > Café > Food", "Tea\nCake", "cafe.html"),
    ]


async def test_pdf_is_read_page_by_page(knowledge, folder):
    shutil.copy(CAMPSITE / "campsite" / "terms.pdf", folder)
    await knowledge.refresh()
    (passage,) = await knowledge.search("maya", "complaints", limit=1)
    assert passage.title == "terms.pdf > page 2"
    assert passage.text.startswith("Complaints. Speak to a warden at once, so that we can put it right. If that fails,")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"%PDF-1.4 and no more", "not a PDF file that can be read"),
        (b"%PDF-" + b"x" * 20_000_000, "larger than 20 MB"),
    ],
)
async def test_useless_pdf_is_skipped(knowledge, folder, caplog, content, reason):
    (folder / "a.pdf").write_bytes(content)
    await knowledge.refresh()
    assert skipped(caplog) == [("a.pdf", reason)]


async def test_missing_pdf_reader_is_named(knowledge, folder, caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "pypdf", None)  # as if it were not installed
    shutil.copy(CAMPSITE / "campsite" / "terms.pdf", folder)
    await knowledge.refresh()
    ((file, reason),) = skipped(caplog)
    assert (file, reason.partition(";")[0]) == ("terms.pdf", "PDF files need the extra pdf")


# By meaning


async def test_paraphrases_are_found(tmp_path):
    """Questions in other words than the files: `scripts/memory-bench tests/data/knowledge` has the exact figures."""
    lines = (CAMPSITE / "questions.jsonl").read_text().splitlines()
    questions = [json.loads(line) for line in lines]
    folders = {"maya": CAMPSITE / "campsite"}
    knowledge = await Knowledge.open(tmp_path / "knowledge.db", folders, embedder=Embedder(minilm.load))
    await knowledge.refresh()
    with closing(sqlite3.connect(tmp_path / "knowledge.db")) as database:
        while database.execute("SELECT 1 FROM unembedded_documents").fetchone():
            await asyncio.sleep(0.05)
    ranks = []
    for question in questions:
        texts = [" ".join(text.split()) for text in await found(knowledge, question["question"])]
        ranks.append(next((rank for rank, text in enumerate(texts) if question["passage"] in text), 5))
    await knowledge.close()
    assert len(questions) > 60
    assert sum(rank < 5 for rank in ranks) / len(ranks) > 0.85
    assert ranks[:3] == [0, 0, 0], "dog, puppy, flat tyre"


# Passages


def test_title_is_the_path_of_headings():
    text = "intro\n# A\na\n### B ###\nb\n## C#\nc\n# D\nd"
    assert [(passage.title, passage.text) for passage in passages_of("f.md", text)] == [
        ("f.md", "intro"),
        ("f.md > A", "a"),
        ("f.md > A > B", "b"),
        ("f.md > A > C#", "c"),
        ("f.md > D", "d"),
    ]


def test_comment_in_code_is_no_heading():
    text = "# Set-up\n```sh\n# install\n```\n```inline```\n# Next\nrun"
    assert [passage.title for passage in passages_of("f.md", text)] == ["f.md > Set-up", "f.md > Next"]


def test_heading_in_plain_text_is_text():
    assert passages_of("f.txt", "# one\r\ntwo") == [Passage("f.txt", "# one\ntwo", "f.txt")]


def test_heading_without_text_is_its_own_passage():
    text = "# Hours\n## Closed on Mondays\n## Open on Sundays"
    assert [passage.text for passage in passages_of("f.md", text)] == ["Closed on Mondays", "Open on Sundays"]


def test_short_paragraphs_share_a_passage():
    paragraphs = [f"{number} " + "x" * 298 for number in range(4)]
    passages = passages_of("f.txt", "\n\n\n".join(paragraphs))
    assert [passage.text for passage in passages] == ["\n\n".join(paragraphs[:2]), "\n\n".join(paragraphs[2:])]


def test_long_paragraph_is_cut_after_a_sentence():
    sentence = "word " * 50 + "end. "
    passages = passages_of("f.txt", sentence * 4)
    assert [passage.text for passage in passages] == [(sentence * 3).strip(), sentence.strip()]


@given(
    st.lists(st.tuples(st.sampled_from(["", "# ", "### ", "- ", "```", "\n"]), st.integers(0, 300)), max_size=20),
    st.sampled_from(["f.md", "f.txt"]),
)
def test_no_word_is_lost_and_no_passage_is_long(lines, name):
    numbers = itertools.count()
    text = "\n".join(mark + " ".join(f"w{next(numbers)}" for _ in range(words)) for mark, words in lines)
    passages = passages_of(name, text)
    kept = " ".join(f"{passage.title} {passage.text}" for passage in passages)
    assert all(0 < len(passage.text) <= PASSAGE_CHARACTERS for passage in passages)
    assert set(re.findall(r"w\d+", kept)) == set(re.findall(r"w\d+", text))


def test_text_without_spaces_is_cut_all_the_same():
    passages = passages_of("f.txt", "é" * 2000)
    assert [len(passage.text) for passage in passages] == [800, 800, 400]


# For the agent


def test_passages_are_shown_under_their_titles():
    passages = [Passage("shop.md > Returns", "Within 30 days.", "shop.md"), Passage("faq.txt", "Ask.", "faq.txt")]
    assert rendered(passages) == "[shop.md > Returns]\nWithin 30 days.\n\n[faq.txt]\nAsk."
    assert rendered(passages, 40) == "[shop.md > Returns]\nWithin 30…"
    assert rendered([]) == ""


def test_folder_that_cannot_be_read_is_reported(tmp_path, folder):
    report = examine_folder("maya", tmp_path / "gone", tmp_path / "knowledge.db")
    assert (report.files, report.skipped) == (0, {".": "No such file or directory"})
    assert examine_folder("maya", folder, tmp_path / "knowledge.db").skipped == {}
