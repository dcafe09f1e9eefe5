"""The Agents pages."""

import html
import os
import re
from pathlib import Path

import pytest

from gateway.history.agent_versions import AgentVersion, AgentVersionTable
from gateway.history.audit_log import AuditFilter, AuditLog
from gateway.settings import Secret
from tests.stage import CALLER, make_carrier, staged, until_it
from tests.web.conftest import TOKEN, Visitor

PROMPT = "You are Maya. {{caller}} calls.\n{{memory}}"


async def base(visitor: Visitor) -> str:
    [version] = re.findall(r'name="base" value="([0-9a-f]{12})"', await visitor.page("/agents/maya"))
    return version


async def saved(visitor: Visitor, **form: str):
    given = {"prompt": PROMPT, "greeting": "Hi!", "base": await base(visitor), **form}
    return await visitor.post("/agents/maya/save", **given)


async def versions(visitor: Visitor) -> list[AgentVersion | None]:
    table = AgentVersionTable(visitor.store)
    return [await table.find("maya", entry.version) for entry in await table.entries("maya")]


def prompt_file(visitor: Visitor) -> Path:
    """The copy of the program's prompt."""
    return visitor.folder / "data" / "prompts" / "maya.md"


def shown(text: str, label: str) -> str:
    """The content of the <pre> with this label."""
    [found] = re.findall(rf'<pre[^>]*aria-label="{label}"[^>]*>(.*?)</pre>', text, re.DOTALL)
    return html.unescape(re.sub("<[^>]*>", "", found))


async def test_list_shows_each_agent(visitor: Visitor):
    page = await visitor.page("/agents")
    assert '<a class="whole" href="/agents/maya"><b>maya</b></a>' in page
    assert "deepgram" in page and "aura-2-thalia-en" in page and "61 calls" in page


async def test_page_shows_everything_the_agent_has(visitor: Visitor):
    page = await visitor.page("/agents/maya")
    for text in ("Hello, this is Maya.", "end_call", "search_memory", str(prompt_file(visitor)), "VOICE_ENGINE"):
        assert text in page
    assert "microphone=(self)" in (await visitor.get("/agents/maya")).headers["Permissions-Policy"]


async def test_saved_texts_are_in_the_files_and_used(visitor: Visitor):
    answer = await saved(visitor)
    assert answer.headers["location"] == "/agents/maya?done=saved"
    assert prompt_file(visitor).read_text() == f"{PROMPT}\n"
    assert (visitor.folder / "gateway.toml").read_text() == '[agents.maya]\ngreeting = "Hi!"\n'
    page = await visitor.page("/agents/maya?done=saved")
    assert "Saved. New calls use this version." in page and ">\nHi!</textarea>" in page


async def test_change_is_in_history_and_audit_log_without_words(visitor: Visitor):
    await saved(visitor)
    newest, *_ = await versions(visitor)
    assert (newest.actor, newest.live.greeting) == ("admin", "Hi!")
    [entry] = await AuditLog(visitor.store, Secret(TOKEN)).page(AuditFilter(action="agent.change"), limit=9)
    assert (entry.agent, entry.item, entry.outcome) == ("maya", newest.version, "done")
    assert entry.actor.startswith("login:")


async def test_preview_and_unchanged_texts_leave_no_trace(visitor: Visitor):
    await visitor.post("/agents/maya/preview", prompt=PROMPT, greeting="Hi!", base="", caller=CALLER)
    await saved(visitor)
    assert (await saved(visitor)).headers["location"] == "/agents/maya?done=same"
    entries = await AuditLog(visitor.store, Secret(TOKEN)).page(AuditFilter(action="agent.change"), limit=9)
    assert len(entries) == 1


