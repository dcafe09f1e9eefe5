"""A plain WebSocket client of the fake Voice Agent, for its own tests."""

import contextlib
import copy
import json

import websockets

from tests.fakes.deepgram import FakeDeepgram

KEY = "dg-test-key"

SETTINGS = {
    "type": "Settings",
    "tags": ["gateway", "agent:front-desk"],
    "mip_opt_out": True,
    "flags": {"history": True},
    "audio": {
        "input": {"encoding": "mulaw", "sample_rate": 8000},
        "output": {"encoding": "mulaw", "sample_rate": 8000, "container": "none"},
    },
    "agent": {
        "greeting": "Hello, this is the workshop.",
        "context": {
            "messages": [
                {"type": "History", "role": "user", "content": "Is my bike ready?"},
                {
                    "type": "History",
                    "function_calls": [
                        {
                            "id": "fc_1",
                            "name": "order_status",
                            "client_side": True,
                            "arguments": '{"order":"A12"}',
                            "response": '{"state":"waiting"}',
                        }
                    ],
                },
            ]
        },
        "listen": {
            "provider": {
                "type": "deepgram",
                "version": "v2",
                "model": "flux-general-en",
                "eot_threshold": 0.8,
                "eot_timeout_ms": 4000,
                "keyterms": ["Rohloff"],
            }
        },
        "think": {
            "provider": {"type": "open_ai", "model": "gpt-4o-mini", "temperature": 0.6},
            "prompt": "You answer the phone of a bicycle workshop.",
            "functions": [
                {
                    "name": "end_call",
                    "description": "Hang up.",
                    "parameters": {"type": "object", "properties": {}},
                    "defer_until_eot": True,
                }
            ],
        },
        "speak": {"provider": {"type": "deepgram", "model": "aura-2-thalia-en"}},
    },
}
"""Settings that the server and the SDK's models accept."""

QUIET = copy.deepcopy(SETTINGS)
"""Valid settings without a greeting."""
del QUIET["agent"]["greeting"]


class Client:
    """Sends and receives raw frames."""

    def __init__(self, socket):
        self.socket = socket

    async def send(self, message):
        await self.socket.send(message if isinstance(message, bytes) else json.dumps(message))

    async def receive(self):
        frame = await self.socket.recv()
        return frame if isinstance(frame, bytes) else json.loads(frame)

    async def until(self, kind):
        """All frames up to the message of this type."""
        seen = [await self.receive()]
        while isinstance(seen[-1], bytes) or seen[-1]["type"] != kind:
            seen.append(await self.receive())
        return seen


def plain(engine, key=KEY, scheme="Token"):
    return websockets.connect(engine.url, additional_headers={"Authorization": f"{scheme} {key}"}, proxy=None)


@contextlib.asynccontextmanager
async def connected(settings=QUIET, **behaviour):
    """Both sides of a configured conversation."""
    async with FakeDeepgram(KEY, **behaviour) as engine, plain(engine) as socket:
        client, conversation = Client(socket), await engine.next_connection()
        await client.send(settings)
        await client.until("SettingsApplied")
        yield conversation, client


def kinds(frames):
    """The types of messages; consecutive audio frames as one `audio`."""
    names = ["audio" if isinstance(frame, bytes) else frame["type"] for frame in frames]
    return [name for index, name in enumerate(names) if name != "audio" or names[index - 1 : index] != ["audio"]]


def sound(frames):
    return b"".join(frame for frame in frames if isinstance(frame, bytes))


def contents(frames):
    """The texts of the conversation, in order."""
    return [frame["content"] for frame in frames if kinds([frame]) == ["ConversationText"]]
