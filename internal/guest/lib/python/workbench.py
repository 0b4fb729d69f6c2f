"""The helper library of code in a sandbox.

    receipt = workbench.save("summary.txt", "Reviewed output")
    workbench.save("chart.png")            # keeps a file that exists
    workbench.result({"rows": 12})         # the run's structured result

A receipt's fields can be read as attributes and by subscript.
"""

import binascii
import json
import os
import shutil
import socket

__all__ = ["save", "result", "call", "Receipt", "WorkbenchError"]

_MAX_ANSWER = 1 << 20


class WorkbenchError(Exception):
    """What the sandbox's broker refused: code for programs, hint for people."""

    def __init__(self, code, detail, hint=None):
        super().__init__("%s: %s" % (code, detail) + (" (%s)" % hint if hint else ""))
        self.code = code
        self.detail = detail
        self.hint = hint


class Receipt(dict):
    """A receipt: receipt.id and receipt["id"] are the same."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __dir__(self):
        return sorted(set(super().__dir__()) | set(self))


def _exchange(**request):
    request["token"] = os.environ.get("WORKBENCH_TOKEN", "")
    body = json.dumps(request).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.connect(os.environ.get("WORKBENCH_SOCKET", ""))
            s.sendall(len(body).to_bytes(4, "big") + body)
            raw = b""
            while len(raw) <= _MAX_ANSWER:
                part = s.recv(65536)
                if not part:
                    break
                raw += part
    except OSError as e:
        raise WorkbenchError("unavailable", "the sandbox's broker cannot be reached: %s" % e) from None
    if len(raw) < 4 or len(raw) != 4 + int.from_bytes(raw[:4], "big"):
        raise WorkbenchError("unavailable", "the sandbox's broker ended the call")
    answer = json.loads(raw[4:])
    if "error" in answer:
        error = answer["error"]
        raise WorkbenchError(error["code"], error["detail"], error.get("hint"))
    value = answer.get("result")
    return Receipt(value) if isinstance(value, dict) else value


def save(name, content=None):
    """Keeps a file beyond the session and returns its receipt.

    With content (str, bytes, a path, or a file object) it is written first, at
    its name in the workspace; missing folders are made.
    """
    path = os.path.abspath(os.fspath(name))
    if content is not None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if isinstance(content, os.PathLike):
            if os.path.abspath(os.fspath(content)) != path:
                shutil.copyfile(content, path)
        else:
            _write(path, content)
    encoded = binascii.b2a_base64(os.fsencode(path), newline=False).decode()
    return _exchange(op="save", path=encoded)


def _write(path, content):
    with open(path, "wb") as f:
        if not hasattr(content, "read"):
            f.write(content.encode() if isinstance(content, str) else memoryview(content))
            return
        while True:
            part = content.read(1 << 20)
            if not part:
                return
            f.write(part.encode() if isinstance(part, str) else part)


def result(value):
    """Sets the run's structured result: any JSON value; the last one counts."""
    _exchange(op="result", value=json.loads(json.dumps(value, allow_nan=False)))


def call(tool, args=None, version=None, connection=None):
    """Calls a tool and returns its receipt."""
    return _exchange(op="call", name=str(tool), value={"args": args or {}, "version": version, "connection": connection})
