"""Text, Markdown or tables from documents, parsed here in the sandbox.

    workbench.extract("report.pdf")                      # text
    workbench.extract("plan.docx", format="markdown")
    workbench.extract("sales.xlsx", format="tables")     # [{"name", "rows"}]

PDF, DOCX, XLSX, PPTX, HTML, CSV, plain text, and images of text where the image
of the sandbox has tesseract. What a document is, its first bytes say, and then
its name.
"""

import os

FORMATS = ("text", "markdown", "tables")
_MAX_FILE = 64 << 20
_MAX_UNPACKED = 256 << 20  # of an office document, which is a zip
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
        size = os.path.getsize(path)
        with open(path, "rb") as f:
            head = f.read(4096)
    except FileNotFoundError:
        raise _error("not_found", "no such file: %s" % path, "paths are relative to the working directory") from None
    except OSError as e:
        raise _error("invalid_request", "the file cannot be read: %s" % e.strerror) from None
    if size > _MAX_FILE:
        raise _error("body_too_large", "the file has %d bytes, %d can be read" % (size, _MAX_FILE), "split it")
    kind = _kind(path, head)
    try:
        parts = _READERS[kind](path)
        if kind == "pdf" and format == "tables":
            parts = _columns(parts)
    except _error_type():
        raise
    except MemoryError:
        raise
    except Exception as e:
        raise _error("invalid_request", "the %s file cannot be read: %s: %s" % (kind, type(e).__name__, str(e)[:200]),
                     "it may be damaged, or protected by a password") from None
    if format == "tables":
        return [{"name": p[2], "rows": p[1]} for p in parts if p[0] == "table"]
    return "\n\n".join(t for t in (_as_text(p, format) for p in parts) if t)


def _error_type():
    from workbench import WorkbenchError
    return WorkbenchError


def _kind(path, head):
    for magic, kind in _IMAGES.items():
        if head.startswith(magic):
            return "image"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image"
    if b"%PDF-" in head[:1024]:
        return "pdf"
    ending = os.path.splitext(path)[1].lower().lstrip(".")
    if head.startswith(b"PK\x03\x04"):
        kind = _office(path)
        if kind:
            return kind
        raise _error("unsupported_media_type", "the zip file is no office document", "unpack it, and extract what it holds")
    if head.startswith(b"\xd0\xcf\x11\xe0"):
        raise _error("unsupported_media_type", "documents of the old Office formats (.doc, .xls, .ppt) cannot be read", "save it as .docx, .xlsx or .pptx")
    if b"\x00" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _error("unsupported_media_type", "nothing here reads such a file",
                     "PDF, DOCX, XLSX, PPTX, HTML, CSV, text and images of text can be read")
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith((b"<!doctype html", b"<html")) or ending in ("html", "htm", "xhtml"):
        return "html"
    if ending in ("csv", "tsv", "tab"):
        return "csv"
    return "plain"


def _office(path):
    import zipfile
    with zipfile.ZipFile(path) as z:
        names = {i.filename for i in z.infolist()}
        if sum(i.file_size for i in z.infolist()) > _MAX_UNPACKED:
            raise _error("body_too_large", "the document is larger than %d MiB when it is unpacked" % (_MAX_UNPACKED >> 20))
    for name, kind in (("word/document.xml", "docx"), ("xl/workbook.xml", "xlsx"), ("ppt/presentation.xml", "pptx")):
        if name in names:
            return kind
    return None


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
    import subprocess
    if shutil.which("pdftotext"):
        done = subprocess.run(["pdftotext", "-layout", "-enc", "UTF-8", "--", path, "-"], stdin=subprocess.DEVNULL, capture_output=True)
        if done.returncode == 0:
            pages = done.stdout.decode("utf-8", "replace").split("\f")
            return _pages([p for p in pages if p.strip()])
        if b"password" in done.stderr.lower():
            raise _error("invalid_request", "the PDF is protected by a password", "remove the protection first")
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
    parts, tables = [], 0
    for child in document.element.body.iterchildren():
        if child.tag.endswith("}p"):
            p = Paragraph(child, document)
            style = (p.style.name or "") if p.style is not None else ""
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


