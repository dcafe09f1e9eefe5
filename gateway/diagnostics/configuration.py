"""The configuration that is checked."""

from collections.abc import Mapping
from typing import Protocol

from gateway.agents import AgentDirectory
from gateway.engines.registry import EngineDirectory
from gateway.llm.agent_llm import AgentLlm
from gateway.settings import Settings
from gateway.tools.module import ReloadingToolModule


class Configuration(Protocol):
    """What the checks use of the application's configuration."""

    @property
    def settings(self) -> Settings: ...
    @property
    def agents(self) -> AgentDirectory: ...
    @property
    def engines(self) -> EngineDirectory: ...
    @property
    def agent_llms(self) -> Mapping[str, AgentLlm]: ...
    @property
    def tool_modules(self) -> Mapping[str, ReloadingToolModule]: ...
