package e2e_test

import (
	"strings"
	"testing"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// documents makes one document of each family, with the image's own libraries.
const documents = `
import zipfile
from reportlab.pdfgen import canvas
c = canvas.Canvas("a.pdf")
for y, row in ((760, ("Quarterly report",)), (700, ("Product", "Sold")), (686, ("apples", "12")), (672, ("pears", "7"))):
    for x, cell in zip((72, 300), row): c.drawString(x, y, cell)
c.showPage(); c.drawString(72, 760, "second page"); c.save()

import docx
d = docx.Document()
d.add_heading("Plan", 1); d.add_paragraph("We begin on Monday."); d.add_paragraph("buy paint", style="List Bullet")
t = d.add_table(2, 2)
for i, cell in enumerate(("who", "what", "Ada", "roof | wall")): t.cell(i // 2, i % 2).text = cell
d.save("b.docx")

import openpyxl, datetime
b = openpyxl.Workbook()
b.active.title = "Sales"
for row in (("day", "sum"), (datetime.date(2026, 3, 1), 12.5), (None, None), ("total", "=SUM(B2)")): b.active.append(row)
b.create_sheet("Empty"); b.save("c.xlsx")

A = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main" xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
with zipfile.ZipFile("d.pptx", "w") as z:
    z.writestr("ppt/presentation.xml", "<p:presentation %s/>" % A)
    say = lambda *texts: "".join("<a:p><a:r><a:t>%s</a:t></a:r></a:p>" % t for t in texts)
    z.writestr("ppt/slides/slide2.xml", "<p:sld %s><a:tbl><a:tr><a:tc>%s</a:tc><a:tc>%s</a:tc></a:tr></a:tbl></p:sld>" % (A, say("left"), say("right")))
    z.writestr("ppt/slides/slide10.xml", "<p:sld %s>%s</p:sld>" % (A, say("last")))
    z.writestr("ppt/slides/slide1.xml", "<p:sld %s>%s</p:sld>" % (A, say("Welcome", "to all")))

open("e.html", "w").write("<title>Shop</title><style>p{}</style>bare text<h2>Off<b>ers</b></h2><ul><li>one<li>two</ul>"
    "<pre>a\n  b</pre><table><tr><th>name<th>price<tr><td>tea<td>3</table><script>alert(1)</script>")
open("f.csv", "w").write('name; note\nAda; "likes; semicolons"\nBob;\n')
`

// Documents become text, Markdown and tables, in every language. One that means
// harm costs its reader an error, and neither its memory nor its time.
func TestExtract(t *testing.T) {
	t.Parallel() // it waits more than it works
	s := mustShared(t).mustSession(t, sdk.CreateSession{})
	wantEnd(t, s.mustPython(documents), workbench.StatusSucceeded, workbench.ReasonNone)
	t.Run("python", func(t *testing.T) {
		r := s.mustPython(`
for name in ("b.docx", "c.xlsx", "d.pptx", "e.html", "f.csv"):
    for format in ("text", "markdown"): print(repr(workbench.extract(name, format)))
    print([(t["name"], t["rows"]) for t in workbench.extract(name, format="tables")])
print(workbench.extract("a.pdf").split())
print(workbench.extract("a.pdf", "tables"))
`)
		wantOut(t, r, `'Plan\n\nWe begin on Monday.\n\nbuy paint\n\nwho\twhat\nAda\troof | wall'
'# Plan\n\nWe begin on Monday.\n\n- buy paint\n\n| who | what |\n| --- | --- |\n| Ada | roof \\| wall |'
[('table 1', [['who', 'what'], ['Ada', 'roof | wall']])]
'Sales\n\nday\tsum\n2026-03-01T00:00:00\t12.5\n\ntotal\n\nEmpty'
'## Sales\n\n| day | sum |\n| --- | --- |\n| 2026-03-01T00:00:00 | 12.5 |\n|  |  |\n| total |  |\n\n## Empty'
[('Sales', [['day', 'sum'], ['2026-03-01T00:00:00', '12.5'], [], ['total']])]
'Slide 1\n\nWelcome\n\nto all\n\nSlide 2\n\nleft\tright\n\nSlide 3\n\nlast'
'## Slide 1\n\nWelcome\n\nto all\n\n## Slide 2\n\n| left | right |\n| --- | --- |\n\n## Slide 3\n\nlast'
[('slide 2', [['left', 'right']])]
'Shop\n\nbare text\n\nOffers\n\none\n\ntwo\n\na\n  b\n\nname\tprice\ntea\t3'
'# Shop\n\nbare text\n\n## Offers\n\n- one\n\n- two\n\na\n  b\n\n| name | price |\n| --- | --- |\n| tea | 3 |'
[('table 1', [['name', 'price'], ['tea', '3']])]
'name\tnote\nAda\tlikes; semicolons\nBob\t'
'| name | note |\n| --- | --- |\n| Ada | likes; semicolons |\n| Bob |  |'
[('f.csv', [['name', 'note'], ['Ada', 'likes; semicolons'], ['Bob', '']])]
['Quarterly', 'report', 'Product', 'Sold', 'apples', '12', 'pears', '7', 'second', 'page']
[{'name': 'page 1', 'rows': [['Product', 'Sold'], ['apples', '12'], ['pears', '7']]}]
`)
	})
	t.Run("javascript", func(t *testing.T) {
		r := s.mustRun(sdk.CreateRun{Language: workbench.JavaScript, Code: `
console.log(JSON.stringify(await workbench.extract("b.docx", { format: "markdown" })));
console.log(JSON.stringify(await workbench.extract("f.csv", { format: "tables" })));
for (const [file, options] of [["none.pdf"], ["b.docx", { format: "yaml" }]])
  await workbench.extract(file, options).catch((e) => console.log(e instanceof workbench.WorkbenchError, e.code));
`})
		wantOut(t, r, `"# Plan\n\nWe begin on Monday.\n\n- buy paint\n\n| who | what |\n| --- | --- |\n| Ada | roof \\| wall |"
[{"name":"f.csv","rows":[["name","note"],["Ada","likes; semicolons"],["Bob",""]]}]
true not_found
true invalid_request
`)
	})
	t.Run("bash", func(t *testing.T) {
		r := s.mustBash(`workbench extract d.pptx; workbench extract f.csv --format markdown; workbench extract --format=tables e.html
workbench extract none.pdf; echo $?; workbench extract f.csv --format yaml 2>/dev/null; echo $?`)
		wantOut(t, r, `Slide 1

Welcome

to all

Slide 2

left	right

Slide 3

last
| name | note |
| --- | --- |
| Ada | likes; semicolons |
| Bob |  |
[{"name": "table 1", "rows": [["name", "price"], ["tea", "3"]]}]
1
2
`)
		if !strings.Contains(text(r.Stderr), "not_found: no such file: none.pdf") {
			t.Errorf("stderr %q", text(r.Stderr))
		}
	})
	t.Run("what means harm", func(t *testing.T) {
		wantEnd(t, s.mustPython(hostileDocuments), workbench.StatusSucceeded, workbench.ReasonNone)
		r := s.mustPython(`
for name in ("bomb.docx", "huge.docx", "entity.docx", "cut.docx", "photo.docx", "entity.xlsx", "wide.xlsx", "files.xlsx", "old.xlsx", "bomb.pptx", "entity.pptx",
             "cut.pdf", "text.pdf", "pipe.pdf", "program.csv", "words.png"):
    try: print(name, repr(workbench.extract(name))[:60])
    except workbench.WorkbenchError as e: print(name, e.code, "|", e.detail.split(":")[0], "|", e.hint is not None)
print(workbench.extract("claims.xlsx", "tables"), workbench.extract("other.docx").split()[0])
print(len(workbench.extract("quotes.csv")) > 0, workbench.extract("deep.html").count("x"), workbench.extract("tables.html").count("x"))
`)
		wantOut(t, r, `bomb.docx body_too_large | the document takes more memory to be read than there is here | True
huge.docx body_too_large | the document is larger than 256 MiB when it is unpacked | False
entity.docx '['
cut.docx invalid_request | the zip file cannot be read | True
photo.docx unsupported_media_type | this sandbox image has no OCR, so that text in images cannot be read | True
entity.xlsx invalid_request | the xlsx file cannot be read | True
wide.xlsx body_too_large | the workbook has more than 5000000 cells, with the empty ones between others | True
files.xlsx unsupported_media_type | the zip file is no office document | True
old.xlsx unsupported_media_type | documents of the old Office formats (.doc, .xls, .ppt) cannot be read | True
bomb.pptx body_too_large | the document takes more memory to be read than there is here | True
entity.pptx invalid_request | the document declares XML entities, which are not expanded | False
cut.pdf invalid_request | the pdf file cannot be read | True
text.pdf unsupported_media_type | the file is named .pdf and is none | True
pipe.pdf invalid_request | pipe.pdf is not a file | False
program.csv unsupported_media_type | nothing here reads such a file | True
words.png unsupported_media_type | this sandbox image has no OCR, so that text in images cannot be read | True
[{'name': 'Sales', 'rows': [[], ['7']]}] Quarterly
True 5000 5000
`)
		inBash := s.mustBash("workbench extract words.png || echo refused")
		wantOut(t, inBash, "refused\n")
		if !strings.Contains(text(inBash.Stderr), "an image with the package tesseract-ocr can") {
			t.Errorf("the error names no remedy: %q", text(inBash.Stderr))
		}
	})
}

// hostileDocuments are one or more of each family that mean harm, or are not what
// they say.
const hostileDocuments = `
import os, zipfile, zlib
def part(z, name, head, unit, n, tail):
    with z.open(name, "w") as f:
        f.write(head)
        for _ in range(n // 1000): f.write(unit * 1000)
        f.write(tail)
def repacked(source, name, replaced, *new):
    with zipfile.ZipFile(source) as a, zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as z:
        for i in a.infolist():
            if i.filename != replaced: z.writestr(i, a.read(i.filename))
        part(z, replaced, *new)
W = b'<?xml version="1.0"?><w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>'
repacked("b.docx", "bomb.docx", "word/document.xml", W, b"<w:p/>", 4_000_000, b"</w:body></w:document>")
repacked("b.docx", "huge.docx", "word/document.xml", W, b" " * 1000, 300_000, b"</w:body></w:document>")
DTD = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd"><!ENTITY l "lol"><!ENTITY l2 "&l;&l;&l;">]>'
repacked("b.docx", "entity.docx", "word/document.xml", DTD + W[21:] + b"<w:p><w:r><w:t>[&e;]</w:t></w:r></w:p>", b"", 0, b"</w:body></w:document>")
S = b'<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><dimension ref="A1:XFD1048576"/><sheetData>'
repacked("c.xlsx", "entity.xlsx", "xl/worksheets/sheet1.xml", DTD + S, b"", 0, b'<row r="1"><c r="A1" t="inlineStr"><is><t>&e;</t></is></c></row></sheetData></worksheet>')
repacked("c.xlsx", "wide.xlsx", "xl/worksheets/sheet1.xml", S, b'<row><c r="XFD1"><v>1</v></c></row>', 1000, b"</sheetData></worksheet>")
repacked("c.xlsx", "claims.xlsx", "xl/worksheets/sheet1.xml", S, b"", 0, b'<row r="2"><c r="A2"><v>7</v></c></row></sheetData></worksheet>')
repacked("d.pptx", "bomb.pptx", "ppt/slides/slide1.xml", b"<p>", b"<a/>", 4_000_000, b"</p>")
repacked("d.pptx", "entity.pptx", "ppt/slides/slide1.xml", DTD + b"<p>&l2;", b"", 0, b"</p>")
pdf = open("a.pdf", "rb").read()
open("cut.pdf", "wb").write(pdf[:len(pdf) // 4])
open("text.pdf", "w").write("only text")
open("cut.docx", "wb").write(open("b.docx", "rb").read()[:9000])
open("other.docx", "wb").write(pdf)
open("photo.docx", "wb").write(b"\x89PNG\r\n\x1a\n" + bytes(100))
with zipfile.ZipFile("files.xlsx", "w") as z: z.writestr("readme.txt", "hello")
open("old.xlsx", "wb").write(b"\xd0\xcf\x11\xe0" + bytes(600))
open("program.csv", "wb").write(b"\x7fELF" + bytes(600))
open("quotes.csv", "w").write('",' * 30000)
open("deep.html", "w").write("<h1>x" * 5000)
open("tables.html", "w").write("<table><tr><td>x" * 5000)
from PIL import Image
Image.new("RGB", (80, 20)).save("words.png")
os.mkfifo("pipe.pdf")
`
