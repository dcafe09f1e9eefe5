"""
The targets of scripts/fuzz in short: the seeds, with the inputs of earlier findings, and some hundred others.

scripts/fuzz searches; the inputs here are the same in every run.
"""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import SEEDS, TARGETS
from tests.fuzz.transport import FakeTransport, running_loop


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_break_no_promise(target: str) -> None:
    seeds = sorted((SEEDS / target).iterdir())
    assert seeds
    for seed in seeds:
        TARGETS[target].run(seed.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=100, derandomize=True, database=None)
@given(data=st.data())
def test_any_input_breaks_no_promise(target: str, data: st.DataObject) -> None:
    TARGETS[target].run(data.draw(st.binary(max_size=TARGETS[target].max_bytes)))


# What the targets run on


def test_loop_runs_timers_in_their_order() -> None:
    events = []
    with running_loop() as loop:
        loop.call_later(2, events.append, "second")
        loop.call_later(1, events.append, "first")
        loop.call_later(1.5, events.append, "never").cancel()
        loop.call_later(9, events.append, "too late")
        loop.run_until(5)
    assert events == ["first", "second"]
    assert loop.time() == 5


def test_exception_in_a_callback_is_raised() -> None:
    with pytest.raises(ZeroDivisionError), running_loop() as loop:
        loop.call_soon(lambda: 1 // 0)
        loop.run_until(0)


def test_transport_delivers_nothing_while_paused() -> None:
    class Reader(asyncio.Protocol):
        def __init__(self) -> None:
            self.read = b""

        def data_received(self, data: bytes) -> None:
            self.read += data

    reader, transport = Reader(), FakeTransport()
    with running_loop() as loop:
        transport.attach(reader)
        transport.feed(b"one", loop)
        transport.pause_reading()
        transport.feed(b"two", loop)
        transport.pause_reading()
        loop.call_soon(transport.resume_reading)
        transport.feed(b"three", loop)
    assert reader.read == b"onethree"
