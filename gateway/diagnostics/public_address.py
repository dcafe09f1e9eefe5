"""PUBLIC_URL: whether it is https, and whether it leads to this gateway and no other."""

from collections.abc import Collection

import httpx

from gateway.diagnostics.http_probe import HttpProbe, json_object
from gateway.diagnostics.results import CheckResult, off, ok, problem, warning
from gateway.settings import Settings, local_url

CHECK = "PUBLIC_URL"
SET_IT = "set PUBLIC_URL to the https address of your tunnel or server"


async def check_public_address(settings: Settings, probe: HttpProbe) -> list[CheckResult]:
    """From outside of the gateway: compare the one at PUBLIC_URL with the one that runs here."""
    if not settings.public_url:
        return [unset(settings)]
    here = await probe.answer("GET", f"{local_url(settings.host, settings.port)}/health", is_ours=True)
    return await compare(settings.public_url, set() if no_gateway(here) else instances(here), probe)


def unset(settings: Settings) -> CheckResult:
    if settings.carriers:
        return warning(CHECK, "not set; taken from the proxy's headers", SET_IT)
    return off(CHECK, "not configured; calls from the browser need none", SET_IT)


async def compare(public_url: str, expected: Collection[str], probe: HttpProbe) -> list[CheckResult]:
    """Whether one of the expected instances answers at this address. None are expected if no gateway runs here."""
    answer = await probe.answer("GET", f"{public_url.rstrip('/')}/health", is_ours=True)
    found = []
    if reason := no_gateway(answer):
        todo = "start the tunnel" if expected else "start the gateway and the tunnel"
        found.append(problem(CHECK, f"no gateway at {public_url} ({reason})", todo))
    elif not expected:
        todo = "start the gateway"
        found.append(warning(CHECK, f"a gateway answers at {public_url}, but none runs here to compare", todo))
    elif not instances(answer) & set(expected):
        todo = "point the tunnel at this gateway, or correct PUBLIC_URL"
        found.append(problem(CHECK, f"{public_url} leads to another gateway", todo))
    else:
        found.append(ok(CHECK, f"{public_url} leads to this gateway"))
    if not public_url.startswith("https://"):
        found.append(problem("https", "PUBLIC_URL is not https", "use https; carriers require TLS for media"))
    return found


def no_gateway(answer: httpx.Response | str) -> str:
    """Why this response is not from a gateway; empty if it is."""
    if isinstance(answer, str):
        return answer
    if answer.status_code != 200:
        return str(answer.status_code)
    body = json_object(answer) or {}
    if "status" not in body:
        return "another service answers there"
    return "" if body["status"] == "ok" else "its /health is not ok"


def instances(answer: httpx.Response | str) -> set[str]:
    """The names of the process that has answered, and of all nodes that it knows."""
    body = None if isinstance(answer, str) else json_object(answer)
    match body:
        case {"instance": str(instance), "nodes": [*nodes]}:
            return {instance, *(str(node["node"]) for node in nodes if isinstance(node, dict) and "node" in node)}
        case {"instance": str(instance)}:
            return {instance}
    return set()
