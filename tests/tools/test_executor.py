import asyncio
import json
import textwrap
import threading
from typing import Annotated

import pytest

from gateway.engines.interface import FunctionCall
from gateway.memory.access import AccessChange
from gateway.session import TrustLevel, VoiceSession
from gateway.tools.builtin import Builtin
from gateway.tools.executor import (
    MOST_BETWEEN_TURNS,
    CallTools,
    LoopBreaker,
    ToolExecutor,
    ToolTimeouts,
    run_end_function,
)
from gateway.tools.module import load_tool_module
from gateway.tools.schema import MOST_RESULT_CHARACTERS, FunctionSchema
from gateway.tools.threads import ToolThreads
from tests.stage import until

SECRET = "Ana's card is 4111"


class Line:
    """A call with a tool file: runs its tools as an engine would, and records what tools do to the call."""

    def __init__(
        self,
        tasks,
        tool_module,
        *,
        threads=None,
        builtins=(),
        memory=None,
        load_memory=None,
        transfer_to=None,
        disabled=(),
        **seconds,
    ):
        self.answers = []
        self.done = []
        self.events = []
        self.seconds = []
        self.session = VoiceSession("maya", "+12025550143", "twilio")
        self.names = next(iter(tool_module.tools.values())).function.__globals__ if tool_module.tools else {}
        tools = CallTools(
            tool_module,
            threads or ToolThreads(),
            memory or {},
            tuple(builtins),
            load_memory=load_memory,
            timeouts=ToolTimeouts(**seconds),
            disabled=frozenset(disabled),
        )
        self.executor = ToolExecutor(self, tasks, self.session, tools, transfer_to or {})
        self._asked = 0

    def call(self, name, call_id=None, **arguments):
        self._asked += 1
        return FunctionCall(call_id or f"fc_{self._asked}", name, json.dumps(arguments))

    def start(self, call):
        self.executor.start(call, lambda content: self.answers.append((call, content)))

    async def ask(self, name, **arguments):
        """Call it as the agent does; the answer."""
        call = self.call(name, **arguments)
        self.start(call)
        return await self.answer_to(call)

    async def answer_to(self, call):
        await until(lambda: call in dict(self.answers))
        return dict(self.answers)[call]

    # ToolHost

    def say(self, text):
        self.done.append(text)

    def hang_up(self, request=""):
        self.done.append(("hang up", request))

    def transfer(self, target, request=None):
        self.done.append(("transfer", target, request))

    def turns(self):
        return []

    def tool_started(self, call):
        self.events.append(("started", call.name))

    def tool_finished(self, call, content, *, ok, seconds):
        self.events.append(("finished", call.name, ok))
        self.seconds.append(seconds)

    def state_changed(self):
        self.events.append(("state", dict(self.session.state)))


@pytest.fixture
async def lines(tmp_path):
    """Makes calls of agents with this file; all end with the test."""
    made = []

    async with asyncio.TaskGroup() as tasks:

        def make(source="", **options):
            path = tmp_path / "bistro.py"
            path.write_text("import asyncio, threading, time\n" + textwrap.dedent(source))
            made.append(Line(tasks, load_tool_module(path), **options))
            return made[-1]

        yield make
        for line in made:
            await line.executor.close(call_is_over=False)
            if gate := line.names.get("gate"):
                gate.set()


def error(content):
    return json.loads(content)["error"]


# Results


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ("'booked'", "booked"),
        ("None", "done"),
        ("{'day': 'Friday', 'guests': [1, 2]}", '{"day": "Friday", "guests": [1, 2]}'),
        ("__import__('datetime').date(2026, 2, 6)", '"2026-02-06"'),
        ("conv.memory", '{"order": {"grams": 200}}'),
        ("'caf\\u00e9 \\ud800'", "café ?"),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_result_reaches_the_agent(lines, kind, result, content):
    line = lines(f"{kind} book(conv): return {result}", memory={"order": {"grams": 200}})
    assert await line.ask("book") == content


