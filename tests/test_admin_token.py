import stat

import pytest

from gateway.errors import SettingsError
from gateway.settings import ADMIN_TOKEN_FILE, Secret, Settings, admin_token, make_folders


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "deep" / "data"


def test_given_token_is_used_and_not_kept(data_dir):
    token = admin_token(Settings(data_dir=data_dir, gateway_admin_token=Secret("given")))
    assert token == Secret("given")
    assert list(data_dir.iterdir()) == []


def test_made_token_is_long_and_kept(data_dir):
    token = admin_token(Settings(data_dir=data_dir))
    assert len(token.reveal()) >= 43
    assert (data_dir / ADMIN_TOKEN_FILE).read_text() == token.reveal() + "\n"
    assert admin_token(Settings(data_dir=data_dir)) == token


def test_each_folder_gets_its_own_token(tmp_path):
    tokens = {admin_token(Settings(data_dir=tmp_path / name)) for name in ("a", "b")}
    assert len(tokens) == 2


def test_folder_and_file_are_private(data_dir):
    admin_token(Settings(data_dir=data_dir))
    assert (mode(data_dir), mode(data_dir / ADMIN_TOKEN_FILE)) == (0o700, 0o600)


def test_open_folder_is_closed_to_others(data_dir):
    data_dir.mkdir(parents=True)
    data_dir.chmod(0o755)
    make_folders(Settings(data_dir=data_dir, voice_session_archive_dir=data_dir / "archive"))
    assert mode(data_dir) == 0o700


@pytest.mark.parametrize("text", ["", "\n", "  \n"])
def test_empty_file_is_replaced(data_dir, text):
    data_dir.mkdir(parents=True)
    (data_dir / ADMIN_TOKEN_FILE).write_text(text)
    token = admin_token(Settings(data_dir=data_dir))
    assert token.reveal()
    assert admin_token(Settings(data_dir=data_dir)) == token


def test_token_of_a_person_is_taken(data_dir):
    data_dir.mkdir(parents=True)
    (data_dir / ADMIN_TOKEN_FILE).write_text(" my own long token \n")
    assert admin_token(Settings(data_dir=data_dir)) == Secret("my own long token")


def test_short_token_of_a_person_is_refused(data_dir):
    data_dir.mkdir(parents=True)
    (data_dir / ADMIN_TOKEN_FILE).write_text("my own token\n")
    with pytest.raises(SettingsError, match="admin-token is shorter than 16 characters; delete it: a new one is made"):
        admin_token(Settings(data_dir=data_dir))


def test_folder_that_is_a_file_says_what_to_do(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(SettingsError) as raised:
        admin_token(Settings(data_dir=tmp_path / "data"))
    expected = f"DATA_DIR {tmp_path / 'data'} can't be used: File exists; set DATA_DIR to a folder that you own"
    assert str(raised.value) == expected


def test_token_file_that_is_not_text_says_what_to_do(data_dir):
    data_dir.mkdir(parents=True)
    (data_dir / ADMIN_TOKEN_FILE).write_bytes(b"\xff")
    with pytest.raises(SettingsError) as raised:
        admin_token(Settings(data_dir=data_dir))
    assert str(raised.value) == f"{data_dir / ADMIN_TOKEN_FILE} is not text; delete it, and a new one is made"


def test_token_file_that_is_a_folder_says_what_to_do(data_dir):
    (data_dir / ADMIN_TOKEN_FILE).mkdir(parents=True)
    with pytest.raises(SettingsError) as raised:
        admin_token(Settings(data_dir=data_dir))
    assert (
        str(raised.value) == f"DATA_DIR {data_dir} can't be used: Is a directory; set DATA_DIR to a folder that you own"
    )
