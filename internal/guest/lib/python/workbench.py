"""The helper library of code in a sandbox.

    receipt = workbench.save("summary.txt", "Reviewed output")
    workbench.save("chart.png")            # keeps a file that exists
    workbench.result({"rows": 12})         # the run's structured result
    workbench.display(figure)              # shows a chart, a table, an image

A receipt's fields can be read as attributes and by subscript.
"""

import binascii
import json
import os
import shutil
import socket

__all__ = ["save", "result", "display", "call", "Receipt", "WorkbenchError"]

_MAX_ANSWER = 1 << 20
_MAX_DISPLAY = 16 << 20  # of one display, as JSON
_MAX_TEXT = 1 << 20  # of a text that has to be cut


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


def _exchange(content=b"", **request):
    request["token"] = os.environ.get("WORKBENCH_TOKEN", "")
    body = json.dumps(request).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.connect(os.environ.get("WORKBENCH_SOCKET", ""))
            s.sendall(len(body).to_bytes(4, "big") + body + content)
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


def display(value, id=None, update=False, metadata=None):
    """Shows a value: as the richest it can be shown as, or a dict from MIME types
    to text or bytes as it is. With an id it can be updated later."""
    data, own = _bundle(value)
    _show("update" if update else "display", data, metadata or own, id)


_METHODS = {
    "_repr_html_": "text/html", "_repr_markdown_": "text/markdown", "_repr_latex_": "text/latex", "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png", "_repr_jpeg_": "image/jpeg", "_repr_json_": "application/json",
}


def _bundle(value):
    """The ways to show a value, by MIME type, and their metadata."""
    if isinstance(value, dict) and value and all(isinstance(k, str) and "/" in k and " " not in k for k in value):
        return dict(value), None
    data, metadata = {}, {}

    def ask(method):
        if isinstance(value, type):
            return None
        found = getattr(value, method, None)
        if found is None or not callable(found):
            return None
        try:
            return found()
        except Exception:
            return None

    whole = ask("_repr_mimebundle_")
    if isinstance(whole, tuple):
        whole, metadata = whole
    if isinstance(whole, dict):
        data.update(whole)
    for method, kind in _METHODS.items():
        if kind not in data:
            shown = ask(method)
            if isinstance(shown, tuple):
                shown, metadata[kind] = shown
            if shown is not None:
                data[kind] = shown
    if type(value).__module__ == "matplotlib.figure" and "image/png" not in data:
        import workbench_figures
        data["image/png"] = workbench_figures.png(value)
    if "text/plain" not in data:
        data["text/plain"] = repr(value)
    return data, metadata or None


def _show(kind, data, metadata=None, id=None):
    content = {}
    for name, value in data.items():
        if isinstance(value, (bytes, bytearray, memoryview)):
            value = bytes(value)
            if name.startswith("text/") or name == "image/svg+xml":
                value = value.decode("utf-8", "replace")
            else:
                value = binascii.b2a_base64(value, newline=False).decode()
        elif not isinstance(value, str):
            value = json.dumps(value, default=str)
        content[str(name)] = value
    body = _encode(content)
    while len(body) > _MAX_DISPLAY:
        largest = max(content, key=lambda name: len(content[name]))
        if largest == "text/plain":
            content[largest] = content[largest][:_MAX_TEXT] + "..."
        else:
            del content[largest]
            content.setdefault("text/plain", "(%s is too large to be shown)" % largest)
        body = _encode(content)
    request = {"op": "display", "kind": kind, "size": len(body)}
    if metadata:
        request["metadata"] = json.loads(json.dumps(metadata, default=str))
    if id is not None:
        request["id"] = str(id)
    _flush()
    _exchange(body, **request)


def _encode(content):
    return json.dumps(content).encode()


def _flush():
    """What was printed before comes before."""
    import sys
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
