"""Pointing a number at the gateway, against simulated account APIs. `gateway setup` itself is in tests/cli."""

import asyncio

import pytest

from gateway.errors import CarrierRefused, SettingsError
from gateway.settings import Secret
from gateway.telephony.number_setup import SettingChange, TelnyxAccount, TwilioAccount
from tests.fakes.accounts import ACCOUNT, KEY, TOKEN, FakeTelnyxAccount, FakeTwilioAccount

NUMBER, OTHER = "+12025550100", "+12025550101"
WEBHOOK, STATUS = "https://voice.example.com/twilio/incoming", "https://voice.example.com/twilio/status"


def find_twilio(fake, number="", token=TOKEN):
    account = TwilioAccount(api_url=fake.url, account_sid=ACCOUNT, auth_token=Secret(token))
    return account.find(number, webhook_url=WEBHOOK, status_url=STATUS)


def find_telnyx(fake, number="", key=KEY):
    return TelnyxAccount(api_url=fake.url, api_key=Secret(key)).find(number, webhook_url=WEBHOOK)


async def test_find_changes_nothing():
    async with FakeTwilioAccount(NUMBER).running() as fake:
        before = dict(next(iter(fake.numbers.values())))
        found = await asyncio.to_thread(find_twilio, fake)
        assert next(iter(fake.numbers.values())) == before
    assert found.changes[0] == SettingChange("voice_url", "https://demo.twilio.com/welcome/voice/", WEBHOOK)


async def test_applied_number_needs_no_changes():
    async with FakeTwilioAccount(NUMBER).running() as fake:
        found = await asyncio.to_thread(find_twilio, fake)
        await asyncio.to_thread(found.apply)
        assert (await asyncio.to_thread(find_twilio, fake)).changes == ()


async def test_twilio_number_of_a_trunk_is_refused():
    async with FakeTwilioAccount(NUMBER, trunk_sid="TK1").running() as fake:
        with pytest.raises(SettingsError, match="belongs to a SIP trunk"):
            await asyncio.to_thread(find_twilio, fake)


@pytest.mark.parametrize(("fake", "find"), [(FakeTwilioAccount, find_twilio), (FakeTelnyxAccount, find_telnyx)])
async def test_number_must_be_unambiguous(fake, find):
    async with fake(NUMBER, OTHER).running() as account:
        with pytest.raises(SettingsError, match="several numbers .* say which with --number"):
            await asyncio.to_thread(find, account)
        with pytest.raises(SettingsError, match=r"no number \+12025550102"):
            await asyncio.to_thread(find, account, "+12025550102")
        assert (await asyncio.to_thread(find, account, OTHER)).number == OTHER


@pytest.mark.parametrize(("fake", "find"), [(FakeTwilioAccount, find_twilio), (FakeTelnyxAccount, find_telnyx)])
async def test_wrong_key_is_refused(fake, find):
    async with fake(NUMBER).running() as account:
        with pytest.raises(CarrierRefused) as raised:
            await asyncio.to_thread(find, account, NUMBER, "wrong")
    assert raised.value.status == 401


async def test_telnyx_number_gets_an_application():
    async with FakeTelnyxAccount(NUMBER).running() as fake:
        found = await asyncio.to_thread(find_telnyx, fake)
        assert [change.what for change in found.changes] == ["connection", "webhook_event_url", "webhook_api_version"]
        await asyncio.to_thread(found.apply)
        [made] = fake.applications.values()
        assert (made["webhook_event_url"], fake.numbers["1"]["connection_id"]) == (WEBHOOK, made["id"])
        assert (await asyncio.to_thread(find_telnyx, fake)).changes == ()


def test_unreachable_carrier_is_one_line():
    class Nowhere:
        url = "http://127.0.0.1:9"

    for find in (find_twilio, find_telnyx):
        with pytest.raises(SettingsError, match="can't be reached"):
            find(Nowhere())
