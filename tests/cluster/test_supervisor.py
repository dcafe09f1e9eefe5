"""The supervisor from outside, with stand-ins for workers that note what happens to them."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.cluster.supervisor import SupervisorTimeouts
from tests.stage import until

SUPERVISOR = """
import asyncio, functools, sys
from gateway.cluster.supervisor import Supervisor, SupervisorTimeouts, WorkerLauncher
from tests.cluster import stand_in_workers
count, worker, notes = sys.argv[1:]
launcher = WorkerLauncher(functools.partial(getattr(stand_in_workers, worker), notes))
sys.exit(asyncio.run(Supervisor(launcher, SupervisorTimeouts()).run(int(count))))
"""


class Supervised:
    """A supervisor, and what its workers noted."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.process = process
        self._notes = folder / "notes"
        self._log = folder / "log"

    def noted(self, what: str) -> list[int]:
        """The workers that did so."""
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        return [int(line.split()[0]) for line in lines if line.split()[1] == what]

    async def all_of(self, count: int, what: str) -> list[int]:
        workers: list[int] = await until(lambda: len(self.noted(what)) >= count and self.noted(what))
        assert len(set(workers)) == len(workers) == count
        return workers

    async def ended(self) -> tuple[int, str]:
        """Exit code and log."""
        return await asyncio.wait_for(self.process.wait(), 60), self.log

    @property
    def log(self) -> str:
        return self._log.read_text()


async def supervised(folder: Path, count: int, worker: str = "drain") -> Supervised:
    command = [sys.executable, "-c", SUPERVISOR, str(count), worker, str(folder / "notes")]
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*command, stderr=log)
    return Supervised(process, folder)


@pytest.fixture
async def supervisor(tmp_path: Path) -> AsyncIterator[Supervised]:
    """Three workers that are ready."""
    supervisor = await supervised(tmp_path, 3)
    await supervisor.all_of(3, "starts")
    yield supervisor
    with contextlib.suppress(ProcessLookupError):
        supervisor.process.kill()  # and without it they end as well
    await supervisor.process.wait()


async def test_signals_reach_every_worker(supervisor: Supervised) -> None:
    workers = supervisor.noted("starts")
    supervisor.process.send_signal(signal.SIGTERM)
    assert set(await supervisor.all_of(3, "drains")) == set(workers)
    supervisor.process.send_signal(signal.SIGTERM)
    assert await supervisor.ended() == (0, "")


async def test_ctrl_c_reaches_a_worker_once(tmp_path: Path) -> None:
    """A terminal sends it to the whole process group; a second one would end a worker without its last steps."""
    supervisor = await supervised(tmp_path, 2)
    workers = await supervisor.all_of(2, "starts")
    assert os.getpgid(workers[0]) != os.getpgid(supervisor.process.pid)
    supervisor.process.send_signal(signal.SIGINT)
    assert await supervisor.ended() == (0, "")
    assert sorted(supervisor.noted("interrupted")) == sorted(workers)


async def test_dead_worker_is_replaced(supervisor: Supervised) -> None:
    victim, *others = supervisor.noted("starts")
    os.kill(victim, signal.SIGKILL)
    workers = await supervisor.all_of(4, "starts")
    assert workers[:3] == [victim, *others]
    supervisor.process.send_signal(signal.SIGTERM)
    assert set(await supervisor.all_of(3, "drains")) == {*others, workers[3]}
    supervisor.process.send_signal(signal.SIGTERM)
    assert await supervisor.ended() == (0, "a worker died, another one is started\n")


async def test_stop_does_not_wait_for_a_replacement(supervisor: Supervised) -> None:
    os.kill(supervisor.noted("starts")[0], signal.SIGKILL)
    await until(lambda: supervisor.log)
    supervisor.process.send_signal(signal.SIGINT)
    code, _ = await supervisor.ended()
    assert code == 0
    assert len(supervisor.noted("interrupted")) == 2


async def test_killed_supervisor_leaves_no_worker_alone(supervisor: Supervised) -> None:
    workers = supervisor.noted("starts")
    supervisor.process.kill()
    assert set(await supervisor.all_of(3, "orphaned")) == set(workers)


async def test_first_worker_that_fails_ends_it(tmp_path: Path) -> None:
    supervisor = await supervised(tmp_path, 3, "fail")
    assert await supervisor.ended() == (7, "")
    assert len(supervisor.noted("fails")) == 1


async def test_signal_before_anything_is_ready(tmp_path: Path) -> None:
    """One that is still starting ends by the signal, and is no failure."""
    supervisor = await supervised(tmp_path, 3, "start_slowly")
    await supervisor.all_of(1, "starts")
    supervisor.process.send_signal(signal.SIGTERM)
    assert await supervisor.ended() == (0, "")


async def test_worker_that_loses_a_ctrl_c_is_stopped(tmp_path: Path) -> None:
    """Python loses one that comes in the middle of an import, and the worker would start and never stop."""
    supervisor = await supervised(tmp_path, 3, "lose_sigint")
    await supervisor.all_of(1, "starts")
    supervisor.process.send_signal(signal.SIGINT)
    assert await supervisor.ended() == (0, "")


def test_workers_that_die_young_wait_longer_each_time() -> None:
    timeouts = SupervisorTimeouts()
    assert [timeouts.pause_after(died_young) for died_young in range(8)] == [0, 1, 2, 5, 10, 30, 30, 30]


@pytest.mark.parametrize("count", ["0", "-1", "many", "1.5", ""])
def test_wrong_number_of_workers_is_one_line(capsys: pytest.CaptureFixture[str], count: str) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["serve", "--workers", count])
    problem = f"argument --workers: {count!r} is not a number of workers; use 1 or more"
    assert (raised.value.code, capsys.readouterr().err) == (
        2,
        f"gateway serve: {problem}; see gateway serve --help\n",
    )


def test_wrong_setting_is_told_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "--workers", "3", "--port", "eight"]) == 2
    assert capsys.readouterr() == ("", "gateway: PORT is 'eight'; use a whole number, 0 or more\n")
