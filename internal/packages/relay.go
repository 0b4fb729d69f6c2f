package packages

import (
	"bytes"
	"context"
	"crypto/sha1" //nolint:gosec // npm's oldest packages have no other
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/html"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/guestwire"
)

// Bounds of what one installation may ask of a registry.
const (
	maxIndex      = 64 << 20 // bytes of one page of the registry
	maxRelayed    = 2 << 30  // bytes of everything
	relayPiece    = 150 * 1024
	headerTimeout = 30 * time.Second
	maxRedirects  = 5
)

// relay asks a registry for what the package manager in a builder's sandbox wants:
// pages of the registry, and files that such a page named. Nothing else can be
// reached through it.
type relay struct {
	web     *http.Client
	manager workbench.PackageManager

	mu      sync.Mutex
	base    *url.URL         // of the registry; nil: what the package manager says
	files   []*url.URL       // that pages named
	numbers map[string]int   // of files
	open    map[string]*body // answers that are not read to their end
	next    int
	left    int64           // bytes that may still come
	hashes  map[string]bool // of files that came whole
	trouble error           // the registry's first that is not "no such package"
	absent  []string        // names that the registry does not have
}

// body is an answer as it is read, piece by piece.
type body struct {
	mu   sync.Mutex
	from io.ReadCloser
	sums map[string]hash.Hash // nil of a page
	done func()
}

func newRelay(m workbench.PackageManager, base *url.URL, t http.RoundTripper) *relay {
	r := &relay{manager: m, base: base, numbers: map[string]int{}, open: map[string]*body{}, hashes: map[string]bool{}, left: maxRelayed}
	r.web = &http.Client{Transport: t, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects {
			return errors.New("too many redirects")
		}
		return r.mayAsk(req.URL)
	}}
	return r
}

// close ends what is still read.
func (r *relay) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for handle, b := range r.open {
		b.done()
		delete(r.open, handle)
	}
}

// mayAsk lets requests go to the registry's own origin, and to others whose name a
// certificate proves: a page must not lead into what has none, such as the metadata
// service of a cloud.
func (r *relay) mayAsk(u *url.URL) error {
	if base := r.registry(); u.Scheme == base.Scheme && u.Host == base.Host || u.Scheme == "https" {
		return nil
	}
	return fmt.Errorf("the registry names a file at %s, which is neither its own host nor https", u.Redacted())
}

var (
	pipPage  = regexp.MustCompile(`^/simple/([a-z0-9]+(?:[-._][a-z0-9]+)*)/$`)
	npmPage  = regexp.MustCompile(`^/((?:@[A-Za-z0-9][A-Za-z0-9._~-]*%2[fF])?[A-Za-z0-9][A-Za-z0-9._~-]*)$`)
	filePath = regexp.MustCompile(`^/f/(\d{1,9})/[^/?#]{1,300}$`)
)

// serve answers guestwire.OpFetch of the builder.
func (r *relay) serve(ctx context.Context, args guestwire.FetchArgs) (guestwire.FetchAnswer, error) {
	if args.Handle != "" {
		return r.more(args.Handle)
	}
	if args.URL == "/registry" {
		return guestwire.FetchAnswer{Status: http.StatusOK, Body: []byte{}}, r.told(args.Headers["base"])
	}
	if m := filePath.FindStringSubmatch(args.URL); m != nil {
		n, _ := strconv.Atoi(m[1]) // digits
		return r.file(ctx, n, strings.HasSuffix(args.URL, ".metadata"))
	}
	pattern, accept := pipPage, "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
	if r.manager == workbench.PackagesNpm {
		pattern, accept = npmPage, "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8"
	}
	m := pattern.FindStringSubmatch(args.URL)
	base := r.registry()
	if m == nil || base == nil {
		return guestwire.FetchAnswer{Status: http.StatusNotFound, Body: []byte{}}, nil
	}
	at := strings.TrimSuffix(base.String(), "/") + "/" + m[1]
	if r.manager == workbench.PackagesPip {
		at += "/"
	}
	return r.page(ctx, m[1], at, accept)
}

func (r *relay) registry() *url.URL {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.base
}

// told takes the package manager's own registry, if the operator named none.
func (r *relay) told(base string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.base != nil {
		return nil
	}
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return workbench.E(workbench.CodePackages, "the package manager of the image has no registry that can be asked").
			WithHint("name one when the server starts: --python-index, --npm-registry")
	}
	r.base = u
	return nil
}

