"""A real gateway killed at every point: each turn is stored once, each call has one document in each store."""

import asyncio
import contextlib
import itertools
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.all_points import POINTS
from tests.chaos.call import ScriptedCall
from tests.chaos.faulty_libc import COMPILER, MISSING
from tests.chaos.faulty_peers import rows, write_lock
from tests.chaos.lane import Job, LaneKind, Outcome, open_lane
from tests.chaos.points import Point
from tests.chaos.runner import Matrix, kind_for, play_lanes
from tests.chaos.turn_check import Said, compare
from tests.fakes.elevenlabs import AGENT_ID, FakeElevenLabs, conversation
from tests.stage import in_time, until, until_it

pytestmark = pytest.mark.timeout(900)  # the first test waits for the whole matrix

SEED = 3
PARALLEL_LANES = 15
WORLDS = (("twilio", "forgetful"), ("telnyx", "plan"), ("twilio", "current"), ("telnyx", "both"))
TURNS = """SELECT 1 FROM entries WHERE json_extract(entry, '$.event') = 'turn'"""
MOST_A_LANE = {1: 9, 2: 5}
"""Points per lane, by number of nodes. A lane mostly waits, so many run in parallel."""


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    """Each point once, with several lanes in parallel."""
    shares = _shares(point for point in POINTS.values() if COMPILER or not point.needs_faulty_libc)
    return asyncio.run(play_lanes(shares, parallel=PARALLEL_LANES))


