"""A real OAuth token endpoint (RFC 6749, client credentials), as a process: it signs JWTs, and writes the JWKS file that brokers check them with."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.waiting import wait_until

ISSUER, AUDIENCE, KEY_ID = "https://id.example.org", "kafka", "key-1"


@dataclass(frozen=True)
class TokenServer:
    """A server that runs."""

    url: str
    jwks: Path
    process: subprocess.Popen[bytes]
    asked: Path

    def times_asked(self) -> int:
        """How many requests it has had."""
        return len(self.asked.read_text().splitlines()) if self.asked.exists() else 0

    def away(self) -> contextlib.AbstractContextManager[None]:
        """Meanwhile every request ends without an answer, as with a proxy whose server is gone."""
        return self._mark("away")

    def hanging(self) -> contextlib.AbstractContextManager[None]:
        """Meanwhile every request is taken and gets no answer."""
        return self._mark("hangs")

    @contextlib.contextmanager
    def _mark(self, name: str) -> Iterator[None]:
        mark = self.asked.with_name(name)
        mark.touch()
        try:
            yield
        finally:
            mark.unlink()


@contextlib.contextmanager
def running(folder: Path, clients: dict[str, str], lifetime: float = 300.0) -> Iterator[TokenServer]:
    """The server with these clients and secrets; it ends afterwards. `lifetime`: of its tokens, in seconds."""
    port_file, jwks, asked = folder / "port", folder / "jwks.json", folder / "asked"
    environment = {**os.environ, "CLIENTS": json.dumps(clients), "LIFETIME": str(lifetime)}
    process = subprocess.Popen([sys.executable, "-m", "tests.kit.token_server", str(folder)], env=environment)
    try:
        wait_until(port_file.exists, "the token server's port")
        yield TokenServer(f"http://127.0.0.1:{port_file.read_text()}/token", jwks, process, asked)
    finally:
        process.kill()
        process.wait(10)


def serve(folder: Path, clients: dict[str, str], lifetime: float) -> None:
    """Serve until killed; the port is written once it listens."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = json.loads(RSAAlgorithm.to_jwk(key.public_key()))
    (folder / "jwks.json").write_text(json.dumps({"keys": [{**public, "kid": KEY_ID, "alg": "RS256", "use": "sig"}]}))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            with (folder / "asked").open("a") as log:
                log.write("asked\n")
            hung = (folder / "hangs").exists()
            while (folder / "hangs").exists():
                time.sleep(0.05)
            if hung or (folder / "away").exists():
                self.close_connection = True
                return
            name, _, secret = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode().partition(":")
            if clients.get(name) != secret:
                self._answer(401, {"error": "invalid_client"})
                return
            now = int(time.time())
            claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": name, "iat": now, "exp": now + int(lifetime)}
            claims["scope"] = body.get("scope", ["kafka"])[0]
            token = jwt.encode(claims, key, algorithm="RS256", headers={"kid": KEY_ID})
            self._answer(200, {"access_token": token, "expires_in": int(lifetime), "token_type": "Bearer"})

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, status: int, content: dict[str, object]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    unfinished = folder / "port.new"
    unfinished.write_text(str(server.server_port))
    unfinished.rename(folder / "port")
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), json.loads(os.environ["CLIENTS"]), float(os.environ["LIFETIME"]))
