"""Checks of every agent: prompt, functions, knowledge, recording, and the services that its calls are reported to."""

import asyncio
from collections.abc import Iterator
from typing import Final

from gateway.agents import Agent, wants_memory
from gateway.diagnostics.configuration import Configuration
from gateway.diagnostics.http_probe import HttpProbe
from gateway.diagnostics.results import CheckResult, off, ok, problem, warning
from gateway.invocation import command
from gateway.memory.knowledge import examine_folder
from gateway.text.figures import count, listed

_MOST_NAMES: Final = 6


async def check_agents(configuration: Configuration, probe: HttpProbe) -> list[CheckResult]:
    checks = await asyncio.gather(*(_agent(agent, configuration, probe) for agent in configuration.agents))
    return [*(one for found in checks for one in found), *_recordings(configuration)]


async def _agent(agent: Agent, configuration: Configuration, probe: HttpProbe) -> list[CheckResult]:
    found = [_prompt(agent, configuration)]
    if (module := configuration.tool_modules.get(agent.name)) is not None:
        names = sorted((await module.current()).tools)
        found.append(
            ok(f"functions of {agent.name}", f"{count(len(names), 'function')}: {listed(names, _MOST_NAMES)}")
            if names
            else warning(f"functions of {agent.name}", "the file has none", "add a function, or remove functions")
        )
    if agent.knowledge is not None:
        found.append(await asyncio.to_thread(_knowledge, agent, configuration))
    services = {"webhook": agent.webhook or configuration.settings.webhook_url, "text agent": agent.text_agent}
    for what, url in services.items():
        if url.startswith(("http:", "https:")):
            todo = f"start it, or correct {what.replace(' ', '_')} in gateway.toml"
            found.append(await probe.check_host(f"{what} of {agent.name}", url, todo))
    return found


def _prompt(agent: Agent, configuration: Configuration) -> CheckResult:
    check = f"agent {agent.name}"
    if not agent.prompt:
        return problem(check, "its prompt is empty", "write what the agent is to do into its prompt file")
    engines = ", ".join(engine.name for engine in configuration.engines.by_agent[agent.name])
    parts = [f"engine {engines}", f"prompt of {len(agent.prompt):,} characters"]
    if agent.transfer_to:
        parts.append(f"transfers to {listed(sorted(agent.transfer_to), _MOST_NAMES)}")
    if agent.disabled_tools:
        parts.append(f"without the tools {listed(sorted(agent.disabled_tools), _MOST_NAMES)}")
    if not wants_memory(agent.prompt):
        todo = "write {{memory}} into its prompt, if it is to remember its callers"
        return off(check, f"{', '.join(parts)}, without {{{{memory}}}}", todo)
    return ok(check, ", ".join(parts))


def _knowledge(agent: Agent, configuration: Configuration) -> CheckResult:
    assert agent.knowledge is not None
    check = f"knowledge of {agent.name}"
    report = examine_folder(agent.name, agent.knowledge, configuration.settings.data_dir / "knowledge.db")
    found = f"{count(report.files, 'file')}, {count(report.passages, 'passage')}"
    if reason := report.skipped.get("."):
        return problem(check, f"{agent.knowledge} can't be read: {reason}", "let the user of the gateway read it")
    if report.skipped:
        name, reason = min(report.skipped.items())
        todo = "correct these files, or move them out of the folder"
        return warning(check, f"{found}; {count(len(report.skipped), 'file')} skipped ({name}: {reason})", todo)
    if not report.files:
        return warning(check, f"{agent.knowledge} has no files", "add text, Markdown, HTML or PDF files")
    if report.indexed < report.files:
        return ok(check, f"{found}; {report.files - report.indexed} to be indexed when the gateway runs")
    return ok(check, f"{found}, all indexed")


def _recordings(configuration: Configuration) -> Iterator[CheckResult]:
    """Whether recordings are encrypted, and callers know of them."""
    settings, agents = configuration.settings, list(configuration.agents)
    if settings.record_dir is None:
        if names := ", ".join(agent.name for agent in agents if agent.consent and not agent.consent.always):
            todo = "set RECORD_DIR, or add always = true to consent if your carrier records"
            yield warning("recordings", f"nothing is recorded, so {names} does not announce it", todo)
        return
    missing = [] if settings.record_key else ["not encrypted"]
    if names := ", ".join(agent.name for agent in agents if not agent.consent):
        missing.append(f"not announced by {names}")
    if missing:
        todo = f"make a RECORD_KEY with: {command('recordings key')}; add consent to agents in gateway.toml"
        yield warning("recordings", "; ".join(missing), todo)
    else:
        yield ok("recordings", "encrypted and announced")
