"""An OpenID Connect provider of a test: discovery, authorisation code with PKCE, token, user."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT_ID, CLIENT_SECRET = "tidemark", "issuer-secret"
USER = {"sub": "u-17", "preferred_username": "ines", "email": "ines@example.org", "name": "Ines"}


@dataclass
class Issuer:
    url: str = ""
    key: Any = field(default_factory=lambda: rsa.generate_private_key(public_exponent=65537, key_size=2048))
    challenges: dict[str, str] = field(default_factory=dict)
    """Authorisation code → the PKCE challenge it was given for."""

    def code_for(self, authorization_url: str) -> tuple[str, str]:
        """What a signed-in user's browser brings back: (code, state)."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(authorization_url).query).items()}
        assert query["code_challenge_method"] == "S256" and query["client_id"] == CLIENT_ID
        code = f"code-{len(self.challenges)}"
        self.challenges[code] = query["code_challenge"]
        return code, query["state"]

    def answer(self, path: str, form: dict[str, str]) -> dict[str, Any] | None:
        if path.endswith("/.well-known/openid-configuration"):
            return {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "userinfo_endpoint": f"{self.url}/userinfo",
                "jwks_uri": f"{self.url}/jwks",
                "token_endpoint_auth_methods_supported": ["client_secret_post"],
            }
        if path == "/jwks":
            public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
            return {"keys": [public | {"kid": "k1", "alg": "RS256", "use": "sig"}]}
        if path == "/userinfo":
            return dict(USER)
        return self._token(form) if path == "/token" else None

    def _token(self, form: dict[str, str]) -> dict[str, Any] | None:
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if form.get("client_secret") != CLIENT_SECRET or self.challenges.pop(form["code"], "") != challenge:
            return None
        claims = USER | {"iss": self.url, "aud": CLIENT_ID, "iat": 1, "exp": 4_000_000_000}
        signed = jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": "k1"})
        return {"access_token": "a", "token_type": "Bearer", "expires_in": 60, "id_token": signed}


@contextlib.contextmanager
def running_issuer() -> Iterator[Issuer]:
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(issuer.answer(urlsplit(self.path).path, {}))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self._send(issuer.answer(urlsplit(self.path).path, form))

        def _send(self, document: dict[str, Any] | None) -> None:
            data = json.dumps(document or {"error": "invalid_grant"}).encode()
            self.send_response(200 if document is not None else 400)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
