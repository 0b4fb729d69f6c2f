package api_test

import (
	"mime"
	"strings"
	"testing"

	"github.com/workbenchdev/workbench/internal/api"
)

// TestDownloads: ranges, conditions, HEAD, and a form no browser runs.
func TestDownloads(t *testing.T) {
	w := MustWorld(t)
	key := w.Direct("", "acme", "ada")
	session := w.MustSession(key)
	up := w.Do("POST", "/v1/workbench/sessions/"+session+"/artifacts?name=page.html&path=out/page.html", key, "<script>alert(1)</script>", "Content-Type", "text/html").Want(201)
	path := "/v1/workbench/artifacts/" + up.Text("id") + "/content"
	if up.Text("downloadPath") != path {
		t.Errorf("downloadPath is %q, want %q", up.Text("downloadPath"), path)
	}
	tag := `"` + up.Text("sha256") + `"`
	x := w.Do("GET", path, key, "").Want(200)
	for name, want := range map[string]string{
		"Content-Type": "text/html", "Content-Disposition": `attachment; filename="page.html"`, "X-Content-Type-Options": "nosniff",
		"Content-Security-Policy": "default-src 'none'; sandbox", "Cache-Control": "private, no-store", "Etag": tag, "Accept-Ranges": "bytes", "Content-Length": "25",
	} {
		if got := x.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, c := range []struct {
		name, method string
		headers      []string
		status       int
		body, ranges string
	}{
		{"first bytes", "GET", []string{"Range", "bytes=0-7"}, 206, "<script>", "bytes 0-7/25"},
		{"last bytes", "GET", []string{"Range", "bytes=-9"}, 206, "</script>", "bytes 16-24/25"},
		{"from an offset", "GET", []string{"Range", "bytes=16-"}, 206, "</script>", "bytes 16-24/25"},
		{"up to beyond every number", "GET", []string{"Range", "bytes=16-18446744073709551615"}, 206, "</script>", "bytes 16-24/25"},
		{"more than all at the end", "GET", []string{"Range", "bytes=-99999999999999999999"}, 206, "<script>alert(1)</script>", "bytes 0-24/25"},
		{"nothing at the end, and something", "GET", []string{"Range", "bytes=-0, 0-0"}, 206, "<", "bytes 0-0/25"},
		{"If-Range of this content", "GET", []string{"Range", "bytes=0-0", "If-Range", tag}, 206, "<", "bytes 0-0/25"},
		{"If-Range of another", "GET", []string{"Range", "bytes=0-0", "If-Range", `"other"`}, 200, "<script>alert(1)</script>", ""},
		{"If-None-Match", "GET", []string{"If-None-Match", tag}, 304, "", ""},
		{"If-Match of this content", "GET", []string{"If-Match", tag, "Range", "bytes=0-0"}, 206, "<", "bytes 0-0/25"},
		{"a unit nobody knows", "GET", []string{"Range", "lines=0-1"}, 200, "<script>alert(1)</script>", ""},
		{"HEAD", "HEAD", nil, 200, "", ""},
		{"HEAD of a range", "HEAD", []string{"Range", "bytes=0-7"}, 206, "", "bytes 0-7/25"},
	} {
		x := w.Do(c.method, path, key, "", c.headers...)
		if x.Status != c.status || string(x.Body) != c.body || x.Header.Get("Content-Range") != c.ranges {
			t.Errorf("%s: %d %q %q", c.name, x.Status, x.Body, x.Header.Get("Content-Range"))
		}
	}
	for _, ranges := range []string{"bytes=25-", "bytes=-0", "bytes=-00", "bytes=99999999999999999999-"} {
		if x := w.Do("GET", path, key, "", "Range", ranges); x.Status != 416 || x.Header.Get("Content-Range") != "bytes */25" || x.Header.Get("Content-Disposition") != "" {
			t.Errorf("%s: %d with the headers %s", ranges, x.Status, x.Header)
		}
	}
	if x := w.Do("GET", path, key, "", "If-Match", `"other"`); x.Status != 412 || x.Text("code") != "version_mismatch" || x.Text("field") != "If-Match" {
		t.Errorf("If-Match of another content: %d %s", x.Status, x.Body)
	}
	if x := w.Do("HEAD", path, key, "").Want(200); x.Header.Get("Content-Length") != "25" {
		t.Errorf("HEAD says %s bytes", x.Header.Get("Content-Length"))
	}
	w.Do("DELETE", "/v1/workbench/artifacts/"+up.Text("id"), key, "").Want(200)
	if x := w.Do("GET", path, key, ""); x.Status != 410 || x.Text("code") != "artifact_deleted" {
		t.Errorf("after deletion: %d %s", x.Status, x.Body)
	}
}

// TestAttachment: the name is exact for whoever reads RFC 8187, safe for the
// rest, and encoded once.
func TestAttachment(t *testing.T) {
	for name, want := range map[string]string{
		"report.csv":               `attachment; filename="report.csv"`,
		"résumé 報告 #1?%20.txt":     `attachment; filename="r_sum_ __ #1?_20.txt"; filename*=UTF-8''r%C3%A9sum%C3%A9%20%E5%A0%B1%E5%91%8A%20#1%3F%2520.txt`,
		`a"; filename=evil.exe; "`: `attachment; filename="a_; filename=evil.exe; _"; filename*=UTF-8''a%22%3B%20filename%3Devil.exe%3B%20%22`,
		"a; touch pwned .txt":      `attachment; filename="a; touch pwned .txt"`,
		"x\r\nSet-Cookie: a=b":     `attachment; filename="x__Set-Cookie: a=b"; filename*=UTF-8''x%0D%0ASet-Cookie%3A%20a%3Db`,
		"e\u0301":                  `attachment; filename="e_"; filename*=UTF-8''e%CC%81`,
	} {
		got := api.Attachment(name)
		if got != want {
			t.Errorf("%q:\n got %s\nwant %s", name, got, want)
		}
		_, params, err := mime.ParseMediaType(got)
		if err != nil || params["filename"] != name && strings.Contains(got, "*=") {
			t.Errorf("%q is read back as %q (err %v)", name, params["filename"], err)
		}
	}
}
