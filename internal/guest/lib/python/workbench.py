"""The helper library of code in a sandbox.

    receipt = workbench.call("your_app.lookup", {"query": "1234"}, version="1", connection_alias="support")
    receipt.status                         # "succeeded", "pending_approval", "denied", ...
    receipt.raise_for_status().result      # what the tool gave
    workbench.tools.search("invoices")     # tools that this session may call
    workbench.ai.summarise(text, words=50)
    workbench.web.search("...")
    workbench.packages.install("rich")             # then import rich
    workbench.fetch("https://api.example.com/v1/items").json()  # a host that the rules let this run reach
    workbench.extract("report.pdf")        # text, Markdown or tables of a document
    workbench.save("summary.txt", "Reviewed output")
    workbench.save("chart.png")            # keeps a file that exists
    workbench.result({"rows": 12})         # the run's structured result
    workbench.display(figure)              # shows a chart, a table, an image
    await workbench.aio.call(...)          # the same for asyncio: call, receipt, tools, ai, web

A receipt's fields can be read as attributes and by subscript. What is refused
raises WorkbenchError. arc0 is another name of this module.
"""

from __future__ import annotations

import atexit
import binascii
import json
import os
import socket

__all__ = ["call", "receipt", "tools", "ai", "web", "packages", "fetch", "extract", "save", "result", "display", "aio", "Receipt", "WorkbenchError"]

_MAX_REQUEST = 384 << 10
_MAX_ANSWER = 1 << 20
_MAX_DISPLAY = 16 << 20  # of one display, as JSON
_MAX_TEXT = 1 << 20  # of a text that has to be cut


class WorkbenchError(Exception):
    """What was refused: code for programs, hint for people; field is the argument
    at fault, receipt that of the call, where there is one."""

    def __init__(self, code: str, detail: str, hint: str | None = None, field: str | None = None, receipt: Receipt | None = None):
        super().__init__("%s: %s" % (code, detail) + (" (%s)" % hint if hint else ""))
        self.code = code
        self.detail = detail
        self.hint = hint
        self.field = field
        self.receipt = receipt

    def __reduce__(self):
        return type(self), (self.code, self.detail, self.hint, self.field, self.receipt)


class _Fields(dict):
    """A dict whose keys can be read as attributes, also as Python spells them:
    fields.artifact_id is fields["artifactId"]."""

    def __getattr__(self, name):
        if not name.startswith("_"):
            first, *rest = name.split("_")
            for key in (name, first + "".join(map(str.capitalize, rest))):
                if key in self:
                    value = self[key]
                    return _Fields(value) if type(value) is dict and key != "result" else value
        raise AttributeError("there is no %r in it; there are %s" % (name, ", ".join(map(str, self))))

    def __dir__(self):
        return sorted(set(super().__dir__()) | set(self))


class Receipt(_Fields):
    """What became of a call or of a file. Of a call: status is executing,
    pending_approval, succeeded, failed, denied, expired or unknown; result what
    the tool gave; error why there is none; preview and artifact_id of a result
    that is too large to be here. Fields that a call does not have are None."""

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in _ABSENT and "tool" in self:
                return None
            raise

    def raise_for_status(self) -> Receipt:
        """Returns the receipt of a call that succeeded; for any other it raises
        WorkbenchError, with the receipt in it."""
        status = self.get("status")
        if status in ("succeeded", "saved"):
            return self
        error = self.get("error") or {}
        detail = error.get("detail") or "the call of %s is %s" % (self.get("tool"), str(status).replace("_", " "))
        raise WorkbenchError(error.get("code") or status, detail, error.get("hint") or _NEXT.get(status), error.get("field"), self)


# Fields that not every receipt of a call has.
_ABSENT = frozenset(("result", "preview", "artifact_id", "artifactId", "error", "approval", "connection", "connection_id", "connectionId",
                     "started_at", "startedAt", "finished_at", "finishedAt", "arguments"))

# What to do about a call that has not succeeded.
_NEXT = {
    "pending_approval": "somebody has to approve it; workbench.receipt(id, wait=60) waits for that",
    "executing": "workbench.receipt(id, wait=60) waits for its end",
    "unknown": "it may have been executed: look before you repeat it",
}