async def test_preview_has_the_callers_memory(visitor: Visitor):
    form = {"prompt": PROMPT, "greeting": "Hi!", "caller": "+1 202 555 0143", "situation": "verified"}
    page = (await visitor.post("/agents/maya/preview", **form)).text
    preview = shown(page, "Prompt as the engine receives it")
    assert "You are Maya. Ana Ruiz (+12025550143) calls." in preview
    assert "Can't take calls at work" in preview and "(access: everything)" in page
    assert 'in a call from <bdi>Ana Ruiz</bdi> <span class="number">+1 202-555-0143</span>' in page
    assert "+ You are Maya. {{caller}} calls." in shown(page, "Changes")
    assert not prompt_file(visitor).exists()


async def test_keys_of_the_test_call_are_listed(visitor: Visitor):
    for path in ("/agents/maya", "/phone"):
        assert "Mute or unmute, during a call" in await visitor.page(path)


async def test_preview_of_an_untrusted_call_has_no_memory(visitor: Visitor):
    form = {"prompt": PROMPT, "greeting": "", "caller": CALLER, "situation": "failed"}
    page = (await visitor.post("/agents/maya/preview", **form)).text
    preview = shown(page, "Prompt as the engine receives it")
    assert "Ana" not in preview and "work" not in preview
    assert 'Preview <span class="faint">(access: none)' in page


async def test_longest_prompt_makes_no_page_too_large(visitor: Visitor):
    prompt = "\n".join(
        f"Line {number:03} of the prompt, as long as most lines in a prompt are." for number in range(390)
    )
    form = {"prompt": prompt, "greeting": "Hi!", "caller": CALLER}
    answer = await visitor.post("/agents/maya/preview", **form)
    assert 24_000 < len(prompt) and len(answer.content) < 100_000
    assert "Not all changes are shown here." in answer.text
    assert (await saved(visitor, prompt=prompt)).status_code == 303
    assert len((await visitor.get(f"/agents/maya/versions/{await base(visitor)}")).content) < 100_000


async def test_file_changed_elsewhere_is_kept_and_so_is_the_text(visitor: Visitor):
    await saved(visitor)
    loaded = await base(visitor)
    prompt_file(visitor).write_text("Edited with vi.\n")
    answer = await saved(visitor, prompt="Edited in the browser.", base=loaded)
    assert answer.status_code == 409 and "Not saved: the files were changed" in answer.text
    assert "- Edited with vi." in shown(answer.text, "Changes")
    assert "+ Edited in the browser." in shown(answer.text, "Changes")
    assert prompt_file(visitor).read_text() == "Edited with vi.\n"
    assert (await saved(visitor, prompt="Edited in the browser.")).status_code == 303


@pytest.mark.parametrize(
    "form, problem",
    [
        ({"prompt": "  "}, "Not saved: the prompt is empty."),
        ({"greeting": "a" * 1001}, "Not saved: the greeting has 1,001 characters; it can have 1,000."),
        ({"prompt": "One\r\nTwo\0"}, "line 2 of the prompt has a control character, shown as \ufffd; delete it."),
        ({"greeting": "Hi\ufffd"}, "line 1 of the greeting has a control character, shown as \ufffd; delete it."),
        ({"prompt": "é" * 20_000}, "Not saved: the prompt has 40,000 bytes; it can have 25,000."),
        ({"voice": " "}, "Not saved: the voice is empty."),
    ],
)
async def test_mistake_is_one_clear_message(visitor: Visitor, form: dict[str, str], problem: str):
    answer = await saved(visitor, **form)
    assert answer.status_code == 400 and problem in answer.text
    assert not prompt_file(visitor).exists()


# Engine and tools


def toml_of(visitor: Visitor) -> str:
    path = visitor.folder / "gateway.toml"
    return path.read_text() if path.exists() else ""


