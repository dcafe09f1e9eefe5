from pathlib import Path

from tests.diagnostics.conftest import NO_MODELS, Doctor
from tests.fakes.tool_servers import TOKEN, FakeMcpServer, FakeToolServer

REMOTE_TOOLS = """
[agents.maya]
prompt = "maya.md"
tools = [
    {{ mcp = "{crm}", api_key_env = "CRM_TOKEN" }},
    {{ mcp = "http://127.0.0.1:1/mcp" }},
    {{ http = "GET {shop}/orders/{{order}}", name = "order", description = "It.", parameters = {{ order = "it" }} }},
    {{ http = "POST http://127.0.0.1:1/", name = "away", description = "It." }},
]

[agents.tom]
prompt = "maya.md"
tools = [{{ mcp = "{crm}", tools = ["find_order", "refund"], api_key_env = "CRM_TOKEN" }}]

[agents.ana]
prompt = "maya.md"
tools = [{{ mcp = "{crm}" }}]
"""


async def test_remote_tools_are_listed(doctor: Doctor, tmp_path: Path) -> None:
    async with FakeMcpServer(token=TOKEN).running() as crm, FakeToolServer().running() as shop:
        (tmp_path / "maya.md").write_text("You are Maya.")
        (tmp_path / "gateway.toml").write_text(REMOTE_TOOLS.format(crm=crm.url, shop=shop.url))
        _, found = await doctor(CRM_TOKEN=TOKEN, **NO_MODELS)
        host, to_do = crm.url.split("/")[2], "start the MCP server, or correct mcp in gateway.toml"
        assert {check: row for check, row in found.items() if check.startswith("tools of")} == {
            f"tools of maya: {host}": ("ok", "answers, 2 tools"),
            "tools of maya: 127.0.0.1:1": ("problem", f"no MCP server (ConnectError) {to_do}"),
            "tools of maya: order": ("ok", f"{shop.url.split('/')[2]} answers"),
            "tools of maya: away": (
                "problem",
                "127.0.0.1:1 unreachable (connection refused) start it, or correct http in gateway.toml",
            ),
            f"tools of tom: {host}": ("warning", "has no tool refund use some of: cancel_order, find_order"),
            f"tools of ana: {host}": (
                "problem",
                "rejects the key correct api_key_env or headers in gateway.toml, or the key",
            ),
        }
        assert [method for method, *_ in shop.requests] == []


async def test_missing_key_of_a_tool_is_named(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "maya.md").write_text("You are Maya.")
    (tmp_path / "gateway.toml").write_text(
        REMOTE_TOOLS.format(crm="https://crm.example.com/", shop="https://x.example")
    )
    code, found = await doctor(**NO_MODELS)
    assert code == 2
    assert found["settings"][1] == (
        "gateway.toml, [agents.maya]: tools[0] needs CRM_TOKEN; set it in the environment or in .env"
    )
