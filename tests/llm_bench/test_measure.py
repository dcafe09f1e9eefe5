"""Clients against malformed servers, and one short run against a real gateway."""

import asyncio
import json
import os

import orjson
import pytest

from scripts.llm_bench.__main__ import main
from scripts.llm_bench.measure import Asker

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SORRY = b'data: {"choices":[{"delta":{"content":"Sorry?"}}]}\n\n'


def settings(url):
    endpoint = {"url": url, "headers": {"authorization": "Bearer of-one-call"}}
    return orjson.dumps({"agent": {"think": {"endpoint": endpoint, "prompt": "You are a barber."}}})


async def asked(*responses):
    """One asker after a server has said this and left, and the heads and bodies of its questions."""
    questions, left = [], asyncio.Event()

    async def serve(reader, writer):
        for response in responses:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(head.split("content-length: ")[1].split("\r\n")[0])
            questions.append((head, orjson.loads(await reader.readexactly(length))))
            writer.write(response)
        writer.close()
        left.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        asker = Asker(settings(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/chat/completions"))
        await asker.ask(10.0)
        await left.wait()
    return asker, questions


def chunked(data):
    return HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)


async def test_bearer_of_the_settings_is_shown():
    """And no question is like another, as the gateway answers equal ones only once."""
    asker, questions = await asked(*[chunked(b'data: {"choices":[{"delta":{"content":"1"}}]}\n\n')] * 3)
    assert (asker.answers, len(asker.first_tokens), asker.failed) == (3, 2, 1)
    assert {head.split("\r\n")[0] for head, _ in questions} == {"POST /v1/chat/completions HTTP/1.1"}
    assert all("\r\nauthorization: Bearer of-one-call\r\n" in head for head, _ in questions)
    assert len({orjson.dumps(body["messages"]) for _, body in questions}) == 3


@pytest.mark.parametrize(
    "response",
    [b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", chunked(SORRY)],
    ids=["refusal", "apology"],
)
async def test_other_words_are_a_failure(response):
    asker, _ = await asked(response)
    assert (asker.answers, asker.first_tokens, asker.failed) == (0, [], 1)


def test_real_calls_get_their_answers(capsys):
    """Two calls query the model, then the gateway with their bearer tokens, while their audio keeps flowing."""
    cores = os.sched_getaffinity(0)
    code = main(["--calls", "2", "--seconds", "1", "--json"])
    run = json.loads(capsys.readouterr().out)
    assert (code, run["turns"], run["failed"], run["frames"]["lost"]) == (0, 2, 0, 0)
    assert run["answers"] == run["through"]["count"] + run["left_out"] + 2 > 2
    assert os.sched_getaffinity(0) == cores