async def edited(visitor: Visitor, **form: str):
    """What the page's form sends, with these changes; an empty `tool:NAME` is a box that is not ticked."""
    page = await visitor.page("/agents/maya")
    fields = dict(re.findall(r'name="(base|voice|engine|tools)" value="([^"]*)"', page))
    fields |= dict.fromkeys(re.findall(r'name="(tool:\w+)" value="on" checked', page), "on")
    for name in ("prompt", "greeting", "transfer_to"):
        [fields[name]] = re.findall(rf'<textarea[^>]* name="{name}"[^>]*>\n(.*?)</textarea>', page, re.DOTALL)
    given = {name: html.unescape(value) for name, value in fields.items()} | form
    sent = {name: value for name, value in given.items() if value or not name.startswith("tool:")}
    return await visitor.post("/agents/maya/save", **sent)


async def test_page_sent_back_unchanged_changes_nothing(visitor: Visitor):
    (visitor.folder / "gateway.toml").write_text(
        '[agents.maya]\nengine = ["deepgram"]\ntransfer_to = { desk = "+1 202 555 0177", b = "sip:b@example.com" }\n'
        'disabled_tools = ["end_call", "of_a_server_that_is_away"]\n'
    )
    assert (await edited(visitor)).headers["location"] == "/agents/maya?done=same"


UNUSUAL = (
    '\n\n You\tare &lt;Maya&gt; "\u201ca\u201d" \U0001f469\u200d\U0001f4bb \u05d0\u200e \ufeff\u2028\x0c\x01\n\n'
    "```\n </textarea>\n\n\n"
)


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
async def test_unedited_texts_stay_as_they_are(visitor: Visitor, line_end: str):
    prompt_file(visitor).parent.mkdir()
    prompt_file(visitor).write_text(UNUSUAL, newline=line_end)
    written = prompt_file(visitor).read_bytes()
    toml = (
        '[agents.maya]\ngreeting = """\\n Bonjour\u00a0!\\n\nJe suis\\u0007 Maya. """\nvoice = " aura "\n'
        'transfer_to = { "a=b" = "+12025550177", desk = "+12025550178" }\n'
    )
    (visitor.folder / "gateway.toml").write_text(toml)
    assert (await edited(visitor)).headers["location"] == "/agents/maya?done=same"
    assert (prompt_file(visitor).read_bytes(), toml_of(visitor)) == (written, toml)
    assert (await edited(visitor, **{"tool:end_call": ""})).headers["location"] == "/agents/maya?done=saved"
    assert prompt_file(visitor).read_bytes() == written
    assert toml_of(visitor) == f'{toml}disabled_tools = ["end_call"]\n'


async def test_unusual_characters_are_saved(visitor: Visitor):
    prompt = 'First.\r\n\r\n\tSecond &amp; "third" \U0001f469\u200d\U0001f4bb \u200fשלום'
    await saved(visitor, prompt=prompt, greeting="Bonjour\u00a0!\r\nC'est \U0001f469\u200d\U0001f4bb.")
    assert prompt_file(visitor).read_text() == prompt.replace("\r\n", "\n") + "\n"
    assert 'greeting = "Bonjour\u00a0!\\nC\'est \U0001f469\u200d\U0001f4bb."' in toml_of(visitor)
    assert (await edited(visitor)).headers["location"] == "/agents/maya?done=same"


async def test_engine_is_saved_and_left_to_voice_engine_again(visitor: Visitor):
    assert (await edited(visitor, engine=" Deepgram ")).headers["location"] == "/agents/maya?done=saved"
    assert toml_of(visitor) == '[agents.maya]\nengine = "deepgram"\n'
    assert 'name="engine" value="deepgram"' in await visitor.page("/agents/maya")
    await edited(visitor, engine="")
    assert toml_of(visitor) == "[agents.maya]\n"
    assert 'placeholder="VOICE_ENGINE: deepgram"' in await visitor.page("/agents/maya")


