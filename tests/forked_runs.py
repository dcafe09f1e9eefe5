"""
`pytest -n N`: run the tests in N processes, forks of the one that has collected them.

pytest-xdist starts processes that each import and collect everything, which takes 12 s of CPU and 400 MB per process
here. A fork has all of it at once, and shares the memory.
"""

import atexit
import contextlib
import gc
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait

import pytest

Unit = list[int]
"""Tests that run one after another in one process, as indexes of the collected items."""

SEVERAL_PROCESSES = ("test_cluster.py", "test_workers.py")
"""Tests that start several gateways each."""


def in_units(items: Sequence[pytest.Item]) -> deque[Unit]:
    """
    Each test alone, but those that share a fixture together.

    Session fixtures are shared too: a server or a model that only a few tests need is started in one process.
    PostgreSQL is the exception: it has so many tests that each process runs its own server.

    Groups, and tests that start several processes, are spread among the others: side by side they would wait for each
    other, and at the end most processes would have nothing left to do.
    """
    groups: dict[str, Unit] = {}
    for index, item in enumerate(items):
        groups.setdefault(_group(item) or item.nodeid, []).append(index)
    heavy = [unit for unit in groups.values() if len(unit) > 1 or items[unit[0]].path.name in SEVERAL_PROCESSES]
    units = [unit for unit in groups.values() if unit not in heavy]
    distance = len(units) * 2 // 3 // max(len(heavy), 1)
    for number, unit in enumerate(heavy):
        units.insert(number * (distance + 1), unit)
    return deque(units)


def _group(item: pytest.Item) -> str:
    if (marker := item.get_closest_marker("one_process")) is not None:
        name: str = marker.args[0]
        return name
    definitions = [found[-1] for found in item._fixtureinfo.name2fixturedefs.values()]
    if any(definition.scope == "module" for definition in definitions):
        return item.nodeid.partition("::")[0]
    own = (definition for definition in definitions if definition.func.__module__.startswith("tests."))
    return next((one.argname for one in own if one.scope == "session" and one.argname != "postgres"), "")


@dataclass
class Worker:
    """A process, and the test that it runs."""

    pid: int
    index: int | None = None


class ForkedRuns:
    """A plugin: hands the units to the processes as these become free, and reports what they report."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._workers: dict[Connection, Worker] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.config.option.collectonly or session.testsfailed:  # of the collection
            return None
        units = in_units(session.items)
        session.config._tmp_path_factory.getbasetemp()
        gc.collect()
        gc.freeze()  # a collection in a process would copy all of the memory that it shares
        with self._running(session, min(self._count, len(units))):
            while self._workers:
                for link in wait(list(self._workers)):
                    self._receive(session, link, units)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    @contextlib.contextmanager
    def _running(self, session: pytest.Session, count: int) -> Iterator[None]:
        for number in range(count):
            ours, theirs = Pipe()
            if (pid := os.fork()) == 0:
                for other in (ours, *self._workers):
                    other.close()
                _run_units(session, theirs, number)
            theirs.close()
            self._workers[ours] = Worker(pid)
        try:
            yield
        finally:
            for link, worker in self._workers.items():  # the run was interrupted
                os.kill(worker.pid, signal.SIGINT)
                link.close()
                os.waitpid(worker.pid, 0)

    def _receive(self, session: pytest.Session, link: Connection, units: deque[Unit]) -> None:
        worker, hook = self._workers[link], session.config.hook
        try:
            message = link.recv()
        except EOFError:
            del self._workers[link]
            _, status = os.waitpid(worker.pid, 0)
            if status or worker.index is not None:
                hook.pytest_runtest_logreport(report=_of_dead_process(session, worker, status))
            return
        match message:
            case None:  # it is free
                worker.index = None
                is_over = not units or session.shouldfail or session.shouldstop
                link.send([] if is_over else units.popleft())
            case int(index):
                worker.index = index
            case report:
                read = hook.pytest_report_from_serializable(config=session.config, data=report)
                hook.pytest_runtest_logreport(report=read)


def _of_dead_process(session: pytest.Session, worker: Worker, status: int) -> pytest.TestReport:
    nodeid, location = "after the last test", ("", None, "")
    if worker.index is not None:
        nodeid, location = session.items[worker.index].nodeid, session.items[worker.index].location
    problem = f"the process that ran it has ended with {os.waitstatus_to_exitcode(status)}"
    return pytest.TestReport(nodeid, location, {}, "failed", problem, "call")


# In the processes


class _Reporter:
    """Sends reports to the first process, in place of the terminal."""

    def __init__(self, config: pytest.Config, link: Connection) -> None:
        self._config = config
        self._link = link

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._link.send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


def _run_units(session: pytest.Session, link: Connection, number: int) -> None:
    """Run what is received, then end the process."""
    code = 1
    try:
        atexit._clear()
        _detach(session.config, number)
        session.config.pluginmanager.register(_Reporter(session.config, link))
        try:
            link.send(None)
            while unit := link.recv():
                items = [session.items[index] for index in unit]
                # The next unit is not known yet: after this one only session fixtures stay.
                for index, item, next_item in zip(unit, items, [*items[1:], session], strict=True):
                    link.send(index)
                    session.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
                link.send(None)
        finally:
            session._setupstate.teardown_exact(None)
        code = 0
    except (KeyboardInterrupt, BrokenPipeError):
        pass
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        atexit._run_exitfuncs()
        os._exit(code)


def _detach(config: pytest.Config, number: int) -> None:
    """Replace what must not be shared: captured output, the terminal, the folder of temporary files."""
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    config.pluginmanager.unregister(name="terminalreporter")
    factory = config._tmp_path_factory
    factory._basetemp = factory.getbasetemp() / f"process-{number}"
    factory._basetemp.mkdir(mode=0o700)
