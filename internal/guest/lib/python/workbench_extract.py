"""Text, Markdown or tables from documents, parsed here in the sandbox.

    workbench.extract("report.pdf")                      # text
    workbench.extract("plan.docx", format="markdown")
    workbench.extract("sales.xlsx", format="tables")     # [{"name", "rows"}]

PDF, DOCX, XLSX, PPTX, HTML, CSV, plain text, and images of text where the image
of the sandbox has tesseract. What a document is, its first bytes say, and then
its name.

Documents are hostile: what a small one may blow up to is read in a process of its
own, whose memory is bounded, so that the program that asks outlives it.
"""

import os
import stat

FORMATS = ("text", "markdown", "tables")
_MAX_FILE = 64 << 20
_MAX_UNPACKED = 256 << 20  # of an office document, which is a zip
_MAX_CELLS = 5_000_000  # of a workbook, empty ones between others included
_MAX_OUTPUT = 32 << 20  # bytes
# What is read by the program itself: bytes, unpacked. The rest is read apart.
_LIGHT = {"docx": 1 << 20, "xlsx": 1 << 20, "pptx": 1 << 20, "html": 128 << 10, "csv": 1 << 20, "plain": 4 << 20, "pdf": _MAX_FILE, "image": _MAX_FILE}
_OFFICE = ("pdf", "docx", "xlsx", "pptx")
_apart = False  # this is the process of its own
_IMAGES = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"BM": "bmp", b"II*\x00": "tiff", b"MM\x00*": "tiff"}


def _error(code, detail, hint=None):
    from workbench import WorkbenchError
    return WorkbenchError(code, detail, hint)


def extract(path, format="text"):
    """See the module. Raises WorkbenchError: not_found, invalid_request,
    unsupported_media_type (nothing here reads such a file)."""
    if format not in FORMATS:
        raise _error("invalid_request", "format must be text, markdown or tables")
    path = os.fspath(path)
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):  # a FIFO would not end
            raise _error("invalid_request", "%s is not a file" % path)
        size = found.st_size
        with open(path, "rb") as f:
            head = f.read(4096)
    except FileNotFoundError:
        raise _error("not_found", "no such file: %s" % path, "paths are relative to the working directory") from None
    except OSError as e:
        raise _error("invalid_request", "the file cannot be read: %s" % e.strerror) from None
    if size > _MAX_FILE:
        raise _error("body_too_large", "the file has %d bytes, %d can be read" % (size, _MAX_FILE), "split it")
    kind, weight = "zip", 0
    try:
        kind, weight = _kind(path, head, size)
        if not _apart and weight > _LIGHT[kind]:
            return _read_apart(path, format)
        parts = _READERS[kind](path)
        if kind == "pdf" and format == "tables":
            parts = _columns(parts)
        if format == "tables":
            return [{"name": p[2], "rows": p[1]} for p in parts if p[0] == "table"]
        return "\n\n".join(t for t in (_as_text(p, format) for p in parts) if t)
    except _error_type():
        raise
    except _Heavy:
        return _read_apart(path, format)
    except MemoryError:
        raise _too_much() from None
    except Exception as e:
        if type(e).__name__ == "XMLSyntaxError" and "unknown error" in str(e):  # how lxml says that memory is out
            raise _too_much() from None
        raise _error("invalid_request", "the %s file cannot be read: %s: %s" % (kind, type(e).__name__, str(e)[:200]),
                     "it may be damaged, or protected by a password") from None


class _Heavy(Exception):
    """What is to be read apart."""


def _too_much():
    return _error("body_too_large", "the document takes more memory to be read than there is here",
                  "split it, or read it in a larger sandbox; if it is small, it may be made to do harm")