@pytest.mark.parametrize(
    "result",
    ["'x' * 5_000_000", "['x'] * 5_000_000", "{'a': ['x' * 5_000_000]}", "__import__('itertools').repeat('x')"],
)
async def test_megabytes_are_cut_off(lines, result):
    content = await lines(f"def dump(): return {result}").ask("dump")
    assert content.endswith("x … (cut off here)") or content.endswith('"x", … (cut off here)')
    assert len(content) < MOST_RESULT_CHARACTERS + 20


async def test_arguments_and_effects_pass_both_ways(lines):
    line = lines("""
        async def book(conv, day: str, guests: int = 2):
            conv.state["booking_day"] = day
            conv.say("One moment.")
            await asyncio.sleep(0)
            return {"guests": guests}
        """)
    assert await line.ask("book", day="Friday") == '{"guests": 2}'
    assert line.session.state == {"booking_day": "Friday"}
    assert line.done == ["One moment."]


# What goes wrong


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("def", "ValueError"),
        ("def", "SystemExit"),
        ("def", "StopIteration"),
        ("def", "KeyboardInterrupt"),
        ("async def", "ValueError"),
        ("async def", "SystemExit"),
        ("async def", "CancelledError"),
    ],
)
async def test_error_is_explained_and_logged_by_kind(lines, caplog, kind, raised):
    line = lines(f"from asyncio import CancelledError\n{kind} book():\n    raise {raised}({SECRET!r})")
    assert await line.ask("book") == '{"error":"book failed; tell the caller that it did not work"}'
    (record,) = caplog.records
    assert (record.message, record.function, record.error, record.line) == (
        "function failed",
        "book",
        raised,
        4,
    )
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("[1, 2]", "a state value must be text, a finite number, true, false, or a flat dictionary of these"),
        ('{"a": {"b": 1}}', "a dictionary in a state value may hold only text, finite numbers, true and false"),
    ],
)
async def test_bad_state_value_is_logged_with_its_reason(lines, caplog, value, reason):
    line = lines(f"def book(conv):\n    conv.state['cheese'] = {value}")
    assert error(await line.ask("book")) == "book failed; tell the caller that it did not work"
    (record,) = caplog.records
    assert record.message == "function set a state value that cannot be kept"
    assert (record.function, record.line, record.reason) == ("book", 3, reason)
    assert line.session.state == {}


@pytest.mark.parametrize("result", ["object()", "{(1, 2): 3}", "[conv]"])
async def test_result_that_is_no_json_is_a_failure(lines, result):
    line = lines(f"def odd(conv): return {result}")
    assert error(await line.ask("odd")) == "odd failed; tell the caller that it did not work"


async def test_wrong_arguments_are_explained(lines):
    line = lines("def book(day: str, guests: int = 2): ...")
    wanted = "wrong arguments for book: day: Field required; guests: Input should be a valid integer, "
    assert error(await line.ask("book", guests="two")).startswith(wanted)
    broken = FunctionCall("fc_9", "book", '{"day": ')
    line.start(broken)
    assert error(await line.answer_to(broken)).startswith("wrong arguments for book: Invalid JSON")


async def test_unknown_function_is_answered(lines, caplog):
    assert error(await lines().ask(SECRET)) == "there is no function of this name"
    assert caplog.messages == ["agent called an unknown function"]
    assert SECRET not in caplog.text


BLOCKING = """
    gate = threading.Event()

    async def block_the_loop():
        gate.wait()
        return "at last"

    def block():
        gate.wait()
        return "at last"

    async def quick():
        return "quick"
    """


@pytest.mark.parametrize("name", ["block", "block_the_loop"])
async def test_blocking_function_holds_up_nothing(lines, name):
    """Neither other functions of its call nor those of another; and the event loop runs this test."""
    threads = ToolThreads()
    line, other = lines(BLOCKING, threads=threads), lines(BLOCKING, threads=threads)
    blocked = line.call(name)
    line.start(blocked)
    assert await line.ask("quick") == "quick"
    assert await other.ask("quick") == "quick"
    assert blocked not in dict(line.answers)
    line.names["gate"].set()
    assert await line.answer_to(blocked) == "at last"


