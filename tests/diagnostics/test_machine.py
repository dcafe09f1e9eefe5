import os
import socket
from pathlib import Path

from gateway.finalization.job import FinalizationJob, JobState
from gateway.finalization.job_table import JobTable
from gateway.history.stores import open_local_store
from tests.calls.aftermath import a_session
from tests.diagnostics.conftest import NO_MODELS, Doctor
from tests.stage import ADMIN, make_carrier, staged


async def test_open_folder_and_damaged_store(doctor: Doctor, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    (data / "gateway.db").write_bytes(b"no database at all" * 100)
    _, found = await doctor(**NO_MODELS)
    assert found["DATA_DIR"] == ("warning", f"{data} is readable by other users chmod 700 {data}")
    assert found["store"] == (
        "problem",
        f"can't open {data}/gateway.db: file is not a database restore it from a backup",
    )


async def test_failed_jobs_are_found(doctor: Doctor, tmp_path: Path) -> None:
    store = await open_local_store(tmp_path / "data")
    await JobTable(store).save(FinalizationJob(a_session(), JobState.FAILED, problem="document: refused"))
    await store.close()
    _, found = await doctor(**NO_MODELS)
    assert found["store"][0] == "warning" and found["store"][1].startswith("1 post-call job failed")


async def test_env_file_that_others_can_read_is_named(doctor: Doctor, tmp_path: Path) -> None:
    keys = tmp_path / ".env"
    keys.write_text("MAX_CALLS=5\n")
    keys.chmod(0o640)
    _, found = await doctor(**NO_MODELS)
    assert found[".env"] == ("warning", f"readable by other users of this machine chmod 600 {keys}")
    keys.chmod(0o600)
    assert (await doctor(**NO_MODELS))[1][".env"] == ("ok", "readable by you alone")


async def test_settings_of_deepclaw_are_named(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("PROXY_SECRET=abc\n")
    _, found = await doctor(**NO_MODELS)
    words = "settings that have no effect here: PROXY_SECRET: each call has a token of its own remove them"
    assert found["DeepClaw"] == ("off", words)
    (tmp_path / ".env").write_text("PORT=8000\n")
    assert "DeepClaw" not in (await doctor(**NO_MODELS))[1]


async def test_port_of_the_running_gateway_is_no_fault(doctor: Doctor, tmp_path: Path) -> None:
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        port = stage.url.rpartition(":")[2]
        _, found = await doctor(PORT=port, GATEWAY_ADMIN_TOKEN=ADMIN, **NO_MODELS)
        assert found["port"] == ("ok", f"the gateway runs at {stage.url}")
        _, found = await doctor(PORT=port, GATEWAY_ADMIN_TOKEN="another-token-of-16", **NO_MODELS)
    assert found["port"] == (
        "problem",
        f"another gateway, with another admin token, runs at {stage.url} stop it, or set PORT to another port",
    )


async def test_misspelt_setting_is_named(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("DEEPGRAM_API_KY=abc\nSHOP_URL=https://example.com\n")
    (tmp_path / ".env").chmod(0o600)
    _, found = await doctor(**NO_MODELS)
    said = "no setting of this name; in .env write DEEPGRAM_API_KEY, if that is meant"
    assert found["DEEPGRAM_API_KY"] == ("warning", said)
    assert "SHOP_URL" not in found


async def test_port_of_another_program_is_named(doctor: Doctor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _, found = await doctor(PORT=str(port), **NO_MODELS)
    problem = (
        f"can't listen on 127.0.0.1:{port}: Address already in use, perhaps by a gateway that runs already; "
        "set HOST and PORT to a free address"
    )
    assert found["port"] == ("problem", problem)


async def test_folder_that_cannot_be_used_is_named(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, found = await doctor(DATA_DIR=str(tmp_path / "file"), **NO_MODELS)
    assert code == 2  # as of gateway serve
    problem = f"DATA_DIR {tmp_path}/file can't be used: File exists; set DATA_DIR to a folder that you own"
    assert found["DATA_DIR"] == ("problem", problem)
    _, found = await doctor(DATA_DIR=str(tmp_path / "file" / "inner"), **NO_MODELS)
    assert "can't be used: Not a directory" in found["DATA_DIR"][1]
    if os.geteuid() == 0:
        (tmp_path / "theirs").mkdir()
        os.chown(tmp_path / "theirs", 12345, 12345)
        _, found = await doctor(DATA_DIR=str(tmp_path / "theirs"), **NO_MODELS)
        assert "can't be used: it belongs to another user" in found["DATA_DIR"][1]
