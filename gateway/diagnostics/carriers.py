"""Checks of telephony: keys and numbers at the carriers, who may call, and the limits against fraud and cost."""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import Final
from urllib.parse import quote

from gateway.agents import Agent, AgentDirectory
from gateway.diagnostics.http_probe import HttpProbe, bearer
from gateway.diagnostics.public_address import SET_IT
from gateway.diagnostics.results import TIMEOUT, CheckResult, off, ok, problem, warning
from gateway.errors import CarrierRefused, GatewayError, SettingsError
from gateway.invocation import command
from gateway.settings import Settings
from gateway.telephony.number_setup import Redirection, TelnyxAccount, TwilioAccount, webhook_urls
from gateway.text.figures import listed

SET_KEYS: Final = "for a phone number, set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN, or the TELNYX_ keys"
_INCOMING: Final = {"voice_url", "voice_application_sid", "webhook_event_url"}
"""The settings of a number that decide where incoming calls go."""
_MOST_NUMBERS: Final = 5
_LIMITS: Final = ("max_calls", "max_call_seconds", "calls_per_caller", "outbound_per_hour")


async def check_telephony(settings: Settings, probe: HttpProbe) -> list[CheckResult]:
    try:
        agents = list(AgentDirectory(settings.agents, settings.folder))
    except GatewayError:  # reported with the settings
        agents = []
    return [*await check_carriers(settings, agents, probe), check_callers(settings), _limits(settings)]


async def check_carriers(settings: Settings, agents: Iterable[Agent], probe: HttpProbe) -> list[CheckResult]:
    """Keys, and whether the numbers lead here."""
    if not settings.carriers:
        return [off("carriers", "not configured; calls from the browser need none", SET_KEYS)]
    numbers = {number for agent in agents for number in agent.numbers}
    checks = [_carrier(name, settings, numbers, probe) for name in sorted(settings.carriers)]
    return [one for found in await asyncio.gather(*checks) for one in found]


async def _carrier(
    name: str, settings: Settings, agents_numbers: Collection[str], probe: HttpProbe
) -> list[CheckResult]:
    key = await (_twilio_key if name == "twilio" else _telnyx_key)(settings, probe)
    if key.state != "ok":
        return [key]
    if not settings.public_url:
        # Not from the proxy's headers: no request of a carrier may have come yet.
        return [key, warning(f"{name} numbers", "PUBLIC_URL is missing, so the numbers were not checked", SET_IT)]
    try:
        return [key, _numbers(name, await asyncio.to_thread(_redirections, name, settings), agents_numbers)]
    except (SettingsError, CarrierRefused) as error:
        return [key, warning(f"{name} numbers", f"not listed: {error}", "try again, or look at the carrier's console")]


async def _twilio_key(settings: Settings, probe: HttpProbe) -> CheckResult:
    sid, token = settings.twilio_account_sid, settings.twilio_auth_token
    assert token is not None
    account = f"{settings.twilio_api_url.rstrip('/')}/2010-04-01/Accounts/{quote(sid, '')}"
    url = f"{account}/IncomingPhoneNumbers.json?PageSize=1"
    names = {"keys": "TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN", "address": "TWILIO_API_URL"}
    return await probe.check_key("twilio", url, **names, auth=(sid, token.reveal()))


async def _telnyx_key(settings: Settings, probe: HttpProbe) -> CheckResult:
    key = settings.telnyx_api_key
    assert key is not None
    url = f"{settings.telnyx_api_url.rstrip('/')}/phone_numbers"
    names = {"keys": "TELNYX_API_KEY", "address": "TELNYX_API_URL"}
    return await probe.check_key("telnyx", url, **names, headers=bearer(key))


def _redirections(name: str, settings: Settings) -> list[Redirection]:
    """Blocks. Raises SettingsError, CarrierRefused."""
    urls = webhook_urls(settings.public_url)
    if name == "twilio" and settings.twilio_auth_token is not None:
        sid, token = settings.twilio_account_sid, settings.twilio_auth_token
        twilio = TwilioAccount(api_url=settings.twilio_api_url, account_sid=sid, auth_token=token, timeout=TIMEOUT)
        return twilio.find_all(webhook_url=urls["twilio"], status_url=urls["twilio status"])
    assert settings.telnyx_api_key is not None
    telnyx = TelnyxAccount(api_url=settings.telnyx_api_url, api_key=settings.telnyx_api_key, timeout=TIMEOUT)
    return telnyx.find_all(webhook_url=urls["telnyx"])


def _numbers(name: str, found: Sequence[Redirection], agents_numbers: Collection[str]) -> CheckResult:
    """Numbers that lead elsewhere are no fault, unless an agent names them: the account may have other uses."""
    check, set_up = f"{name} numbers", f"run: {command(f'setup {name}')}"
    if not found:
        return warning(check, "the account has no number", "buy one at the carrier")
    elsewhere = [one.number for one in found if _INCOMING & {change.what for change in one.changes}]
    if lost := sorted(set(elsewhere) & set(agents_numbers)):
        return problem(check, f"{listed(lost, _MOST_NUMBERS)} does not lead here", f"{set_up} --number {lost[0]}")
    here = [one for one in found if one.number not in elsewhere]
    if not here:
        todo = set_up if len(found) == 1 else f"{set_up} --number {found[0].number}"
        return warning(check, f"none leads here ({listed(elsewhere, _MOST_NUMBERS)})", todo)
    if unfinished := [one for one in here if one.changes]:
        what = unfinished[0].changes[0].what
        return warning(check, f"{unfinished[0].number} has another {what}", f"{set_up} --number {unfinished[0].number}")
    return ok(check, f"{listed([one.number for one in here], _MOST_NUMBERS)} leads here")


def check_callers(settings: Settings) -> CheckResult:
    if "*" in settings.allowed_callers:
        return ok("callers", "anyone may call")
    if settings.allowed_callers:
        return ok("callers", f"{len(settings.allowed_callers)} allowed")
    todo = "set ALLOWED_CALLERS to your number, or to * for anyone"
    if not settings.carriers:
        return off("callers", "no number may call yet", todo)
    return problem("callers", "all callers are rejected", todo)


def _limits(settings: Settings) -> CheckResult:
    """MAX_CALLS is off by default: how much is too much differs."""
    unlimited = [name.upper() for name in _LIMITS if not getattr(settings, name)]
    if "*" in settings.outbound_allowed:
        unlimited.append("OUTBOUND_ALLOWED")
    if not unlimited:
        return ok("limits", "all set")
    found = f"no limit: {', '.join(unlimited)}"
    if unlimited == ["MAX_CALLS"]:
        return ok("limits", found)
    return warning("limits", found, "set them, or calls may cost more than you expect")