def _xlsx(path):
    try:
        import openpyxl
    except ImportError:
        raise _error("unsupported_media_type", "this sandbox image cannot read XLSX", "use the image standard") from None
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    parts = []
    for sheet in book.worksheets:
        rows = []
        for row in sheet.iter_rows(values_only=True):
            cells = ["" if v is None else (v.isoformat() if hasattr(v, "isoformat") else str(v)) for v in row]
            while cells and not cells[-1]:
                cells.pop()
            rows.append(cells)
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


def _html(path):
    try:
        import bs4
    except ImportError:
        raise _error("unsupported_media_type", "this sandbox image cannot read HTML", "use the image standard") from None
    with open(path, "rb") as f:
        page = bs4.BeautifulSoup(f.read(), "lxml" if _has("lxml") else "html.parser")
    for gone in page(["script", "style", "noscript", "template", "svg"]):
        gone.decompose()
    parts, tables = [], 0
    if page.title and page.title.string:
        parts.append(("heading", page.title.string.strip(), 1))
    for element in (page.body or page).find_all(["h1", "h2", "h3", "h4", "h5", "h6", "p", "li", "pre", "blockquote", "table", "dt", "dd", "figcaption"]):
        if element.find_parent("table") is not None:
            continue
        if element.name == "table":
            tables += 1
            rows = [[c.get_text(" ", strip=True) for c in row.find_all(["td", "th"])] for row in element.find_all("tr")]
            parts.append(("table", [r for r in rows if r], "table %d" % tables))
        elif element.name[0] == "h":
            parts.append(("heading", element.get_text(" ", strip=True), int(element.name[1])))
        elif element.name == "pre":
            parts.append(("text", element.get_text()))
        elif element.find(["p", "li", "table"]) is None:
            parts.append(("item" if element.name == "li" else "text", element.get_text(" ", strip=True)))
    if len(parts) <= 1:
        parts.append(("text", (page.body or page).get_text("\n", strip=True)))
    return parts


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
    text = _decoded(path)
    try:
        dialect = csv.Sniffer().sniff(text[:65536], delimiters=",;\t|")
    except csv.Error:
        dialect = csv.excel
    csv.field_size_limit(1 << 24)
    return [("table", [row for row in csv.reader(io.StringIO(text, newline=""), dialect) if row], os.path.basename(path))]


def _plain(path):
    return [("text", _decoded(path))]


def _image(path):
    import shutil
    import subprocess
    if not shutil.which("tesseract"):
        raise _error("unsupported_media_type", "this sandbox image has no OCR, so that text in images cannot be read",
                     "an image with the package tesseract-ocr can")
    done = subprocess.run(["tesseract", path, "stdout"], stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode != 0:
        raise _error("invalid_request", "the image cannot be read: %s" % done.stderr.decode("utf-8", "replace").strip()[-200:])
    return [("text", done.stdout.decode("utf-8", "replace"))]


_READERS = {"pdf": _pdf, "docx": _docx, "xlsx": _xlsx, "pptx": _pptx, "html": _html, "csv": _csv, "plain": _plain, "image": _image}


def main(argv):
    """The command line: [--json] [--format text|markdown|tables] [--] FILE. Tables
    are JSON; with --json so is everything, also what is wrong."""
    import argparse
    import json
    import sys
    from workbench import WorkbenchError
    parser = argparse.ArgumentParser(prog="workbench extract")
    parser.add_argument("--format", choices=FORMATS, default="text")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("file")
    o = parser.parse_args(argv)
    try:
        out = extract(o.file, o.format)
    except WorkbenchError as e:
        if o.json:
            json.dump({"error": {"code": e.code, "detail": e.detail, "hint": e.hint}}, sys.stdout)
        else:
            sys.stderr.write("workbench: extract: %s\n" % e)
        return 1
    if o.json:
        json.dump({"result": out}, sys.stdout)
    elif isinstance(out, str):
        sys.stdout.write(out + "\n")
    else:
        json.dump(out, sys.stdout, ensure_ascii=False)
        sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    import sys
    sys.exit(main(sys.argv[1:]))
