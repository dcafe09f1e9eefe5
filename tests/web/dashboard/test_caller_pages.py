"""The pages about callers: what is known, and what a person can do about it."""

import json
import re
from datetime import UTC, datetime
from html import unescape

from markupsafe import escape

from gateway.finalization.summary.call_summary import CallSummary
from gateway.history.report import MemoryReports
from gateway.memory.facts import CallerFact, FactStore
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.state import CallerStateStore
from gateway.session import TrustLevel
from tests.calls.aftermath import a_session
from tests.web.conftest import Visitor
from tests.web.dashboard.examples import keep

ANA = "+12025550143"


async def fact_form(visitor: Visitor, text: str) -> dict[str, str]:
    """The hidden fields of the form beside a fact."""
    page = await visitor.page(await visitor.caller_address())
    forms = re.findall(r'<form[^>]*/facts".*?</form>', page, re.DOTALL)
    [form] = [form for form in forms if escape(text) in form]
    return dict(re.findall(r'name="(agent|fact)" value="([^"]+)"', form))


async def test_list_shows_who_called(visitor: Visitor):
    page = await visitor.page("/callers")
    assert "12 callers" in page and "Ana Ruiz" in page and "+1 202-555-0143" in page
    for text in ("0143", "+1 (202) 555-0143", "ruiz"):
        found = await visitor.post("/callers/find", find=text)
        page = await visitor.page(found.headers["location"])
        assert "1 caller found" in page and "Ana Ruiz" in page and "Tom Becker" not in page
    found = await visitor.post("/callers/find", find="zyzzyva")
    assert "No callers found" in await visitor.page(found.headers["location"])


async def test_caller_shows_facts_with_their_source(visitor: Visitor):
    page = await visitor.page(await visitor.caller_address())
    assert "Can&#39;t take calls at work" in page and "constraint · 90% confidence" in page
    assert f'href="/calls/{visitor.session.uuid}"' in page


async def test_caller_goes_by_name(visitor: Visitor):
    """In the title, on the button that forgets, and among callers from the same number."""
    other = a_session(caller="customer-7", number=ANA)
    await keep(visitor.store, other, CallSummary("Leo Brandt", (), (), (), (), "", "test"))
    page = await visitor.page(await visitor.caller_address())
    assert "<title>Ana Ruiz · Voice Gateway</title>" in page
    assert 'Forget <bdi>Ana Ruiz</bdi> <span class="number">+1 202-555-0143</span></button>' in page
    assert 'This includes <bdi>Leo Brandt</bdi> <span class="number">customer-7</span>, who called' in page


async def test_name_has_a_label(visitor: Visitor):
    fact = CallerFact("Is called Ana Ruiz", "identity", 0.9, (1,))
    await FactStore(visitor.store).learn(a_session(caller=ANA), [fact], datetime.now(UTC))
    form = await fact_form(visitor, "Name: Ana Ruiz")
    address = await visitor.caller_address()
    page = await visitor.page(address)
    assert ">Name: Ana Ruiz<" in page and 'value="Name: Ana Ruiz"' in page and "Is called" not in page
    await visitor.post(f"{address}/facts", **form, do="save", text="Name: Anna Ruiz")
    assert "Is called Anna Ruiz" in [fact.text for fact in await FactStore(visitor.store).known("maya", ANA, 99)]


async def test_fact_can_be_corrected(visitor: Visitor):
    form = await fact_form(visitor, "Can't take calls at work")
    address = await visitor.caller_address()
    answer = await visitor.post(f"{address}/facts", **form, do="save", text="Takes calls at work after noon")
    assert answer.headers["location"] == f"{address}?done=fact"
    known = {fact.text: fact for fact in await FactStore(visitor.store).known("maya", ANA, 99)}
    assert "Can't take calls at work" not in known
    assert known["Takes calls at work after noon"].confidence == 1.0
    assert "corrected by operator" in await visitor.page(address)


async def test_fact_can_be_forgotten(visitor: Visitor):
    form = await fact_form(visitor, "Can't take calls at work")
    await visitor.post(f"{await visitor.caller_address()}/facts", **form, do="forget")
    texts = [fact.text for fact in await FactStore(visitor.store).known("maya", ANA, 99)]
    assert texts == ["Prefers a text message when the bike is ready"]