def _request(**fields):
    """A request as it is sent. Its token is that of the run, or the cell, that
    makes it, whenever it is sent."""
    fields.setdefault("token", os.environ.get("WORKBENCH_TOKEN", ""))
    try:
        body = json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        body = json.dumps(fields, allow_nan=False, separators=(",", ":")).encode()
    if len(body) > _MAX_REQUEST:
        raise WorkbenchError("body_too_large", "the call has %d bytes, %d are allowed" % (len(body), _MAX_REQUEST), "save what is large as a file")
    return body


def _numbered(body, number):
    """A request after which the connection goes on."""
    body = b'{"n":%d,%s' % (number, body[1:])
    return len(body).to_bytes(4, "big") + body


_unused = []  # connections that no call has at the moment, and whose they are


def _leave():
    """Closes them: in a child that was forked they are its parent's."""
    while _unused:
        _unused.pop()[0].close()


os.register_at_fork(after_in_child=_leave)
atexit.register(_leave)


def _whose():
    """The run, or the cell: its socket and token."""
    return os.environ.get("WORKBENCH_SOCKET", ""), os.environ.get("WORKBENCH_TOKEN", "")


def _connection(whose):
    """A connection to the broker."""
    while True:
        try:
            s, of = _unused.pop()
        except IndexError:
            break
        try:
            if of == whose:
                s.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)  # there is nothing, or it has ended
            s.close()
        except BlockingIOError:
            return s
        except OSError:
            s.detach()  # the program closed it, and the number may be something else's
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        s.connect(whose[0])
    except BaseException:
        s.close()
        raise
    return s


def _exchange(body, content=None):
    """Sends a request and returns the answer."""
    whose = _whose()
    try:
        s = _connection(whose)
        try:
            try:
                s.sendall(_numbered(body, 1) if content is None else len(body).to_bytes(4, "big") + body + content)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the answer says why it wants no more
            raw = _receive(s)
        except BaseException:
            s.close()
            raise
    except OSError as e:
        raise WorkbenchError("unavailable", "the sandbox's broker cannot be reached: %s" % e) from None
    if content is None and raw is not None:
        _unused.append((s, whose))
    else:
        s.close()
    return _answer(raw and json.loads(raw))


def _receive(s):
    """The answer that comes next, None if none does."""
    raw, size = b"", 4
    while len(raw) < size:
        part = s.recv(65536)
        if not part:
            return None
        raw += part
        if size == 4 <= len(raw):
            size += int.from_bytes(raw[:4], "big")
            if size > _MAX_ANSWER:
                return None
    return raw[4:]


def _answer(answer):
    if answer is None:
        raise WorkbenchError("unavailable", "the sandbox's broker ended the call")
    if "error" in answer:
        error = answer["error"]
        raise WorkbenchError(error["code"], error["detail"], error.get("hint"), error.get("field"))
    return answer.get("result")


# What asks others than the sandbox is loaded when it is used.
_LATER = frozenset(("call", "receipt", "tools", "ai", "web", "packages", "fetch", "extract", "Response"))


def __getattr__(name):
    if name == "aio":
        import workbench_aio as found
    elif name in _LATER:
        import workbench_calls
        found = getattr(workbench_calls, name)
    else:
        raise AttributeError("module 'workbench' has no attribute %r" % name)
    globals()[name] = found
    return found


def __dir__():
    return sorted(set(globals()) | set(__all__))


def save(name: str | os.PathLike, content=None) -> Receipt:
    """Keeps a file beyond the session and returns its receipt.

    With content (str, bytes, a path, or a file object) it is written first, at
    its name in the workspace; missing folders are made.
    """
    path = os.path.abspath(os.fspath(name))
    if content is not None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if isinstance(content, os.PathLike):
            if os.path.abspath(os.fspath(content)) != path:
                import shutil  # which loads much
                shutil.copyfile(content, path)
        else:
            _write(path, content)
    encoded = binascii.b2a_base64(os.fsencode(path), newline=False).decode()
    return Receipt(_exchange(_request(op="save", path=encoded)))


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


def result(value) -> None:
    """Sets the run's structured result: any JSON value; the last one counts."""
    _exchange(_request(op="result", value=value))


def display(value, id: str | None = None, update: bool = False, metadata: dict | None = None) -> None:
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
    _exchange(_request(**request), body)


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
