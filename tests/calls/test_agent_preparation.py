from dataclasses import replace

import pytest

from gateway.agents import AgentDirectory
from gateway.calls.agent_preparation import AgentPreparation
from gateway.engines.interface import NoEngine
from gateway.engines.registry import EngineDirectory
from gateway.errors import NumberNotAllowed, SettingsError
from gateway.settings import Secret, Settings
from gateway.telephony.phone_numbers import DialingRules

PREMIUM, LONDON = "+19005550100", "+442079460000"


class WithoutModel(NoEngine):
    has_llm = False


class Gateway:
    def __init__(self, folder):
        self.agents = AgentDirectory({"maya": {}, "tom": {"transfer_to": {"desk": LONDON}}}, folder)
        makers = {"deepgram": lambda *_: NoEngine(), "local": lambda *_: WithoutModel()}
        self.engines = EngineDirectory(Settings(deepgram_api_key=Secret("k")), self.agents, None, makers)
        self.rules = DialingRules((), self.agents.transfer_targets)
        self.llms, self.watched = {}, []
        make_llm = lambda agent: {} if self.engines.has_llm(agent.name) else {agent.name: "its model"}  # noqa: E731
        watch = lambda made: self.watched.extend(made)  # noqa: E731
        self.preparation = AgentPreparation(self.agents, self.engines, self.llms, make_llm, self.rules, watch)

    def changed(self, name, **changes):
        return replace(self.agents.get(name), **changes)


@pytest.fixture
def gateway(tmp_path):
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "tom.md").write_text("You are Tom.")
    return Gateway(tmp_path)


def test_engine_without_a_model_gets_one(gateway):
    gateway.preparation.prepare(gateway.changed("maya", engine=("local", "deepgram")))
    assert [one.engine.has_llm for one in gateway.engines.by_agent["maya"]] == [False, True]
    assert (gateway.llms, gateway.watched) == ({"maya": "its model"}, ["local"])


def test_targets_of_all_agents_may_be_dialled(gateway):
    gateway.preparation.prepare(gateway.changed("maya", transfer_to={"night": "+33142345678"}))
    gateway.rules.check("+33142345678", "+12025550100")
    gateway.rules.check(LONDON, "+12025550100")
    gateway.preparation.prepare(gateway.changed("tom", transfer_to={}))
    with pytest.raises(NumberNotAllowed):
        gateway.rules.check(LONDON, "+12025550100")


@pytest.mark.parametrize(
    "changes, problem",
    [
        (
            {"engine": ("deepgrm",)},
            r"^gateway.toml, \[agents.maya\]: engine is 'deepgrm'; use one of: deepgram, local$",
        ),
        ({"transfer_to": {"desk": PREMIUM}}, "^transfer_to: .* is a premium-rate or satellite number; add its prefix"),
    ],
)
def test_mistakes_are_found_before_anything_changes(gateway, changes, problem):
    with pytest.raises(SettingsError, match=problem):
        gateway.preparation.check(gateway.changed("maya", **changes))
    assert list(gateway.engines.engines) == ["deepgram"]