async def test_fact_of_somebody_else_is_left_alone(visitor: Visitor):
    [fact, *_] = await FactStore(visitor.store).known("maya", "+12025550117", 9)
    answer = await visitor.post(f"{await visitor.caller_address()}/facts", agent="maya", fact=fact.id, do="forget")
    assert answer.status_code == 404
    assert await FactStore(visitor.store).known("maya", "+12025550117", 9) == [fact]


async def test_empty_fact_is_refused(visitor: Visitor):
    form = await fact_form(visitor, "Can't take calls at work")
    answer = await visitor.post(f"{await visitor.caller_address()}/facts", **form, do="save", text="  ")
    assert answer.status_code == 400 and "1 to 300 characters" in answer.text


async def test_topic_is_pinned_changed_and_unpinned(visitor: Visitor):
    pins, address = PinnedTopicStore(visitor.store), await visitor.caller_address()
    given = {"agent": "maya", "title": "Road <b>bike</b> repair"}
    await visitor.post(f"{address}/pins", **given, do="pin", about="Brake pads", status="Ordered")
    page = await visitor.page(address)
    assert "Road &lt;b&gt;bike&lt;/b&gt; repair" in page and "Ordered" in page and "by operator" in page
    await visitor.post(f"{address}/pins", **given, do="pin", status="Here", items="Call Ana\n\nTest ride")
    [pin] = await pins.pinned("maya", ANA)
    assert (pin.status, pin.open_items) == ("Here", ("Call Ana", "Test ride"))
    assert (await visitor.post(f"{address}/pins", **given, do="unpin")).headers["location"].endswith("?done=unpinned")
    assert await pins.pinned("maya", ANA) == []
    assert (await visitor.post(f"{address}/pins", **given, do="unpin")).status_code == 404
    assert (await visitor.post(f"{address}/pins", agent="maya", title=" ", do="pin")).status_code == 400
    assert (await visitor.post(f"{address}/pins", agent="leo", title="x", do="pin")).status_code == 404


async def test_emptied_field_of_a_topic_is_cleared_and_missing_one_stays(visitor: Visitor):
    pins, address = PinnedTopicStore(visitor.store), await visitor.caller_address()
    given = {"agent": "maya", "title": "Bike repair", "do": "pin"}
    await visitor.post(f"{address}/pins", **given, about="Brake pads", status="Ordered", items="Call Ana")
    page = await visitor.page(address)
    assert 'name="about" value="Brake pads"' in page and 'name="status" value="Ordered"' in page
    await visitor.post(f"{address}/pins", **given, about="Both brakes")
    [pin] = await pins.pinned("maya", ANA)
    assert (pin.about, pin.status, pin.open_items) == ("Both brakes", "Ordered", ("Call Ana",))
    await visitor.post(f"{address}/pins", **given, about="", status=" ", items="")
    [pin] = await pins.pinned("maya", ANA)
    assert (pin.about, pin.status, pin.open_items) == ("", "", ())


async def test_history_says_what_an_operator_did(visitor: Visitor):
    address = await visitor.caller_address()
    for about in ("Brake pads", "Both brakes"):
        await visitor.post(f"{address}/pins", agent="maya", title="Bike repair", do="pin", about=about)
    page = await visitor.page(address)
    assert re.findall(r"</time> · by operator</p>\s+<b>(\w+)</b>", page) == ["updated", "pinned"]


async def test_state_can_be_changed_and_forgotten(visitor: Visitor):
    state = CallerStateStore(visitor.store)
    await state.save(
        "maya", ANA, {"bike": "red", "visits": 2}, session_id="voice-session:1", now=visitor.session.started_at
    )
    address = await visitor.caller_address()
    await visitor.post(f"{address}/state", agent="maya", key="visits", value="3", do="save")
    await visitor.post(f"{address}/state", agent="maya", key="bike", do="forget")
    assert await state.load("maya", ANA) == {"visits": 3}
    assert (await visitor.post(f"{address}/state", agent="maya", key="bike", value="x")).status_code == 404
    assert (await visitor.post(f"{address}/state", agent="maya", key="visits", value="[1]")).status_code == 400