async def test_tools_and_transfer_targets_are_saved(visitor: Visitor):
    targets = "desk = +1 (202) 555-0177\r\n\r\nnight = sip:night@example.com\r\n"
    await edited(visitor, transfer_to=targets, **{"tool:search_memory": ""})
    assert toml_of(visitor) == (
        '[agents.maya]\ndisabled_tools = ["search_memory"]\n'
        'transfer_to = {desk = "+12025550177", night = "sip:night@example.com"}\n'
    )
    page = await visitor.page("/agents/maya")
    assert 'name="tool:transfer_call" value="on" checked' in page
    assert 'name="tool:search_memory" value="on">' in page
    await edited(visitor, transfer_to="", **{"tool:search_memory": "on"})
    assert toml_of(visitor) == "[agents.maya]\n"


@pytest.mark.parametrize(
    "form, problem",
    [
        ({"engine": "deepgrm"}, "gateway.toml, [agents.maya]: engine is 'deepgrm'; use one of: deepgram, local,"),
        ({"engine": "deepgram, xai"}, "gateway.toml, [agents.maya]: engine is xai but XAI_API_KEY is not set."),
        (
            {"transfer_to": "= +12025550177"},
            "gateway.toml, [agents.maya]: transfer_to: a target has no name; write it like",
        ),
        ({"transfer_to": "desk"}, "gateway.toml, [agents.maya]: transfer_to: desk must be a number like +12025550100"),
        ({"transfer_to": "desk = +1 900 234 5678"}, "is a premium-rate or satellite number; add its prefix"),
    ],
)
async def test_mistake_gets_the_sentence_of_gateway_serve(visitor: Visitor, form: dict[str, str], problem: str):
    answer = await edited(visitor, **form)
    assert answer.status_code == 400 and "Not saved: " in answer.text and problem in html.unescape(answer.text)
    assert toml_of(visitor) == ""
    previewed = await visitor.post("/agents/maya/preview", prompt=PROMPT, greeting="Hi!", **form)
    assert problem in html.unescape(previewed.text)


async def test_preview_and_version_show_engine_and_tools(visitor: Visitor):
    form = {"tools": "end_call search_memory", "tool:end_call": "on", "transfer_to": "desk = +12025550177"}
    page = (await visitor.post("/agents/maya/preview", prompt=PROMPT, greeting="Hi!", engine="deepgram", **form)).text
    changes = shown(page, "Changes")
    for line in ("- engine: VOICE_ENGINE", "+ engine: deepgram", "+ tool search_memory: off"):
        assert line in changes
    assert "+ transfer target desk: +12025550177" in changes
    assert "<h3>Tools</h3><p><code>end_call</code>, <code>transfer_call</code></p>" in page
    await edited(visitor, engine="deepgram", **{"tool:search_memory": ""})
    page = await visitor.page(f"/agents/maya/versions/{await base(visitor)}")
    assert "<h3>Engine</h3><p>deepgram</p>" in page and "<p><code>search_memory</code></p>" in page


async def test_earlier_engine_and_tools_are_restored(visitor: Visitor):
    first = await base(visitor)
    await edited(visitor, engine="deepgram", transfer_to="desk = +12025550177", **{"tool:end_call": ""})
    answer = await visitor.post("/agents/maya/restore", version=first, base=await base(visitor))
    assert answer.headers["location"] == "/agents/maya?done=restored"
    assert (await base(visitor), toml_of(visitor)) == (first, "[agents.maya]\n")


async def test_broken_toml_is_explained_and_the_agent_stays(visitor: Visitor):
    (visitor.folder / "gateway.toml").write_text("[agents.maya\n")
    page = await visitor.page("/agents/maya")
    assert "gateway.toml can&#39;t be read" in page and "Hello, this is Maya." in page
    answer = await saved(visitor)
    assert answer.status_code == 400 and "gateway.toml can&#39;t be read" in answer.text


