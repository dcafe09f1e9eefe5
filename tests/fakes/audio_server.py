"""A server with OpenAI's audio API. Validates requests, records them, and gives scripted answers."""

import email.parser
import email.policy
import json
import math
import threading
import wave
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO


@dataclass
class FakeAudioServer:
    """`with FakeAudioServer() as server`: then `server.url` ends in /v1. It hears `text` and says `pcm`, always."""

    text: str = "Is it ready?"
    pcm: bytes = b"".join(round(16384 * math.sin(n / 8)).to_bytes(2, "little", signed=True) for n in range(24_000))
    key: str = "audio-key"
    status: int = 200
    before_answer: Callable[[], object] = lambda: None
    asked: list[dict[str, str]] = field(default_factory=list)
    heard: list[bytes] = field(default_factory=list)

    def __enter__(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(server):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers["Authorization"] != f"Bearer {server.key}":
                    return self._answer(401, b"{}")
                if self.path == "/v1/audio/transcriptions":
                    answer = server._transcribe(self.headers["Content-Type"], body)
                else:
                    answer = server._speak(json.loads(body))
                server.before_answer()
                self._answer(server.status, answer)

            def do_GET(self):
                is_known = self.headers["Authorization"] == f"Bearer {server.key}"
                self._answer(200 if is_known else 401, b"{}")

            def _answer(self, status, content):
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        return Handler

    def _transcribe(self, content_type, body):
        head = f"Content-Type: {content_type}\r\n\r\n".encode()
        form = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
        parts = {part.get_param("name", header="content-disposition"): part for part in form.iter_parts()}
        with wave.open(BytesIO(parts.pop("file").get_payload(decode=True))) as file:
            assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (8000, 1, 2)
            self.heard.append(file.readframes(file.getnframes()))
        self.asked.append({name: part.get_payload() for name, part in parts.items()})
        return json.dumps({"text": f" {self.text} "}).encode()

    def _speak(self, wish):
        self.asked.append(wish)
        return self.pcm
