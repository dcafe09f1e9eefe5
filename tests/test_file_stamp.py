import os

from gateway.file_stamp import FileStamp


def test_replaced_file_with_the_same_time_and_size_has_another_stamp(tmp_path):
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_text("old")
    before, status = FileStamp.of(path), path.stat()
    other.write_text("new")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(path)
    assert FileStamp.of(path) != before


def test_missing_file_has_none(tmp_path):
    assert FileStamp.of(tmp_path / "a") is None
