from os import PathLike
from typing import IO, Any, Literal, Mapping, Sequence, TypedDict, overload

Status = Literal["executing", "pending_approval", "succeeded", "failed", "denied", "expired", "unknown"]

class WorkbenchError(Exception):
    code: str
    detail: str
    hint: str | None
    field: str | None
    receipt: Receipt | None
    def __init__(self, code: str, detail: str, hint: str | None = None, field: str | None = None, receipt: Receipt | None = None) -> None: ...

class Receipt(dict[str, Any]):
    id: str
    status: Status
    result: Any
    preview: str | None
    artifact_id: str | None
    error: Any
    approval: Any
    tool: str
    version: str
    connection: str | None
    rules: list[str]
    number: int
    duration_ms: int
    def __getattr__(self, name: str) -> Any: ...
    def raise_for_status(self) -> Receipt: ...

class FoundTool(TypedDict):
    name: str
    version: str
    description: str
    connections: list[str]

class ToolSchema(FoundTool, total=False):
    inputSchema: dict[str, Any]
    outputSchema: dict[str, Any]
    annotations: dict[str, Any]

class Table(TypedDict):
    name: str
    rows: list[list[str]]

class FoundPage(TypedDict):
    title: str
    url: str
    snippet: str

def call(tool: str, args: Mapping[str, Any] | None = None, *, version: str | None = None, connection_alias: str | None = None,
         connection: str | None = None) -> Receipt: ...
def receipt(receipt: str | Receipt, wait: float | None = None) -> Receipt: ...
class Response:
    status: int
    headers: dict[str, str]
    content: bytes
    ok: bool
    text: str
    def json(self) -> Any: ...

def fetch(url: str, method: str = "GET", *, headers: Mapping[str, str] | None = None, body: str | bytes | None = None, json: Any = None,
          connection: str | None = None) -> Response: ...
@overload
def extract(path: str | PathLike[str], format: Literal["text", "markdown"] = "text") -> str: ...
@overload
def extract(path: str | PathLike[str], format: Literal["tables"]) -> list[Table]: ...
def save(name: str | PathLike[str], content: str | bytes | bytearray | memoryview | PathLike[str] | IO[Any] | None = None) -> Receipt: ...
def result(value: Any) -> None: ...
def display(value: Any, id: str | None = None, update: bool = False, metadata: Mapping[str, Any] | None = None) -> None: ...

class LockedPackage(TypedDict):
    name: str
    version: str
    hash: str

class PackageSet(TypedDict):
    manager: str
    requested: list[str]
    name: str
    path: str
    lock: list[LockedPackage]
    bytes: int

class packages:
    @staticmethod
    def install(*packages: str, manager: Literal["pip", "npm"] = "pip") -> PackageSet: ...

class tools:
    @staticmethod
    def search(query: str, limit: int = 10) -> list[FoundTool]: ...
    @staticmethod
    def schema(name: str, version: str | None = None) -> ToolSchema: ...

class ai:
    @staticmethod
    def complete(prompt: str, system: str | None = None, max_tokens: int | None = None) -> str: ...
    @staticmethod
    def summarise(text: str, words: int | None = None) -> str: ...
    @staticmethod
    def summarize(text: str, words: int | None = None) -> str: ...
    @staticmethod
    def classify(text: str, labels: Sequence[str]) -> str: ...
    @staticmethod
    def extract(text: str, schema: Mapping[str, Any]) -> Any: ...

class web:
    @staticmethod
    def search(query: str, limit: int = 5) -> list[FoundPage]: ...

import workbench_aio as aio