async def test_unedited_forms_change_nothing(visitor: Visitor):
    address, state = await visitor.caller_address(), CallerStateStore(visitor.store)
    items = ["Call Ana", "\U0001f469\u200d\U0001f4bb"]
    await PinnedTopicStore(visitor.store).pin("maya", ANA, "Bike", about='"Brake" &lt;pads&gt;', open_items=items)
    values = {"size": "54", "note": "two\n\nlines", "quote": '"x"', "seats": {"a": 1}, "ok": True}
    await state.save("maya", ANA, values, session_id="voice-session:1", now=visitor.session.started_at)
    page = await visitor.page(address)
    before = (await MemoryReports(visitor.store).of(ANA)).as_json()
    sent = 0
    for action, content in re.findall(r'<form[^>]*action="([^"]*/(?:facts|pins|state))"(.*?)</form>', page, re.DOTALL):
        fields = re.findall(r'<input[^>]*? name="(\w+)"(?: value="([^"]*)")?', content)
        fields += re.findall(r'<textarea name="(\w+)"[^>]*>\n(.*?)</textarea>', content, re.DOTALL)
        given = {name: unescape(value).replace("\n", "\r\n") for name, value in fields if name != "form_token"}
        if 'value="save"' in content:
            answer = await visitor.post(action, **given, do="save")
            assert answer.headers["location"] == f"{address}?done=same"
            sent += 1
    assert sent == 9 and (await MemoryReports(visitor.store).of(ANA)).as_json() == before
    assert await state.load("maya", ANA) == values | {"bike": "road, size 54"}


async def test_unverified_fact_is_confirmed_by_saving_it(visitor: Visitor):
    session = a_session(caller=ANA, trust=TrustLevel.SUMMARIES)
    await FactStore(visitor.store).learn(session, [CallerFact("Rides a tandem", "other", 0.9, (1,))], datetime.now(UTC))
    form, address = await fact_form(visitor, "Rides a tandem"), await visitor.caller_address()
    answer = await visitor.post(f"{address}/facts", **form, do="save", text="Rides a tandem")
    assert answer.headers["location"] == f"{address}?done=fact"
    [fact] = [one for one in await FactStore(visitor.store).known("maya", ANA, 99) if one.text == "Rides a tandem"]
    assert not fact.trust.mark


async def test_closed_topic_stays_closed_until_it_is_reopened(visitor: Visitor):
    pins, address = PinnedTopicStore(visitor.store), await visitor.caller_address()
    given = {"agent": "maya", "title": "Bike", "about": "Brake pads", "status": "", "items": ""}
    for do, about in (("close", ""), ("save", "Both"), ("save", "Both"), ("pin", "Both")):
        await visitor.post(f"{address}/pins", **{**given, "about": about}, do=do)
        [pin] = await pins.pinned("maya", ANA, closed=True)
        assert (pin.about, pin.is_open) == (about, do == "pin")


async def test_control_characters_are_refused(visitor: Visitor):
    form, address = await fact_form(visitor, "Can't take calls at work"), await visitor.caller_address()
    answer = await visitor.post(f"{address}/facts", **form, do="save", text="Likes\0tea")
    assert answer.status_code == 400 and "The fact has a control character; delete it." in answer.text
    answer = await visitor.post(f"{address}/pins", agent="maya", title="Tea\0", do="pin")
    assert answer.status_code == 400 and "a title must have no control characters" in answer.text


async def test_export_is_everything(visitor: Visitor):
    answer = await visitor.http.get(f"{await visitor.caller_address()}/export.json")
    content = json.loads(answer.content)
    assert content["caller"] == ANA and len(content["calls"]) == 6 and content["facts"]
    assert answer.headers["content-disposition"] == 'attachment; filename="caller-0143.json"'


async def test_forget_needs_a_tick_and_leaves_nothing(visitor: Visitor):
    address = await visitor.caller_address()
    assert (await visitor.post(f"{address}/forget")).status_code == 400
    answer = await visitor.post(f"{address}/forget", sure="yes")
    assert answer.headers["location"].startswith("/callers?done=")
    assert not await MemoryReports(visitor.store).of(ANA)
    assert (await visitor.get(address)).status_code == 404
    assert (await visitor.get(f"/calls/{visitor.session.uuid}")).status_code == 404
    assert (await visitor.http.get(f"/calls/{visitor.session.uuid}/sound.wav")).status_code == 404