async def test_earlier_version_is_shown_and_restored(visitor: Visitor):
    await saved(visitor, prompt="First.")
    first = await base(visitor)
    await saved(visitor, prompt="Second.", greeting="Ho!")
    page = await visitor.page(f"/agents/maya/versions/{first}")
    assert shown(page, "Prompt of this version") == "First."
    assert "- Second." in page and "+ First." in page
    answer = await visitor.post("/agents/maya/restore", version=first, base=await base(visitor))
    assert answer.headers["location"] == "/agents/maya?done=restored"
    assert prompt_file(visitor).read_text() == "First.\n"
    assert [one.live.prompt for one in await versions(visitor)][:3] == ["First.", "Second.", "First."]


async def test_restore_of_a_page_that_is_out_of_date_is_refused(visitor: Visitor):
    await saved(visitor, prompt="First.")
    first = await base(visitor)
    await saved(visitor, prompt="Second.")
    answer = await visitor.post("/agents/maya/restore", version=first, base=first)
    assert answer.status_code == 409 and "Not restored" in answer.text


async def test_unknown_agent_and_version_are_not_found(visitor: Visitor):
    assert (await visitor.get("/agents/tom")).status_code == 404
    assert (await visitor.get("/agents/maya/versions/000000000000")).status_code == 404


async def test_stranger_sees_and_changes_nothing(stranger: Visitor):
    assert (await stranger.get("/agents/maya")).headers["location"] == "/login"
    answer = await stranger.http.post("/agents/maya/save", data={"prompt": "Mine."})
    assert answer.status_code == 401
    assert not prompt_file(stranger).exists()


async def test_foreign_form_is_refused(visitor: Visitor):
    form = {"prompt": "Mine.", "greeting": "", "base": await base(visitor)}
    assert (await visitor.post("/agents/maya/save", origin="https://evil.example", **form)).status_code == 403
    assert (await visitor.post("/agents/maya/save", form_token="guessed", **form)).status_code == 403
    assert not prompt_file(visitor).exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_read_only_folder_is_named(visitor: Visitor):
    visitor.folder.chmod(0o500)
    try:
        page = await visitor.page("/agents/maya")
        assert "is read-only for this program" in page and "formaction" not in page
    finally:
        visitor.folder.chmod(0o700)


async def test_next_call_has_the_saved_prompt_and_says_which(tmp_path: Path):
    """The preview is what the engine receives; the call keeps the version."""
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        await stage.http.post("/login", data={"token": "admin-token-of-the-tests"})
        page = (await stage.http.get("/agents/maya")).text
        form = {name: re.findall(rf'name="{name}" value="(\w+)"', page)[0] for name in ("form_token", "base")}
        form |= {"prompt": "Only {{caller}}.", "greeting": "Hi!", "caller": CALLER, "situation": "verified"}
        form |= {"tools": "end_call search_memory", "tool:end_call": "on", "transfer_to": "desk = +12025550177"}
        answer = await stage.http.post("/agents/maya/preview", data=form, headers={"Accept": "text/html"})
        preview = shown(answer.text, "Prompt as the engine receives it")
        assert (await stage.http.post("/agents/maya/save", data=form)).status_code == 303
        call, conversation = await stage.dial()
        agent = conversation.settings["agent"]
        assert (agent["think"]["prompt"], agent["greeting"]) == (preview, "Hi!")
        assert [function["name"] for function in agent["think"]["functions"]] == ["end_call", "transfer_call"]
        await stage.played(call, conversation)
        await conversation.user_says("Hello?")
        await call.hang_up()
        await stage.idle()
        [row] = (await stage.http.get("/v1/sessions")).json()
        uuid = row["session"].removeprefix("voice-session:")

        async def receipt():
            return (await stage.http.get(f"/v1/sessions/{uuid}")).json().get("receipt")

        version = (await until_it(receipt))["version"]
        link = f'href="/agents/maya/versions/{version}"'
        assert link in (await stage.http.get(f"/calls/{uuid}")).text
        assert "Only {{caller}}." in (await stage.http.get(f"/agents/maya/versions/{version}")).text