@pytest.mark.parametrize("body", ["gate.wait()", "while not gate.is_set(): pass"])
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_function_that_never_ends_is_left(lines, caplog, kind, body):
    """What it does after its timeout has no effect."""
    line = lines(f"""
        gate, over = threading.Event(), threading.Event()

        {kind} book(conv):
            try:
                {body}
                conv.hang_up()
            finally:
                over.set()

        book.timeout = 0.05
        """)
    assert error(await line.ask("book")) == "book took too long; it may or may not have worked; tell the caller"
    assert caplog.messages == ["function took too long"]
    line.names["gate"].set()
    await until(line.names["over"].is_set)
    await asyncio.sleep(0)
    assert line.done == []


async def test_function_that_hangs_everywhere_is_refused_at_once(lines):
    line = lines(
        "gate = threading.Event()\ndef hang(call: int): gate.wait()\nhang.timeout = 0.05\ndef quick(): return 'quick'",
        threads=ToolThreads(most_per_function=2),
    )
    for number in range(2):
        assert "took too long" in await line.ask("hang", call=number)
    assert error(await line.ask("hang", call=2)) == "hang does not work at the moment; tell the caller"
    assert await line.ask("quick") == "quick"


async def test_call_runs_four_at_once(lines):
    line = lines("""
        gate, running = threading.Event(), []

        def wait(number: int):
            running.append(number)
            gate.wait()
            return str(number)
        """)
    calls = [line.call("wait", number=number) for number in range(6)]
    for call in calls:
        line.start(call)
    await until(lambda: len(line.names["running"]) == 4)
    line.names["gate"].set()
    assert [await line.answer_to(call) for call in calls] == ["0", "1", "2", "3", "4", "5"]


# Cancelled and repeated


@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_cancelled_function_is_not_answered(lines, kind):
    waiting = "await asyncio.sleep(60)" if kind == "async def" else "gate.wait()"
    line = lines(f"""
        gate, started, over = threading.Event(), threading.Event(), threading.Event()

        {kind} look_up(conv):
            try:
                started.set()
                {waiting}
                conv.say("found")
            finally:
                over.set()

        def quick(): return "quick"
        """)
    unwanted = line.call("look_up")
    line.start(unwanted)
    await until(line.names["started"].is_set)
    line.executor.cancel([unwanted.id, "fc_unknown"])
    line.names["gate"].set()
    await until(line.names["over"].is_set)
    assert await line.ask("quick") == "quick"
    assert [content for _, content in line.answers] == ["quick"]
    assert line.done == []


async def test_repeated_id_is_timed_from_its_first_request(lines):
    line = lines("""
        gate = threading.Event()

        def book(): gate.wait()
        """)
    call = line.call("book")
    line.start(call)
    await asyncio.sleep(0.05)
    line.start(call)
    line.names["gate"].set()
    await line.answer_to(call)
    assert line.seconds[0] >= 0.05


async def test_repeated_id_runs_once_and_is_answered_alike(lines):
    line = lines("""
        gate, runs = threading.Event(), []

        def book(day: str):
            runs.append(day)
            gate.wait()
            return f"booking {len(runs)}"
        """)
    call = line.call("book", day="Friday")
    line.start(call)
    line.start(call)
    line.names["gate"].set()
    assert await line.answer_to(call) == "booking 1"
    line.start(call)
    assert line.answers == [(call, "booking 1")] * 2
    assert line.names["runs"] == ["Friday"]


async def test_id_of_another_connection_is_another_call(lines):
    """An engine may count from the start again when it is connected to again."""
    line = lines("def book(day: str): return day")
    assert await line.ask("book", call_id="fc_1", day="Friday") == "Friday"
    assert await line.ask("book", call_id="fc_1", day="Sunday") == "Sunday"


async def test_ended_call_answers_nothing(lines):
    line = lines(BLOCKING)
    line.start(line.call("block"))
    await line.executor.close(call_is_over=False)
    line.start(line.call("quick"))
    line.names["gate"].set()
    await until(lambda: "function block" not in {thread.name for thread in threading.enumerate()})
    await asyncio.sleep(0)
    assert line.answers == []


# Agents that go round in circles


async def test_same_call_again_and_again_is_stopped(lines):
    line = lines("def look_up(day: str): return 'nothing'")
    found = [await line.ask("look_up", day="Friday") for _ in range(4)]
    assert found[:3] == ["nothing"] * 3
    assert error(found[3]).endswith("stop, and ask the caller")
    assert await line.ask("look_up", day="Sunday") == "nothing"
    line.executor.caller_spoke()
    assert await line.ask("look_up", day="Sunday") == "nothing"