// get asks for one place.
func (r *relay) get(ctx context.Context, at, accept string) (*http.Response, func(), error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err == nil {
		err = r.mayAsk(req.URL)
	}
	if err != nil {
		cancel()
		return nil, nil, err
	}
	req.Header.Set("User-Agent", "workbench")
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	late := time.AfterFunc(headerTimeout, cancel)
	resp, err := r.web.Do(req)
	if !late.Stop() && err == nil {
		_ = resp.Body.Close()
		err = errors.New("no answer in time")
	}
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return resp, func() { _ = resp.Body.Close(); cancel() }, nil
}

// failed notes trouble with the registry, and tells the package manager of it.
func (r *relay) failed(err error) (guestwire.FetchAnswer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.trouble == nil {
		r.trouble = err
	}
	return guestwire.FetchAnswer{Status: http.StatusBadGateway, Body: []byte{}}, nil
}

// page fetches a page of the registry and puts places of this relay where it names
// files.
func (r *relay) page(ctx context.Context, name, at, accept string) (guestwire.FetchAnswer, error) {
	resp, done, err := r.get(ctx, at, accept) //nolint:bodyclose // done closes it
	if err != nil {
		return r.failed(err)
	}
	defer done()
	switch {
	case resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusGone:
		r.mu.Lock()
		r.absent = append(r.absent, strings.NewReplacer("%2f", "/", "%2F", "/").Replace(name))
		r.mu.Unlock()
		return guestwire.FetchAnswer{Status: http.StatusNotFound, Body: []byte{}}, nil
	case resp.StatusCode != http.StatusOK:
		return r.failed(fmt.Errorf("it answered %d to %s", resp.StatusCode, name))
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxIndex+1))
	if err == nil && len(raw) > maxIndex {
		err = fmt.Errorf("its page of %s has more than %d bytes", name, maxIndex)
	}
	if err != nil {
		return r.failed(err)
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	from := resp.Request.URL
	switch {
	case r.manager == workbench.PackagesNpm:
		raw, err = r.packument(raw, from)
	case strings.HasSuffix(kind, "json"):
		raw, err = r.simpleJSON(raw, from)
	default:
		kind = "text/html"
		raw, err = r.simpleHTML(raw, from)
	}
	if err != nil {
		return r.failed(fmt.Errorf("its page of %s cannot be read: %w", name, err))
	}
	return r.begin(http.StatusOK, kind, &body{from: io.NopCloser(bytes.NewReader(raw)), done: func() {}})
}

// local is the place of a file that a page named, for the builder.
func (r *relay) local(from *url.URL, ref string) (string, error) {
	u, err := from.Parse(ref)
	if err != nil {
		return "", err
	}
	hint := u.Fragment // the hash, which the package manager checks
	u.Fragment = ""
	if u.User == nil && from.Host == u.Host {
		u.User = from.User
	}
	r.mu.Lock()
	n, known := r.numbers[u.String()]
	if !known {
		n = len(r.files)
		r.files, r.numbers[u.String()] = append(r.files, u), n
	}
	r.mu.Unlock()
	place := fmt.Sprintf("%s/f/%d/%s", builderAddress, n, url.PathEscape(path.Base(u.Path)))
	if hint != "" {
		place += "#" + hint
	}
	return place, nil
}

// builderAddress is where the builder's program listens in its own sandbox.
const builderAddress = "http://127.0.0.1:8642"

// simpleJSON is a page in the form of PEP 691.
func (r *relay) simpleJSON(raw []byte, from *url.URL) ([]byte, error) {
	var page map[string]json.RawMessage
	var files []map[string]json.RawMessage
	if err := json.Unmarshal(raw, &page); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(page["files"], &files); err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := r.rewrite(f, "url", from); err != nil {
			return nil, err
		}
	}
	page["files"], _ = json.Marshal(files) // made of what was read
	return json.Marshal(page)
}

// rewrite puts a place of this relay into a field.
func (r *relay) rewrite(fields map[string]json.RawMessage, name string, from *url.URL) error {
	var ref string
	if err := json.Unmarshal(fields[name], &ref); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	place, err := r.local(from, ref)
	if err == nil {
		fields[name], err = json.Marshal(place)
	}
	return err
}

