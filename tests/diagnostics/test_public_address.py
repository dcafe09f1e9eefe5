from pathlib import Path

from tests.diagnostics.conftest import NO_MODELS, Doctor
from tests.stage import ADMIN, make_carrier, staged


async def test_public_url_leads_to_this_gateway(doctor: Doctor, tmp_path: Path) -> None:
    async with (
        staged(tmp_path, make_carrier("twilio")) as stage,
        staged(tmp_path / "b", make_carrier("twilio")) as other,
    ):
        here = {"PORT": stage.url.rpartition(":")[2], "GATEWAY_ADMIN_TOKEN": ADMIN, **NO_MODELS}
        _, found = await doctor(PUBLIC_URL=stage.url, **here)
        assert found["https"] == ("problem", "PUBLIC_URL is not https use https; carriers require TLS for media")
        assert found["PUBLIC_URL"] == ("ok", f"{stage.url} leads to this gateway")
        assert found["store"] == ("ok", "embedded, intact")
        _, found = await doctor(PUBLIC_URL=other.url, **here)
        todo = "point the tunnel at this gateway, or correct PUBLIC_URL"
        assert found["PUBLIC_URL"] == ("problem", f"{other.url} leads to another gateway {todo}")
        _, found = await doctor(PUBLIC_URL=stage.url, **here | {"PORT": "0"})
        assert found["PUBLIC_URL"][0] == "warning" and "none runs here to compare" in found["PUBLIC_URL"][1]
    _, found = await doctor(PUBLIC_URL=stage.url, **here)
    assert found["PUBLIC_URL"][1].startswith(
        f"no gateway at {stage.url} (connection refused) start the gateway and the tunnel"
    )
