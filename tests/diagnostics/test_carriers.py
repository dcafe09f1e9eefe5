from pathlib import Path

import pytest

from tests.diagnostics.conftest import NO_MODELS, Doctor
from tests.fakes.accounts import FakeTelnyxAccount, FakeTwilioAccount


async def test_limits_that_are_off_are_named(doctor: Doctor) -> None:
    _, found = await doctor(**NO_MODELS)
    assert found["limits"] == ("ok", "no limit: MAX_CALLS")
    _, found = await doctor(**NO_MODELS, MAX_CALLS="20", MAX_CALL_SECONDS="0", OUTBOUND_ALLOWED="*,+881")
    state, words = found["limits"]
    assert (state, words.startswith("no limit: MAX_CALL_SECONDS, OUTBOUND_ALLOWED ")) == ("warning", True)
    _, found = await doctor(**NO_MODELS, MAX_CALLS="20", MAX_CALL_SECONDS="600", OUTBOUND_ALLOWED="+1")
    assert found["limits"] == ("ok", "all set")


HERE = {"voice_url": "https://voice.invalid/twilio/incoming", "status_callback": "https://voice.invalid/twilio/status"}


@pytest.mark.parametrize(
    ("settings", "agent", "found"),
    [
        (HERE, "", ("ok", "+12025550100, +12025550101 leads here")),
        ({}, "", ("warning", "none leads here (+12025550100, +12025550101) ")),
        (
            {},
            "+12025550101",
            ("problem", "+12025550101 does not lead here run: gateway setup twilio --number +12025550"),
        ),
        (HERE | {"status_callback": ""}, "", ("warning", "+12025550100 has another status_callback ")),
        (HERE | {"voice_application_sid": "AP1"}, "", ("warning", "none leads here ")),
    ],
)
async def test_numbers_of_twilio_lead_here(
    doctor: Doctor, tmp_path: Path, settings: dict[str, str], agent: str, found: tuple[str, str]
) -> None:
    (tmp_path / "gateway.toml").write_text(f"[agents.maya]\nnumbers = {[agent] if agent else []}\n")
    async with FakeTwilioAccount("+12025550100", "+12025550101", **settings).running() as twilio:
        _, results = await doctor(PUBLIC_URL="https://voice.invalid", **twilio.settings(), **NO_MODELS)
    state, words = results["twilio numbers"]
    assert (state, words[: len(found[1])]) == found


async def test_numbers_without_public_url_are_not_checked(doctor: Doctor) -> None:
    async with FakeTwilioAccount("+12025550100", **HERE).running() as twilio:
        _, found = await doctor(**twilio.settings(), **NO_MODELS)
    assert found["twilio"][0] == "ok"
    state, words = found["twilio numbers"]
    assert (state, words.partition(", ")[0]) == ("warning", "PUBLIC_URL is missing")


async def test_numbers_of_telnyx_lead_here(doctor: Doctor) -> None:
    account = FakeTelnyxAccount("+12025550100", connection_id="7")
    async with account.running() as telnyx:
        environ = {"PUBLIC_URL": "https://voice.invalid", **telnyx.settings(), **NO_MODELS}
        _, found = await doctor(**environ)
        assert found["telnyx numbers"] == ("warning", "none leads here (+12025550100) run: gateway setup telnyx")
        hook = {"webhook_event_url": "https://voice.invalid/telnyx/webhook", "webhook_api_version": "2"}
        account.applications["7"] = {"id": "7", "application_name": "mine", **hook}
        _, found = await doctor(**environ)
    assert found["telnyx numbers"] == ("ok", "+12025550100 leads here")
