"""What the helper library asks of others than the sandbox. Its functions are used
as workbench's own, and are described there.
"""

from __future__ import annotations

import binascii
import functools
import json
import os
import sys
import time

from workbench import Receipt, _exchange, _Fields, _request

_MAX_WAIT = 10.0  # seconds that one look at a receipt takes at most
_PAUSE = 0.5  # seconds between two looks at least


def _operation(prepare):
    """Makes an operation of what prepares one: that returns what sends the
    request, and gives what the operation is declared to. aio sends it elsewhere."""
    @functools.wraps(prepare)
    def operation(*args, **kwargs):
        return prepare(*args, **kwargs)()

    operation.prepare = prepare
    return operation


class _Ask:
    """One request; shape makes of the answer what is returned."""

    def __init__(self, body, shape):
        self.body, self.shape = body, shape

    def __call__(self):
        return self.shape(_exchange(self.body))


def _ask(op, value, shape):
    """Sends what the host alone understands. The arguments are taken as they are now."""
    return _Ask(_request(op=op, value={name: v for name, v in value.items() if v is not None}), shape)


def _text(value):
    return None if value is None else str(value)


@_operation
def call(tool: str, args: dict | None = None, *, version: str | None = None, connection_alias: str | None = None,
         connection: str | None = None) -> Receipt:
    """Calls a tool, app.tool, and returns the receipt, whatever became of the call.

    version is the exact one that the session may call; it can be left out where
    there is only one. connection_alias, or connection for short, names one of the
    session's connections.
    """
    if connection_alias is not None and connection is not None:
        raise TypeError("connection_alias and connection are the same: give one")
    alias = connection if connection_alias is None else connection_alias
    return _ask("call", {"tool": str(tool), "version": _text(version), "connection": _text(alias), "args": {} if args is None else args}, Receipt)


@_operation
def receipt(receipt: str | Receipt, wait: float | None = None) -> Receipt:
    """The receipt of an earlier call, or of its id, as it is now. With wait it is
    waited until its status is final, for so many seconds at most."""
    id = receipt if isinstance(receipt, str) else receipt["id"]
    token = os.environ.get("WORKBENCH_TOKEN", "")

    def look():
        end = time.monotonic() + (wait or 0)
        while True:
            began = time.monotonic()
            left = min(max(0.0, end - began), _MAX_WAIT)
            found = Receipt(_exchange(_request(op="receipt", value={"id": id, "waitMs": int(left * 1000)}, token=token)))
            left = end - time.monotonic()
            if left <= 0 or found.get("status") not in ("executing", "pending_approval"):
                return found
            time.sleep(max(0.0, min(left, began + _PAUSE - time.monotonic())))  # of a host that does not wait itself

    return look


class tools:
    """The tools that this session may call."""

    @staticmethod
    @_operation
    def search(query: str, limit: int = 10) -> list[dict]:
        """Tools that fit, best first: name, version, description, connections."""
        return _ask("tools.search", {"query": str(query), "limit": limit}, _items)

    @staticmethod
    @_operation
    def schema(name: str, version: str | None = None) -> dict:
        """What a tool takes and gives: inputSchema, outputSchema, annotations and more."""
        return _ask("tools.schema", {"tool": str(name), "version": _text(version)}, _Fields)


class ai:
    """Asks the model of this server."""

    @staticmethod
    @_operation
    def complete(prompt: str, system: str | None = None, max_tokens: int | None = None) -> str:
        """What the model says to a prompt."""
        return _ask("ai", {"task": "complete", "input": str(prompt), "system": system, "maxTokens": max_tokens}, _output)

    @staticmethod
    @_operation
    def summarise(text: str, words: int | None = None) -> str:
        """A summary, of about so many words."""
        return _ask("ai", {"task": "summarise", "input": str(text), "words": words}, _output)

    summarize = summarise

    @staticmethod
    @_operation
    def classify(text: str, labels: list[str]) -> str:
        """The one of the labels that fits best."""
        return _ask("ai", {"task": "classify", "input": str(text), "labels": [str(label) for label in labels]}, _output)

    @staticmethod
    @_operation
    def extract(text: str, schema: dict) -> dict:
        """What the text says, as an object that is valid against the JSON Schema."""
        return _ask("ai", {"task": "extract", "input": str(text), "schema": schema}, _output)