def _shares(points: Iterable[Point]) -> Iterable[tuple[LaneKind, list[Job]]]:
    """Group points with the same needs into as few lanes as possible."""
    alike: dict[LaneKind, list[Point]] = {}
    for point in points:
        alike.setdefault(kind_for(point.name, "", ""), []).append(point)
    worlds, seeds = itertools.cycle(WORLDS), itertools.count(SEED)
    for kind, group in alike.items():
        lanes = -(-len(group) // MOST_A_LANE[kind.nodes])
        for number in range(lanes):
            carrier, dialect = next(worlds)
            jobs = [Job(point.name, next(seeds), patient=True) for point in group[number::lanes]]
            yield replace(kind, carrier=carrier, dialect=dialect), jobs


@pytest.mark.parametrize("point", POINTS)
def test_kill_loses_and_doubles_nothing(matrix: Matrix, point: str) -> None:
    if POINTS[point].needs_faulty_libc and not COMPILER:
        pytest.fail(MISSING, pytrace=False) if os.environ.get("CI") else pytest.skip(MISSING)
    [outcome] = [outcome for outcome in matrix.outcomes if outcome.point == point]
    assert outcome.problem == ""
    assert outcome.words.lost == ()
    assert outcome.words.surplus == ""
    assert not outcome.silent
    assert outcome.whole


def test_later_start_repeats_nothing(matrix: Matrix) -> None:
    assert matrix.problems == []


async def test_full_disk_is_logged_once(tmp_path: Path) -> None:
    """Calls continue while nothing can be written, and the call log is complete once the disk has room."""
    async with open_lane(LaneKind("telnyx", "both"), tmp_path) as lane:
        outcome = await lane.play(Job("disk full, then room", SEED))
        assert outcome.whole
        assert sum("call log cannot be written" in line for line in lane.gateway.log) == 1
        assert sum("call log can be written again" in line for line in lane.gateway.log) == 1


async def test_calls_in_both_log_and_jobs(tmp_path: Path) -> None:
    """Killed when many jobs had done everything but release the call log: none of them starts again."""
    async with open_lane(LaneKind("twilio", "forgetful"), tmp_path) as lane:
        calls = [
            ScriptedCall(lane.carrier, lane.engine, caller=f"+120255501{n:02}", stop_at="user text") for n in range(20)
        ]
        playing = [await _begun(call) for call in calls]
        await until(lambda: len(rows(tmp_path / "data0/call-log.db", TURNS)) == 20 * 3)
        with write_lock(tmp_path / "data0/call-log.db"):
            for call in calls:
                await call.leave()
            done = "SELECT 1 FROM finalization_jobs WHERE archived AND remote_version > 0"
            await until(lambda: len(rows(tmp_path / "data0/gateway.db", done)) == 20)
            lane.gateway.kill()
        await _ended(playing)
        assert await lane.audit() == []
        assert len(lane.remem.documents) == 20


@pytest.mark.parametrize(
    "step", ["storing", "stored", "remote before", "remote after", "webhook before", "webhook after"]
)
async def test_reported_call_is_kept_once(tmp_path: Path, step: str) -> None:
    """Killed at each step after an agent at ElevenLabs has reported a conversation."""
    (tmp_path / "gateway.toml").write_text(f'[agents.maya]\nelevenlabs_agent = "{AGENT_ID}"\n')
    hold = step.partition(" ")[2]
    data = conversation("conv_1", ("agent", "Hello."), ("user", "I prefer window seats."), number="+12025550143")
    async with open_lane(LaneKind("twilio", "forgetful"), tmp_path) as lane, FakeElevenLabs().running() as elevenlabs:
        elevenlabs.gateway_url = lane.gateway.url
        lane.remem.hold = hold if step.startswith("remote") else ""  # type: ignore[assignment]
        lane.receiver.hold = hold if step.startswith("webhook") else ""  # type: ignore[assignment]
        with write_lock(lane.gateway.data_dir / "gateway.db") if step == "storing" else contextlib.nullcontext():
            report = asyncio.create_task(elevenlabs.report(data))
            if step == "storing":
                await asyncio.sleep(0.2)
            else:
                assert (await report).status_code == 200
            if hold:
                holding = lane.remem.holding if step.startswith("remote") else lane.receiver.holding
                await in_time(holding.wait())
            lane.gateway.kill()
        await asyncio.wait({report})
        lane.remem.let_go()
        lane.receiver.let_go()
        await lane.gateway.gone()
        await lane.gateway.start(lane.http)
        for _ in range(2):  # delivered again, as ElevenLabs does without an answer, and once more
            assert (await elevenlabs.report(data)).status_code == 200
            await until_it(lambda: lane.is_reported("+12025550143"))
        assert len(lane.archives()) == 1


async def _begun(call: ScriptedCall) -> asyncio.Task[None]:
    playing = asyncio.create_task(call.play())
    await call.stopped()
    return playing


async def _ended(playing: list[asyncio.Task[None]]) -> None:
    for task in playing:
        task.cancel()
    await asyncio.gather(*playing, return_exceptions=True)


# The check itself

SAID = [Said(1.0, "CALLER", "One."), Said(2.0, "AGENT", "Two."), Said(3.0, "CALLER", "Three.")]
OUTCOME = Outcome("random", "twilio", 1, compare([], "", killed_at=0, restarted_at=0), 1, 1, 1, 1, 0.5)


def test_late_turn_may_be_missing() -> None:
    kept = compare(SAID, "CALLER: One.\nAGENT: Two.\n", killed_at=3.05, restarted_at=9)
    assert (kept.due, kept.kept, kept.lost, kept.surplus) == (2, 2, (), "")


def test_missing_turn_is_lost() -> None:
    kept = compare(SAID, "CALLER: One.\nCALLER: Three.\n", killed_at=4, restarted_at=9)
    assert kept.lost == ("AGENT: Two.",)


def test_turn_said_twice_is_surplus() -> None:
    archive = "CALLER: One.\nAGENT: Two. Two.\nCALLER: Three.\n"
    assert compare(SAID, archive, killed_at=4, restarted_at=9).surplus == "Two"


def test_wrong_order_is_noticed() -> None:
    kept = compare(SAID, "AGENT: Two.\nCALLER: One.\nCALLER: Three.\n", killed_at=4, restarted_at=9)
    assert (kept.lost, kept.surplus) == (("AGENT: Two.",), "Two")


def test_same_words_said_too_late_before() -> None:
    said = [Said(1.0, "AGENT", "Hello."), Said(5.0, "AGENT", "Hello.")]
    kept = compare(said, "AGENT: Hello.\n", killed_at=1.05, restarted_at=4)
    assert (kept.due, kept.kept, kept.surplus) == (1, 1, "")


def test_second_document_is_not_whole() -> None:
    assert OUTCOME.whole
    assert not replace(OUTCOME, documents=2).whole
    assert not replace(OUTCOME, webhooks=0).whole and not replace(OUTCOME, webhooks=2).whole