def _memory():
    """Address space of a process that reads a document: a part of the sandbox's
    memory, which is there for the program too."""
    try:
        with open("/proc/meminfo", "rb") as f:
            total = int(f.readline().split()[1]) << 10
    except (OSError, ValueError, IndexError):
        total = 0
    return min(max(total // 5, 96 << 20), 1 << 30)


def _run(argv):
    """Runs a program within bounds: its exit status and what it wrote."""
    import resource
    import subprocess
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        try:
            if not _apart:  # else it has the bounds of this process
                bound = _memory()
                resource.prlimit(child.pid, resource.RLIMIT_AS, (bound, bound))
        except (OSError, ValueError):
            pass  # it has ended
        out = bytearray()
        while part := child.stdout.read(1 << 16):
            out += part
            if len(out) > _MAX_OUTPUT:
                child.kill()
                raise _error("body_too_large", "the document says more than %d MiB" % (_MAX_OUTPUT >> 20), "split it")
    return child.returncode, bytes(out)


def _read_apart(path, format):
    """Reads a document in a process of its own."""
    import json
    import sys
    status, out = _run([sys.executable or "python3", os.path.abspath(__file__), "--json", "--format", format, "--", os.path.abspath(path)])
    try:
        answer = json.loads(out)
    except ValueError:
        raise _too_much() from None  # it could not even say so
    if "error" in answer:
        raise _error(answer["error"]["code"], answer["error"]["detail"], answer["error"]["hint"])
    return answer["result"]


def _error_type():
    from workbench import WorkbenchError
    return WorkbenchError


def _kind(path, head, size):
    """What a file is, and how many bytes it is unpacked."""
    for magic in _IMAGES:
        if head.startswith(magic):
            return "image", size
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image", size
    if b"%PDF-" in head[:1024]:
        return "pdf", size
    ending = os.path.splitext(path)[1].lower().lstrip(".")
    if head.startswith(b"PK\x03\x04"):
        kind, unpacked = _office(path)
        if kind:
            return kind, unpacked
        raise _error("unsupported_media_type", "the zip file is no office document", "unpack it, and extract what it holds")
    if head.startswith(b"\xd0\xcf\x11\xe0"):
        raise _error("unsupported_media_type", "documents of the old Office formats (.doc, .xls, .ppt) cannot be read", "save it as .docx, .xlsx or .pptx")
    if b"\x00" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _error("unsupported_media_type", "nothing here reads such a file",
                     "PDF, DOCX, XLSX, PPTX, HTML, CSV, text and images of text can be read")
    if ending in _OFFICE:
        raise _error("unsupported_media_type", "the file is named .%s and is none" % ending, "if it holds text, give it another name")
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html")) or ending in ("html", "htm", "xhtml"):
        return "html", size
    if ending in ("csv", "tsv", "tab"):
        return "csv", size
    return "plain", size


def _office(path):
    import zipfile
    with zipfile.ZipFile(path) as z:
        names = {i.filename for i in z.infolist()}
        unpacked = sum(i.file_size for i in z.infolist())
        if unpacked > _MAX_UNPACKED:
            raise _error("body_too_large", "the document is larger than %d MiB when it is unpacked" % (_MAX_UNPACKED >> 20))
    for name, kind in (("word/document.xml", "docx"), ("xl/workbook.xml", "xlsx"), ("ppt/presentation.xml", "pptx")):
        if name in names:
            return kind, unpacked
    return None, unpacked


# A part of a document is ("text", text), ("heading", text, level), ("item", text)
# or ("table", rows, name).

def _as_text(part, format):
    if part[0] == "table":
        rows = part[1]
        if format == "markdown":
            return _markdown(rows)
        return "\n".join("\t".join(row) for row in rows)
    text = part[1].strip()
    if format == "markdown" and text:
        if part[0] == "heading":
            return "#" * min(6, max(1, part[2])) + " " + text
        if part[0] == "item":
            return "- " + text
    return text


def _markdown(rows):
    if not rows:
        return ""
    width = max(len(r) for r in rows)

    def line(row):
        cells = [c.replace("|", "\\|").replace("\n", " ") for c in row] + [""] * (width - len(row))
        return "| " + " | ".join(cells) + " |"
    return "\n".join([line(rows[0]), "|" + " --- |" * width] + [line(r) for r in rows[1:]])


def _pdf(path):
    import shutil
    if shutil.which("pdftotext"):
        status, out = _run(["pdftotext", "-q", "-layout", "-enc", "UTF-8", "--", os.path.abspath(path), "-"])
        if status == 0:
            return _pages([p for p in out.decode("utf-8", "replace").split("\f") if p.strip()])
    if not _apart:
        raise _Heavy
    try:
        import pypdf
    except ImportError:
        raise _error("unsupported_media_type", "this sandbox image cannot read PDF", "use the image standard") from None
    reader = pypdf.PdfReader(path)
    if reader.is_encrypted and not reader.decrypt(""):
        raise _error("invalid_request", "the PDF is protected by a password", "remove the protection first")
    return _pages([page.extract_text() or "" for page in reader.pages])


def _pages(pages):
    return [("text", "\n".join(line.rstrip() for line in page.rstrip().splitlines())) for page in pages]


def _columns(pages):
    """What stands in columns on the pages of a PDF, which has no tables."""
    import re
    found = []
    for number, page in enumerate(pages, 1):
        block = []
        for line in page[1].splitlines() + [""]:
            cells = re.split(r"\s{2,}|\t", line.strip()) if line.strip() else []
            if len(cells) >= 2 and (not block or abs(len(cells) - len(block[0])) <= 1):
                block.append(cells)
                continue
            if len(block) >= 2:
                found.append(("table", block, "page %d" % number))
            block = [cells] if len(cells) >= 2 else []
    return found


def _docx(path):
    try:
        import docx
    except ImportError:
        raise _error("unsupported_media_type", "this sandbox image cannot read DOCX", "use the image standard") from None
    from docx.table import Table
    from docx.text.paragraph import Paragraph
    document = docx.Document(path)
    parts, tables, styles = [], 0, {}
    for child in document.element.body.iterchildren():
        if child.tag.endswith("}p"):
            p = Paragraph(child, document)
            style = styles.get(child.style)
            if style is None:
                style = styles[child.style] = (p.style.name or "") if p.style is not None else ""
            if style.startswith("Heading") or style == "Title":
                digits = "".join(c for c in style if c.isdigit())
                parts.append(("heading", p.text, int(digits) if digits else 1))
            elif style.startswith("List"):
                parts.append(("item", p.text))
            else:
                parts.append(("text", p.text))
        elif child.tag.endswith("}tbl"):
            tables += 1
            parts.append(("table", [[c.text.strip() for c in row.cells] for row in Table(child, document).rows], "table %d" % tables))
    return parts


_NO_CELLS = []  # of every empty row: there can be a million before one that is not


def _xlsx(path):
    try:
        import openpyxl
    except ImportError:
        raise _error("unsupported_media_type", "this sandbox image cannot read XLSX", "use the image standard") from None
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    parts, seen = [], 0
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # what the file says of them may be false, and would be filled up
        rows = []
        for row in sheet.iter_rows(values_only=True):
            seen += len(row) + 1
            if seen > _MAX_CELLS:
                raise _error("body_too_large", "the workbook has more than %d cells, with the empty ones between others" % _MAX_CELLS,
                             "read the part that you need with openpyxl")
            cells = ["" if v is None else (v.isoformat() if hasattr(v, "isoformat") else str(v)) for v in row]
            while cells and not cells[-1]:
                cells.pop()
            rows.append(cells or _NO_CELLS)
        while rows and not rows[-1]:
            rows.pop()
        parts.append(("heading", sheet.title, 2))
        if rows:
            parts.append(("table", rows, sheet.title))
    return parts


def _pptx(path):
    import re
    import xml.etree.ElementTree as tree
    import zipfile
    a = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
    parts = []
    with zipfile.ZipFile(path) as z:
        slides = [n for n in z.namelist() if re.fullmatch(r"ppt/slides/slide\d+\.xml", n)]
        for number, name in enumerate(sorted(slides, key=lambda n: int(re.search(r"\d+", n).group())), 1):
            root = _xml(tree, z.read(name))
            parts.append(("heading", "Slide %d" % number, 2))
            in_tables = set()
            for table in root.iter(a + "tbl"):
                rows = [["".join(t.text or "" for t in cell.iter(a + "t")).strip() for cell in row.iter(a + "tc")] for row in table.iter(a + "tr")]
                parts.append(("table", rows, "slide %d" % number))
                in_tables.update(id(p) for p in table.iter(a + "p"))
            for paragraph in root.iter(a + "p"):
                text = "".join(t.text or "" for t in paragraph.iter(a + "t")).strip()
                if text and id(paragraph) not in in_tables:
                    parts.append(("text", text))
    return parts


def _xml(tree, raw):
    if b"<!DOCTYPE" in raw or b"<!ENTITY" in raw:
        raise _error("invalid_request", "the document declares XML entities, which are not expanded")
    return tree.fromstring(raw)


_UNSEEN = frozenset("head script style noscript template svg".split())
_BLOCKS = frozenset("p li pre blockquote dt dd figcaption h1 h2 h3 h4 h5 h6 div section article header footer main aside nav address "
                    "ul ol dl form fieldset figure details summary hr body html".split())


def _html(path):
    try:
        import bs4
    except ImportError:
        raise _error("unsupported_media_type", "this sandbox image cannot read HTML", "use the image standard") from None
    with open(path, "rb") as f:
        page = bs4.BeautifulSoup(f.read(), "lxml" if _has("lxml") else "html.parser")
    seen = _Page()
    if page.title and page.title.string:
        seen.parts.append(("heading", page.title.string.strip(), 1))
    around = [(None, iter([page.body or page]))]
    while around:  # each node once, however deep it is
        for node in around[-1][1]:
            if isinstance(node, bs4.Tag):
                if node.name not in _UNSEEN:
                    seen.enter(node.name)
                    around.append((node.name, iter(node.contents)))
                    break
            elif type(node) in (bs4.NavigableString, bs4.CData):
                seen.text.append(node)
        else:
            seen.leave(around.pop()[0])
    seen.flush()
    return seen.parts


class _Page:
    """The parts of a page, of elements as they begin and end."""

    def __init__(self):
        self.parts, self.text, self.kinds, self.pre = [], [], [("text",)], 0
        self.tables, self.depth, self.rows, self.cell = 0, 0, [], False

    def enter(self, name):
        if name == "table":
            self.depth += 1
            if self.depth == 1:
                self.flush()
                self.rows = []
        elif self.depth:
            self._table(name)
        elif name in _BLOCKS:
            self.flush()
            self.pre += name == "pre"
            kind = ("item",) if self.kinds[-1] == ("item",) else ("text",)
            if name == "li":
                kind = ("item",)
            elif len(name) == 2 and name[0] == "h" and name[1].isdigit():
                kind = ("heading", int(name[1]))
            self.kinds.append(kind)
        elif name == "br":
            self.text.append("\n")

    def _table(self, name):
        if name in ("tr", "td", "th") and self.depth == 1:
            self._cell()
            if name == "tr" or not self.rows:
                self.rows.append([])
            self.cell = name != "tr"
        elif name in _BLOCKS or name in ("br", "tr", "td", "th"):
            self.text.append(" ")

    def _cell(self):
        if self.cell:
            self.rows[-1].append(" ".join("".join(self.text).split()))
        self.text.clear()
        self.cell = False

    def leave(self, name):
        if name == "table":
            self.depth -= 1
            if self.depth == 0:
                self._cell()
                self.tables += 1
                self.parts.append(("table", [row for row in self.rows if row], "table %d" % self.tables))
        elif self.depth:
            if name in ("td", "th") and self.depth == 1:
                self._cell()
        elif name in _BLOCKS:
            self.flush()
            self.pre -= name == "pre"
            self.kinds.pop()

    def flush(self):
        text = "".join(self.text)
        self.text.clear()
        text = text.strip("\n") if self.pre else " ".join(text.split())
        if text.strip():
            kind = self.kinds[-1]
            self.parts.append((kind[0], text) + kind[1:])


def _has(name):
    import importlib.util
    return importlib.util.find_spec(name) is not None


def _decoded(path):
    with open(path, "rb") as f:
        raw = f.read()
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return raw.decode("utf-16", "replace")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("cp1252", "replace")


def _csv(path):
    import csv
    import io
    csv.field_size_limit(1 << 24)
    text = _decoded(path)
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(path, text), skipinitialspace=True)
    return [("table", [row for row in rows if row], os.path.basename(path))]


def _delimiter(path, text):
    """What parts the cells of most of the first lines into equally many. The Sniffer
    of Python takes minutes for some texts."""
    import csv
    lines = text[:65536].splitlines()[:50]
    best, found = (0, 0), "," if path.lower().endswith(".csv") else "\t"
    for mark in (",", ";", "\t", "|"):
        widths = [len(row) for row in csv.reader(lines, delimiter=mark, skipinitialspace=True) if row]
        usual = max(set(widths), key=widths.count, default=0)
        if usual > 1 and (widths.count(usual), usual) > best:
            best, found = (widths.count(usual), usual), mark
    return found


def _plain(path):
    return [("text", _decoded(path))]


def _image(path):
    import shutil
    if not shutil.which("tesseract"):
        raise _error("unsupported_media_type", "this sandbox image has no OCR, so that text in images cannot be read",
                     "an image with the package tesseract-ocr can")
    status, out = _run(["tesseract", os.path.abspath(path), "stdout"])
    if status != 0:
        raise _error("invalid_request", "the image cannot be read", "it may be damaged, or too large")
    return [("text", out.decode("utf-8", "replace"))]


_READERS = {"pdf": _pdf, "docx": _docx, "xlsx": _xlsx, "pptx": _pptx, "html": _html, "csv": _csv, "plain": _plain, "image": _image}


def main(argv):
    """The command line: [--json] [--format text|markdown|tables] [--] FILE. Tables
    are JSON; with --json so is everything, also what is wrong."""
    import argparse
    import json
    import resource
    import sys
    from workbench import WorkbenchError
    global _apart
    parser = argparse.ArgumentParser(prog="workbench extract")
    parser.add_argument("--format", default="text", help="text, markdown or tables")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("file")
    o = parser.parse_args(argv)
    if o.format not in FORMATS and not o.json:
        parser.error("--format is text, markdown or tables")
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (_memory(), most))
    _apart = True
    try:
        out = extract(o.file, o.format)
        if o.json or not isinstance(out, str):
            out = json.dumps({"result": out} if o.json else out, ensure_ascii=o.json)
        if len(out) > _MAX_OUTPUT:
            raise _error("body_too_large", "the document says more than %d MiB" % (_MAX_OUTPUT >> 20), "split it")
    except (WorkbenchError, MemoryError) as e:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))  # so that there is room to say so
        if isinstance(e, MemoryError):
            e = _too_much()
        if o.json:
            json.dump({"error": {"code": e.code, "detail": e.detail, "hint": e.hint}}, sys.stdout)
        else:
            sys.stderr.write("workbench: extract: %s\n" % e)
        return 1
    sys.stdout.write(out if o.json else out + "\n")
    return 0


if __name__ == "__main__":
    import sys
    sys.exit(main(sys.argv[1:]))