class web:
    """Looks for pages in the web."""

    @staticmethod
    @_operation
    def search(query: str, limit: int = 5) -> list[dict]:
        """Pages that fit, best first: title, url, snippet."""
        return _ask("web.search", {"query": str(query), "limit": limit}, _items)


class packages:
    """Packages from the registries that this server asks."""

    @staticmethod
    @_operation
    def install(*packages: str, manager: str = "pip") -> dict:
        """Installs packages, such as "rich" or "rich==14.0.0", with what they need:
        for this program, for those that it starts, and for later runs of the
        session. manager is pip or npm. Returns the set: name, path, lock, bytes."""
        for package in packages:
            if not isinstance(package, str):
                raise TypeError(f"a package is named by a text, not by {package!r}")

        def use(answer):
            import workbench_packages
            workbench_packages.use(answer["path"])
            if manager == "pip" and (loaded := workbench_packages.loaded(answer["path"])):
                print("workbench: loaded already, so the next run is the first that has the installed one:", ", ".join(loaded), file=sys.stderr)
            return _Fields(answer)

        return _ask("packages", {"manager": str(manager), "packages": list(packages)}, use)


def _items(answer):
    return [_Fields(item) for item in answer["items"]]


def _output(answer):
    return answer["output"]


class Response:
    """What a host answered: status, headers (names in lower case) and content."""

    def __init__(self, status: int, headers: dict, content: bytes):
        self.status, self.headers, self.content = status, headers, content

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        charset = "utf-8"
        for part in self.headers.get("content-type", "").split(";")[1:]:
            name, _, value = part.strip().partition("=")
            if name.lower() == "charset":
                charset = value.strip('"')
        try:
            return self.content.decode(charset, "replace")
        except LookupError:
            return self.content.decode("utf-8", "replace")

    def json(self):
        return json.loads(self.content)

    def __repr__(self):
        return "<Response %d, %d bytes>" % (self.status, len(self.content))


@_operation
def fetch(url: str, method: str = "GET", *, headers: dict | None = None, body=None, json: object = None, connection: str | None = None) -> Response:
    """Makes a request to a host that the rules let this run reach.

    body is str or bytes; json is sent as JSON. connection names one of the
    session's, whose credentials the server places. Redirects are not followed.
    """
    headers = {str(k): str(v) for k, v in (headers or {}).items()}
    if json is not None:
        body = _json(json)
        headers.setdefault("Content-Type", "application/json")
    if isinstance(body, str):
        body = body.encode()
    value = {"url": str(url), "method": str(method), "headers": headers or None, "connection": _text(connection),
             "body": None if body is None else binascii.b2a_base64(bytes(body), newline=False).decode()}
    first = _request(op="fetch", value={name: v for name, v in value.items() if v is not None})
    token = os.environ.get("WORKBENCH_TOKEN", "")

    def send():
        answer = _exchange(first)
        parts = [binascii.a2b_base64(answer["body"])]
        more = answer
        while more.get("more"):
            more = _exchange(_request(op="fetch", value={"handle": more["handle"]}, token=token))
            parts.append(binascii.a2b_base64(more["body"]))
        return Response(answer["status"], answer.get("headers", {}), b"".join(parts))

    return send


def _json(value):
    return json.dumps(value, allow_nan=False).encode()


def extract(path: str | os.PathLike, format: str = "text"):
    """The text of a document, its Markdown, or its tables, each {"name", "rows"}.

    PDF, DOCX, XLSX, PPTX, HTML, CSV and plain text, parsed here in the sandbox;
    images of text where its image has OCR. format: text, markdown or tables.
    """
    import workbench_extract
    return workbench_extract.extract(path, format)