def looked_up(day, *, spelling='{"day": "%s", "n": 1}'):
    return FunctionCall("fc", "look_up", spelling % day)


def test_spelling_of_arguments_makes_no_difference():
    breaker = LoopBreaker()
    for _ in range(3):
        assert not breaker.refuses(looked_up("Friday"))
    assert breaker.refuses(looked_up("Friday", spelling='{"n":1,"day":"%s"}'))


def test_many_calls_without_a_word_are_stopped():
    breaker = LoopBreaker()
    assert not any(breaker.refuses(looked_up(number)) for number in range(MOST_BETWEEN_TURNS))
    assert breaker.refuses(looked_up("more")).endswith("ask the caller what to do")
    breaker.reset()
    assert not breaker.refuses(looked_up("more"))


def test_wrong_guesses_do_not_count():
    """A caller who pauses often makes the engine ask, and take it back, again and again."""
    breaker = LoopBreaker()
    for _ in range(MOST_BETWEEN_TURNS + 1):
        assert not breaker.refuses(looked_up("Friday"))
        breaker.retract(looked_up("Friday"))


# The gateway's own


async def test_disabled_tools_are_not_there(lines):
    line = lines(
        "def book(day: str): ...\ndef cancel(day: str): ...",
        transfer_to={"desk": "+12025550177"},
        disabled=["cancel", "end_call"],
    )
    assert [function.name for function in line.executor.functions] == ["book", "transfer_call"]
    assert error(await line.ask("end_call")) == "there is no function of this name"
    assert line.done == []


TRANSFER = FunctionSchema.of("transfer_call", "Hand over.", {"to": Annotated[str, "the number"]})


async def test_builtin_runs_on_the_loop_with_its_call(lines):
    home = asyncio.get_running_loop()

    async def transfer(call, arguments):
        assert asyncio.get_running_loop() is home
        return {"id": call.id, **arguments}

    line = lines("def book(): ...", builtins=[Builtin(TRANSFER, transfer)])
    assert [function.name for function in line.executor.functions] == ["book", "end_call", "transfer_call"]
    assert await line.ask("transfer_call", to="desk") == '{"id": "fc_1", "to": "desk"}'
    assert error(await line.ask("transfer_call")) == "wrong arguments for transfer_call: to: Field required"


async def test_failing_builtin_is_answered_too(lines, caplog):
    async def fail(call, arguments):
        raise RuntimeError(SECRET)

    line = lines(builtins=[Builtin(TRANSFER, fail)])
    assert error(await line.ask("transfer_call", to="desk")).startswith("transfer_call failed")
    assert [(record.message, record.error) for record in caplog.records] == [("function failed", "RuntimeError")]
    assert SECRET not in caplog.text


async def test_slow_builtin_is_left(lines):
    async def wait(call, arguments):
        await asyncio.Event().wait()

    line = lines(builtins=[Builtin(TRANSFER, wait, timeout=0.01)])
    assert "took too long" in await line.ask("transfer_call", to="desk")


# Start and end of the call


async def test_hooks_run_around_the_call(lines):
    line = lines(
        """
        def start_function(conv):
            if cheese := conv.memory.get("cheese_type"):
                conv.say(f"You previously picked {cheese}.")

        async def end_function(conv):
            conv.state["calls"] = 2
        """,
        memory={"cheese_type": "gouda"},
    )
    await line.executor.start_up()
    assert line.done == ["You previously picked gouda."]
    await line.executor.close(call_is_over=True)
    assert line.session.state == {"calls": 2}
    assert line.answers == []


async def test_file_without_hooks_has_nothing_to_run(lines):
    line = lines("def book(): ...")
    await line.executor.start_up()
    await line.executor.close(call_is_over=True)
    assert line.events == []