// simpleHTML is a page in the form of PEP 503.
func (r *relay) simpleHTML(raw []byte, from *url.URL) ([]byte, error) {
	var out bytes.Buffer
	tokens := html.NewTokenizer(bytes.NewReader(raw))
	for {
		if tokens.Next() == html.ErrorToken {
			if err := tokens.Err(); !errors.Is(err, io.EOF) {
				return nil, err
			}
			return out.Bytes(), nil
		}
		token := tokens.Token()
		if token.Type == html.StartTagToken && token.Data == "base" {
			continue // its links are resolved here
		}
		if token.Type == html.StartTagToken && token.Data == "a" {
			for i, a := range token.Attr {
				if a.Key != "href" {
					continue
				}
				place, err := r.local(from, a.Val)
				if err != nil {
					return nil, err
				}
				token.Attr[i].Val = place
			}
		}
		out.WriteString(token.String())
	}
}

// packument is npm's page of a package.
func (r *relay) packument(raw []byte, from *url.URL) ([]byte, error) {
	var page map[string]json.RawMessage
	var versions map[string]map[string]json.RawMessage
	if err := json.Unmarshal(raw, &page); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(page["versions"], &versions); err != nil {
		return nil, err
	}
	for v, fields := range versions {
		var dist map[string]json.RawMessage
		if err := json.Unmarshal(fields["dist"], &dist); err != nil {
			return nil, fmt.Errorf("version %s: %w", v, err)
		}
		if err := r.rewrite(dist, "tarball", from); err != nil {
			return nil, fmt.Errorf("version %s: %w", v, err)
		}
		fields["dist"], _ = json.Marshal(dist) // made of what was read
	}
	page["versions"], _ = json.Marshal(versions)
	return json.Marshal(page)
}

// file fetches a file that a page named, or its metadata (PEP 658).
func (r *relay) file(ctx context.Context, n int, metadata bool) (guestwire.FetchAnswer, error) {
	r.mu.Lock()
	var at url.URL
	known := n < len(r.files)
	if known {
		at = *r.files[n]
	}
	r.mu.Unlock()
	if !known {
		return guestwire.FetchAnswer{Status: http.StatusNotFound, Body: []byte{}}, nil
	}
	if metadata {
		at.Path, at.RawPath = at.Path+".metadata", ""
	}
	// What is read goes on after this request has been answered.
	resp, done, err := r.get(context.WithoutCancel(ctx), at.String(), "") //nolint:bodyclose // done closes it, or what reads it does
	if err != nil {
		return r.failed(err)
	}
	if resp.StatusCode != http.StatusOK {
		done()
		if metadata {
			return guestwire.FetchAnswer{Status: http.StatusNotFound, Body: []byte{}}, nil
		}
		return r.failed(fmt.Errorf("it answered %d to %s", resp.StatusCode, path.Base(at.Path)))
	}
	b := &body{from: resp.Body, done: done}
	if !metadata {
		b.sums = map[string]hash.Hash{"sha256": sha256.New(), "sha512": sha512.New(), "sha1": sha1.New()} //nolint:gosec // see the import
	}
	return r.begin(http.StatusOK, "application/octet-stream", b)
}

// begin answers with the first piece of a body.
func (r *relay) begin(status int, kind string, b *body) (guestwire.FetchAnswer, error) {
	r.mu.Lock()
	r.next++
	handle := strconv.Itoa(r.next)
	r.open[handle] = b
	r.mu.Unlock()
	a, err := r.more(handle)
	if err != nil {
		return r.failed(err)
	}
	a.Status, a.Headers = status, map[string]string{"content-type": kind}
	return a, nil
}

// more is the next piece of an answer.
func (r *relay) more(handle string) (guestwire.FetchAnswer, error) {
	r.mu.Lock()
	b := r.open[handle]
	r.mu.Unlock()
	if b == nil {
		return guestwire.FetchAnswer{}, workbench.E(workbench.CodeNotFound, "there is no such answer").WithField("handle")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	piece := make([]byte, relayPiece)
	n, err := io.ReadFull(b.from, piece)
	over := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left -= int64(n); r.left < 0 {
		err, over = fmt.Errorf("the packages have more than %d bytes", int64(maxRelayed)), false
	}
	if err != nil && !over {
		if r.trouble == nil {
			r.trouble = err
		}
		b.done()
		delete(r.open, handle)
		return guestwire.FetchAnswer{}, workbench.E(workbench.CodeUnavailable, "the registry broke off").Caused(err)
	}
	for _, sum := range b.sums {
		sum.Write(piece[:n])
	}
	if over {
		for name, sum := range b.sums {
			r.hashes[name+"-"+base64.StdEncoding.EncodeToString(sum.Sum(nil))] = true
		}
		b.done()
		delete(r.open, handle)
	}
	return guestwire.FetchAnswer{Body: piece[:n], More: !over, Handle: handle}, nil
}
