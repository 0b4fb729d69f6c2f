package main

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
	sdk "github.com/workbenchdev/workbench/sdk/go"
)

// index serves one Python package: what is measured is a set that is there, so the
// registry is asked once.
type index struct {
	url     string
	service *http.Server
}

const wheelName = "benchpackage-1.0-py3-none-any.whl"

func openIndex(ctx context.Context) (*index, error) {
	var wheel bytes.Buffer
	z := zip.NewWriter(&wheel)
	for name, text := range map[string]string{
		"benchpackage/__init__.py":                 "VALUE = 1\n",
		"benchpackage-1.0.dist-info/METADATA":      "Metadata-Version: 2.1\nName: benchpackage\nVersion: 1.0\n",
		"benchpackage-1.0.dist-info/WHEEL":         "Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"benchpackage-1.0.dist-info/RECORD":        "",
		"benchpackage-1.0.dist-info/top_level.txt": "benchpackage\n",
	} {
		w, err := z.Create(name)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write([]byte(text)); err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(wheel.Bytes())
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	i := &index{url: "http://" + listener.Addr().String() + "/simple/"}
	i.service = &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/simple/benchpackage/":
			w.Header().Set("Content-Type", "text/html")
			_, _ = fmt.Fprintf(w, "<a href=\"/%s#sha256=%s\">%s</a>", wheelName, hex.EncodeToString(sum[:]), wheelName)
		case "/" + wheelName:
			_, _ = w.Write(wheel.Bytes())
		default:
			http.NotFound(w, r)
		}
	})}
	go func() { _ = i.service.Serve(listener) }() // ends with close
	return i, nil
}

func (i *index) close() error { return i.service.Close() }

// What it takes to have the packages is timed inside, by the code that asks: the run
// around it is the same without.
const packagesProgram = `
import time
began = time.perf_counter()
workbench.packages.install("benchpackage==1.0")
import benchpackage
print((time.perf_counter() - began) * 1e9)
`

// packages is a contender: a cached set in the first run of a new session.
func (w *world) packages() contender {
	return contender{name: namePackages, language: string(workbench.Python), few: true, rest: w.rest, run: func(ctx context.Context) (took time.Duration, err error) {
		session, err := w.session(ctx, sdk.CreateSession{Image: "standard"}) // which has pip
		if err != nil {
			return 0, err
		}
		defer func() {
			_, closed := w.client.CloseAgentSession(ctx, session)
			err = errors.Join(err, closed)
		}()
		r, err := w.submit(ctx, session, job(workbench.Python, packagesProgram), time.Minute)
		if err != nil {
			return 0, err
		}
		ns, err := strconv.ParseFloat(strings.TrimSpace(r.Output()), 64)
		if err != nil {
			return 0, fmt.Errorf("the run ended %s (%s) %s: %s", r.Status, r.Reason, r.Message, r.ErrorOutput())
		}
		return time.Duration(ns), nil
	}}
}