async def test_bad_hooks_do_not_stop_the_call(lines, caplog):
    line = lines(
        f"""
        gate, over = threading.Event(), threading.Event()

        def start_function(conv):
            gate.wait()
            conv.say("too late")
            over.set()

        def end_function(conv):
            raise ValueError({SECRET!r})

        def book(): ...
        """,
        start_function=0.01,
    )
    await line.executor.start_up()
    line.names["gate"].set()
    await until(line.names["over"].is_set)
    await line.executor.close(call_is_over=True)
    assert line.done == []
    assert [(record.message, record.function) for record in caplog.records] == [
        ("function took too long", "start_function"),
        ("function failed", "end_function"),
    ]
    assert SECRET not in caplog.text


async def test_end_function_has_no_call_to_act_on(lines):
    line = lines("def end_function(conv):\n    conv.say('bye')\n    conv.hang_up()\n    conv.transfer('+12025550188')")
    await line.executor.close(call_is_over=True)
    await asyncio.sleep(0)
    assert line.done == []


async def test_end_function_waits_for_the_end_of_the_call(lines):
    """A lost stream is not the end: the call may be resumed."""
    line = lines("def end_function(conv): conv.state['calls'] = 2")
    await line.executor.close(call_is_over=False)
    assert line.session.state == {}


async def test_end_function_runs_without_media(tmp_path):
    path = tmp_path / "bistro.py"
    path.write_text("def end_function(conv): conv.state['turns'] = len(conv.transcript)")
    session = VoiceSession("maya", "+12025550143", "twilio")
    await run_end_function(session, CallTools(load_tool_module(path)))
    assert session.state == {"turns": 0}


# The call


async def test_call_observes_its_tools(lines):
    line = lines("def book(conv): conv.state['day'] = 'Friday'\ndef fail(): raise ValueError")
    await line.ask("book")
    await line.ask("fail")
    assert line.events == [
        ("started", "book"),
        ("state", {"day": "Friday"}),
        ("finished", "book", True),
        ("started", "fail"),
        ("finished", "fail", False),
    ]


async def test_state_is_not_kept_off_the_record(lines):
    line = lines("def book(conv): conv.state['day'] = 'Friday'\ndef hours(): return 'nine to five'")
    line.session.off_record = True
    await line.ask("book")
    line.session.off_record = False
    await line.ask("hours")
    assert line.session.state == {}


async def test_agent_hangs_up_and_transfers_after_its_goodbye(lines):
    line = lines(transfer_to={"desk": "+12025550188"})
    assert "goodbye" in await line.ask("end_call")
    assert "goodbye" in await line.ask("transfer_call", to="desk")
    assert line.done == [("hang up", "fc_1"), ("transfer", "+12025550188", "fc_2")]


class Stored:
    """The caller's state in a store, which other calls may change."""

    def __init__(self, **values):
        self.values = values

    async def __call__(self):
        return self.values


async def test_state_of_earlier_calls_is_read_each_turn(lines):
    stored = Stored(day="Friday")
    line = lines("def day(conv): return conv.memory.get('day', 'none')", load_memory=stored)
    assert await line.ask("day") == "none"
    line.executor.caller_spoke()
    await asyncio.sleep(0)
    assert await line.ask("day") == "Friday"


@pytest.mark.parametrize(
    ("change", "day"),
    [
        (AccessChange.LEVEL_RAISED, "Friday"),
        (AccessChange.CALLER_CHANGED, "Friday"),
        (AccessChange.CONTENT_CHANGED, "Monday"),
        (AccessChange.SPEAKER_CHANGED, "none"),
        (AccessChange.REVOKED, "none"),
    ],
)
async def test_memory_of_tools_follows_access(lines, change, day):
    source = "def day(conv): return conv.memory.get('day', 'none')"
    line = lines(source, memory={"day": "Monday"}, load_memory=Stored(day="Friday"))
    line.executor.memory_changed(change)
    await asyncio.sleep(0)
    assert await line.ask("day") == day


async def test_function_needs_the_level_it_requires(lines):
    """A call below the level gets an explanation, and the function does not run."""
    line = lines(
        """
        from gateway import requires

        @requires("everything")
        def pay(conv): return conv.trust
        """
    )
    line.session.trust = TrustLevel.SUMMARIES
    assert "not certain who the caller is" in await line.ask("pay")
    line.session.trust = TrustLevel.EVERYTHING
    assert await line.ask("pay") == "everything"
