import asyncio
import os
import stat
import time
import uuid

import pytest

from gateway.finalization.archive import Archive

ID = "3f2a9c1e-0b7d-4a56-9a35-0c8f6d1b2e77"
DAY = 86_400


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def kept(folder, name, *, days_old):
    path = folder / name
    path.write_text("CALLER: hello\n")
    then = time.time() - days_old * DAY
    os.utime(path, (then, then))
    return path


@pytest.fixture
def archive(tmp_path):
    return Archive(tmp_path / "deep" / "archive", retention_days=7)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "deep" / "archive"
    path.mkdir(parents=True)
    return path


async def test_text_is_kept_as_given(archive, folder):
    assert await archive.write(ID, "CALLER: Grüß Gott\n")
    path = folder / f"voice-session-{ID}.txt"
    assert path.read_text(encoding="utf-8") == "CALLER: Grüß Gott\n"


async def test_folder_and_file_are_private(archive, tmp_path):
    await archive.write(ID, "text")
    path = archive.path_of(ID)
    assert (mode(path.parent), mode(path)) == (0o700, 0o600)


async def test_open_folder_is_closed_to_others(archive, folder):
    folder.chmod(0o755)
    await archive.write(ID, "text")
    assert mode(folder) == 0o700


async def test_link_in_place_of_a_file_is_not_followed(archive, folder, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("keep this")
    archive.path_of(ID).with_suffix(".part").symlink_to(victim)
    with pytest.raises(OSError):
        await archive.write(ID, "text")
    assert victim.read_text() == "keep this"


async def test_repeating_replaces_the_file_whole(archive, folder):
    await archive.write(ID, "a long first text\n")
    assert await archive.write(ID, "short\n")
    assert archive.path_of(ID).read_text() == "short\n"
    assert list(folder.iterdir()) == [archive.path_of(ID)]


@pytest.mark.parametrize("shorter", ["AGENT: Hi.\n", "AGENT: Hi.\nCALLER: Chains, plea\n", "AGENT: Hello.\n", ""])
async def test_longer_transcript_stays(archive, folder, shorter):
    """A node that comes back with less than others have written since changes nothing."""
    whole = "AGENT: Hi.\nCALLER: Chains, please.\n"
    await archive.write(ID, whole)
    assert not await archive.write(ID, shorter)
    assert archive.path_of(ID).read_text() == whole
    assert list(folder.iterdir()) == [archive.path_of(ID)]


@pytest.mark.parametrize("other", ["AGENT: Hi.\nCALLER: [card]\n", "AGENT: Hi.\nCALLER: Chains —\n"])
async def test_same_turns_in_other_words_replace(archive, other):
    await archive.write(ID, "AGENT: Hi.\nCALLER: Chains, please.\n")
    assert await archive.write(ID, other)
    assert archive.path_of(ID).read_text() == other


async def test_longest_of_many_writers_stays(archive, folder):
    """The last writer wins; a partial file of a killed process does not matter."""
    folder.joinpath(f"voice-session-{ID}.part").write_text("AGENT: a long text that was never finished\n" * 9)
    texts = ["CALLER: hm\n" * turns for turns in (3, 20, 1, 12, 19, 7, 2, 20, 5)]
    await asyncio.gather(*(Archive(folder, retention_days=7).write(ID, text) for text in texts * 5))
    assert archive.path_of(ID).read_text() == max(texts, key=len)
    assert list(folder.iterdir()) == [archive.path_of(ID)]


async def test_failed_write_keeps_the_old_file(archive, folder):
    await archive.write(ID, "whole\n")
    path = archive.path_of(ID)
    path.with_suffix(".part").mkdir()
    with pytest.raises(OSError):
        await archive.write(ID, "other\n")
    assert path.read_text() == "whole\n"


async def test_folder_that_is_a_file_is_an_os_error(tmp_path):
    (tmp_path / "archive").write_text("")
    with pytest.raises(OSError):
        await Archive(tmp_path / "archive", retention_days=7).write(ID, "text")


# Retention


async def test_only_old_transcripts_are_deleted(archive, folder):
    old = kept(folder, f"voice-session-{ID}.txt", days_old=7.01)
    young = kept(folder, f"voice-session-{uuid.uuid4()}.txt", days_old=6.99)
    assert await archive.delete_old() == 1
    assert not old.exists()
    assert young.exists()


async def test_foreign_files_are_left_alone(archive, folder):
    names = ["notes.txt", f"voice-session-{ID}.txt.bak", "voice-session-short.txt", f"my-voice-session-{ID}.txt"]
    foreign = [kept(folder, name, days_old=400) for name in names]
    assert await archive.delete_old() == 0
    assert all(path.exists() for path in foreign)


async def test_zero_days_keep_everything(folder):
    old = kept(folder, f"voice-session-{ID}.txt", days_old=400)
    assert await Archive(folder, retention_days=0).delete_old() == 0
    assert old.exists()


async def test_missing_folder_has_nothing_old(tmp_path):
    assert await Archive(tmp_path / "none", retention_days=7).delete_old() == 0
    assert not (tmp_path / "none").exists()
