package e2e_test

import (
	"fmt"
	"strings"
	"time"

	"github.com/workbenchdev/workbench"
)

var (
	again    = []workbench.Status{workbench.StatusSucceeded} // a second sandbox is tried, and it is honest
	unknown  = []workbench.Status{workbench.StatusUnknown}   // code may have begun
	failed   = []workbench.Status{workbench.StatusFailed}
	ended    = []workbench.Status{workbench.StatusSucceeded} // the program ended; only its files are lost
	cancel   = []workbench.Status{workbench.StatusCancelled}
	timedOut = []workbench.Status{workbench.StatusTimedOut}
)

// sum is the digest of nothing, as a scan has it.
const sum = `"47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="`

// file is a scan's record of a file; path is base64, as on the wire.
func file(path string, size int, content string) string {
	return record(fmt.Sprintf(`{"path":%q,"change":"added","type":"file","mode":420,"size":%d,"sha256":%s,"content":true}`, path, size, sum), content)
}

const done = `{"token":"t2","entries":1,"bytes":0,"skipped":[],"skippedTotal":0}`

// whatLiarsSay is every lie, by name.
func whatLiarsSay() map[string]lie {
	lies := map[string]lie{}
	add := func(group string, l lie, cases map[string]func(g *liar, channel uint32, body string)) {
		for name, say := range cases {
			l := l
			l.say = say
			lies[group+" "+name] = l
		}
	}
	raw := func(b ...[]byte) func(*liar, uint32, string) {
		return func(g *liar, _ uint32, _ string) { g.send(b...) }
	}
	answers := func(payload string) func(*liar, uint32, string) {
		return func(g *liar, ch uint32, _ string) { g.reply(ch, payload) }
	}
	refuses := func(code string) func(*liar, uint32, string) {
		return func(g *liar, ch uint32, _ string) {
			g.send(frameOf(fFail, 0, ch, fmt.Sprintf(`{"code":%q,"detail":"\u001b[31mno"}`, code)))
		}
	}
	hangsUp := func(g *liar, _ uint32, _ string) { g.conn.Close() }

	add("hello", lie{at: "hello", want: again, within: 25 * time.Second}, map[string]func(*liar, uint32, string){
		"of another version":    raw([]byte(wirePreamble), frameOf(fHello, 0, 0, helloOf(2, "x"))),
		"with another nonce":    raw([]byte(wirePreamble), frameOf(fHello, 0, 0, helloOf(1, "x"))),
		"of a huge length":      raw([]byte(wirePreamble), []byte("\xff\xff\xff\xff\x01\x00\x00\x00\x00\x00\x00\x00")),
		"that is no JSON":       raw([]byte(wirePreamble), frameOf(fHello, 0, 0, "{")),
		"with a long boot":      raw([]byte(wirePreamble), frameOf(fHello, 0, 0, `{"version":1,"boot":"`+strings.Repeat("x", 600<<10)+`"}`)),
		"drowned in junk":       raw(repeated([]byte("\xffWORKBENCH"), 8<<20)),
		"cut off":               raw([]byte(wirePreamble), []byte("\x00\x00\x00\x10\x01")),
		"and the end":           hangsUp,
		"that never comes":      nil,
		"with a frame first":    raw([]byte(wirePreamble), frameOf(fReply, 0, 1, "{}")),
		"and preambles for all": raw(repeated([]byte(wirePreamble), 1<<16)),
	})
	add("bind", lie{at: "bind", want: again, within: 20 * time.Second}, map[string]func(*liar, uint32, string){
		"answered with a list":     answers(`[]`),
		"answered with junk":       answers("\x00\xff"),
		"with 17 languages":        answers(`{"languages":[` + strings.Repeat(`"x",`, 16) + `"x"]}`),
		"refused as lost":          refuses("sandbox_lost"),
		"refused by no known code": refuses("<script>"),
		"and the end":              hangsUp,
		"answered twice":           func(g *liar, ch uint32, _ string) { g.reply(ch, `{}`); g.reply(ch, `{}`); g.conn.Close() },
	})
	add("bind", lie{at: "bind", want: failed, within: 20 * time.Second}, map[string]func(*liar, uint32, string){
		"refused for good": refuses("invalid_request"),
	})
	add("restore", lie{at: "restore", want: again, within: 20 * time.Second}, map[string]func(*liar, uint32, string){
		"acknowledged beyond what was sent": func(g *liar, ch uint32, _ string) { g.send(frameOf(fAck, sContent, ch, from(1<<40, ""))) },
		"acknowledged backwards":            func(g *liar, ch uint32, _ string) { g.send(frameOf(fAck, sContent, ch, from(0, ""))) },
		"done, with no token":               answers(`{"token":"../..","entries":1,"bytes":1}`),
		"done, with -1 entries":             answers(`{"token":"t","entries":-1,"bytes":-1}`),
		"said to be content itself":         func(g *liar, ch uint32, _ string) { g.send(frameOf(fData, sContent, ch, from(0, "x"))) },
		"and the end":                       hangsUp,
	})
	add("exec", lie{at: "exec", want: unknown, within: 20 * time.Second}, execLies(answers, hangsUp))
	add("exec", lie{at: "exec", want: failed, within: 20 * time.Second}, map[string]func(*liar, uint32, string){
		"refused": refuses("capacity_exhausted"),
	})
	add("exec", lie{at: "exec", want: ended, within: 20 * time.Second}, map[string]func(*liar, uint32, string){
		"answered without end": func(g *liar, ch uint32, _ string) {
			begun()(g, ch, "")
			g.send(repeated(frameOf(fReply, 0, ch, honestEnd), 100_000))
		},
	})
	add("exec", lie{at: "exec", want: ended, believed: true, within: 20 * time.Second}, map[string]func(*liar, uint32, string){
		"ended within a display": func(g *liar, ch uint32, b string) {
			begun()(g, ch, "")
			g.send(frameOf(fOpen, 0, 2, call(execOf(b), "display", `{"kind":"display","at":{"stdout":0,"stderr":0}}`, 100)),
				frameOf(fData, sContent, 2, from(0, "{")))
			g.waits(500 * time.Millisecond) // the host reads on
			g.end(ch, honestEnd)
		},
	})
	add("exec", lie{at: "exec", want: timedOut, within: 40 * time.Second}, map[string]func(*liar, uint32, string){
		"begun, and silence": begun(),
		"in drops of a byte, for ever": func(g *liar, ch uint32, _ string) {
			begun()(g, ch, "")
			for i := uint64(0); g.waits(20 * time.Millisecond); i++ {
				g.send(frameOf(fData, sOut, ch, from(i, "x")))
			}
		},
	})
	addScans(add, answers, hangsUp)
	add("cancelled: exec", lie{at: "exec", want: cancel, within: 20 * time.Second, cancel: true}, map[string]func(*liar, uint32, string){
		"silent":             nil,
		"begun, then silent": begun(),
		"half a header":      func(g *liar, ch uint32, _ string) { begun()(g, ch, ""); g.send([]byte("\x00\x00\x00")) },
		"half a payload": func(g *liar, ch uint32, _ string) {
			begun()(g, ch, "")
			g.send(frameOf(fData, sOut, ch, from(0, "xxxx"))[:22])
		},
		"half a save": func(g *liar, ch uint32, b string) {
			begun()(g, ch, "")
			g.send(frameOf(fOpen, 0, 2, call(execOf(b), "save", `{"path":"YQ=="}`, 100)))
		},
		"output that never stops": floods,
	})
	for _, at := range []string{"bind", "restore", "write"} {
		add("cancelled: "+at, lie{at: at, upload: at == "write", want: cancel, within: 20 * time.Second, cancel: true},
			map[string]func(*liar, uint32, string){"silent": nil})
	}
	for _, at := range []string{"scan", "read"} {
		add("cancelled: "+at, lie{at: at, keep: []string{"*"}, want: ended, within: 20 * time.Second, cancel: true},
			map[string]func(*liar, uint32, string){"silent": nil})
	}
	for _, at := range []string{"restore", "exec"} {
		l := lie{at: at, deaf: true, want: cancel, within: 20 * time.Second, cancel: true}
		add("cancelled: "+at, l, map[string]func(*liar, uint32, string){"deaf": nil})
	}
	return lies
}

func begun() func(*liar, uint32, string) {
	return func(g *liar, ch uint32, _ string) { g.send(frameOf(fEvent, 0, ch, `{}`)) }
}

// floods sends output as the protocol allows, for as long as the host listens.
func floods(g *liar, ch uint32, _ string) {
	begun()(g, ch, "")
	data := strings.Repeat("x", 32<<10)
	for at := uint64(0); at < 4<<30; at += uint64(len(data)) {
		for at-g.heard.Load() > 200<<10 {
			if !g.waits(time.Millisecond) {
				return
			}
		}
		g.send(frameOf(fData, sOut, ch, from(at, data)))
	}
}

func call(exec, op, args string, size int) string {
	return fmt.Sprintf(`{"op":"call","body":{"exec":%q,"op":%q,"args":%s,"size":%d}}`, exec, op, args, size)
}

// execOf reads the exec's id out of its request.
func execOf(body string) string {
	_, rest, _ := strings.Cut(body, `"id":"`)
	id, _, _ := strings.Cut(rest, `"`)
	return id
}

// execLies break the connection; what the code did cannot be known.
func execLies(answers func(string) func(*liar, uint32, string), hangsUp func(*liar, uint32, string)) map[string]func(*liar, uint32, string) {
	then := func(frames func(ch uint32) [][]byte) func(*liar, uint32, string) {
		return func(g *liar, ch uint32, _ string) { begun()(g, ch, ""); g.send(frames(ch)...) }
	}
	one := func(f func(ch uint32) []byte) func(*liar, uint32, string) {
		return then(func(ch uint32) [][]byte { return [][]byte{f(ch)} })
	}
	ends := func(result string) func(*liar, uint32, string) {
		return func(g *liar, ch uint32, _ string) { begun()(g, ch, ""); g.end(ch, result) }
	}
	end := func(what string) func(*liar, uint32, string) { return ends(what) }
	calls := func(body func(exec string) string, more ...func(ch uint32) []byte) func(*liar, uint32, string) {
		return func(g *liar, ch uint32, b string) {
			begun()(g, ch, "")
			g.send(frameOf(fOpen, 0, 2, body(execOf(b))))
			for _, m := range more {
				g.send(m(2))
			}
		}
	}
	return map[string]func(*liar, uint32, string){
		"ended before it began": answers(honestEnd),
		"begun twice":           one(func(ch uint32) []byte { return repeated(frameOf(fEvent, 0, ch, `{}`), 2) }),
		"events without end":    one(func(ch uint32) []byte { return repeated(frameOf(fEvent, 0, ch, `{}`), 100_000) }),
		"output with a gap":     one(func(ch uint32) []byte { return frameOf(fData, sOut, ch, from(5, "x")) }),
		"output that goes back": then(func(ch uint32) [][]byte {
			return [][]byte{frameOf(fData, sOut, ch, from(0, "xx")), frameOf(fData, sOut, ch, from(1, "x"))}
		}),
		"output at an offset beyond all": one(func(ch uint32) []byte { return frameOf(fData, sOut, ch, from(1<<63, "x")) }),
		"output without credit": one(func(ch uint32) []byte {
			var b []byte
			for i := range 64 {
				b = append(b, frameOf(fData, sOut, ch, from(uint64(i)<<15, strings.Repeat("x", 32<<10)))...)
			}
			return append(b, frameOf(fData, sOut, ch, from(1, "x"))...)
		}),
		"output of a stream that is none": one(func(ch uint32) []byte { return frameOf(fData, 9, ch, from(0, "x")) }),
		"output on stdin":                 one(func(ch uint32) []byte { return frameOf(fData, 3, ch, from(0, "x")) }),
		"output of an exec that is none":  one(func(uint32) []byte { return frameOf(fData, sOut, 4001, from(0, "x")) }),
		"output of the connection":        one(func(uint32) []byte { return frameOf(fData, sOut, 0, from(0, "x")) }),
		"empty output":                    one(func(ch uint32) []byte { return frameOf(fData, sOut, ch, from(0, "")) }),
		"an end of output that is not":    one(func(ch uint32) []byte { return frameOf(fEnd, sOut, ch, from(7, "")) }),
		"an end of output twice":          one(func(ch uint32) []byte { return repeated(frameOf(fEnd, sOut, ch, from(0, "")), 2) }),
		"output after its end": then(func(ch uint32) [][]byte {
			return [][]byte{frameOf(fEnd, sOut, ch, from(0, "")), frameOf(fData, sOut, ch, from(0, "x"))}
		}),
		"a length beyond all":             one(func(ch uint32) []byte { return []byte("\xff\xff\xff\xff\x03\x00\x00\x00\x00\x00\x00\x03") }),
		"a frame of no type":              one(func(ch uint32) []byte { return frameOf(77, 0, ch, "") }),
		"a ping":                          one(func(uint32) []byte { return frameOf(fPing, 0, 0, "12345678") }),
		"a pong that nobody asked for":    one(func(uint32) []byte { return frameOf(fPong, 0, 0, "12345678") }),
		"another hello":                   one(func(uint32) []byte { return frameOf(fHello, 0, 0, helloOf(1, "x")) }),
		"a cancel of the host's own":      one(func(ch uint32) []byte { return frameOf(fCancel, 0, ch, "") }),
		"a reply to what was never asked": one(func(uint32) []byte { return frameOf(fReply, 0, 9001, "{}") }),
		"a channel of the host's":         one(func(uint32) []byte { return frameOf(fOpen, 0, 4003, call("x", "save", "{}", -1)) }),
		"an operation that is none":       one(func(uint32) []byte { return frameOf(fOpen, 0, 2, `{"op":"exec","body":{}}`) }),
		"an open that is no JSON":         one(func(uint32) []byte { return frameOf(fOpen, 0, 2, "\x00") }),
		"a call with a bad name":          calls(func(e string) string { return call(e, "SAVE;", `{}`, -1) }),
		"a call of a size that cannot be": calls(func(e string) string { return call(e, "save", `{"path":"YQ=="}`, -7) }),
		"a call of a size beyond all":     calls(func(e string) string { return call(e, "save", `{"path":"YQ=="}`, 1<<50) }),
		"a save longer than announced":    calls(func(e string) string { return call(e, "save", `{"path":"YQ=="}`, 1) }, func(ch uint32) []byte { return frameOf(fData, sContent, ch, from(0, "xyz")) }),
		"a save shorter than announced": calls(func(e string) string { return call(e, "save", `{"path":"YQ=="}`, 9) }, func(ch uint32) []byte {
			return append(frameOf(fData, sContent, ch, from(0, "xyz")), frameOf(fEnd, sContent, ch, from(3, ""))...)
		}),
		"calls without end": func(g *liar, ch uint32, b string) {
			begun()(g, ch, "")
			for i := range uint32(200) {
				g.send(frameOf(fOpen, 0, 2+2*i, call(execOf(b), "save", `{"path":"YQ=="}`, 1000)))
			}
		},
		"and the end":                          hangsUp,
		"begun, and the end":                   func(g *liar, ch uint32, _ string) { begun()(g, ch, ""); g.conn.Close() },
		"ended with bytes that never came":     end(`{"exitCode":0,"limitsHit":[],"total":{"stdout":9,"stderr":0},"forwarded":{"stdout":9,"stderr":0}}`),
		"ended with fewer bytes than came":     end(`{"exitCode":0,"limitsHit":[],"total":{"stdout":-1,"stderr":0},"forwarded":{"stdout":0,"stderr":0}}`),
		"ended with exit code 999":             end(`{"exitCode":999,"limitsHit":[],"total":{},"forwarded":{}}`),
		"ended with a code and a signal":       end(`{"exitCode":1,"signal":"SIGKILL","limitsHit":[],"total":{},"forwarded":{}}`),
		"ended with a signal that is none":     end(`{"exitCode":-1,"signal":"\u001b]0;x","limitsHit":[],"total":{},"forwarded":{}}`),
		"ended for the host's reason":          end(`{"exitCode":1,"reason":"session_closed","limitsHit":[],"total":{},"forwarded":{}}`),
		"ended at a limit that is none":        end(`{"exitCode":1,"limitsHit":["money"],"total":{},"forwarded":{}}`),
		"ended at a hundred limits":            end(`{"exitCode":1,"limitsHit":["memory"` + strings.Repeat(`,"memory"`, 99) + `],"total":{},"forwarded":{}}`),
		"ended before time began":              end(`{"exitCode":0,"limitsHit":[],"total":{},"forwarded":{},"durationNs":-1}`),
		"ended with less than no memory":       end(`{"exitCode":0,"limitsHit":[],"total":{},"forwarded":{},"peakMemoryBytes":-1}`),
		"ended with an end that is no JSON":    end(`nonsense`),
		"ended with an end of the wrong shape": end(`{"exitCode":"zero"}`),
	}
}

// addScans adds what can be said of a workspace.
func addScans(add func(string, lie, map[string]func(*liar, uint32, string)), answers func(string) func(*liar, uint32, string), hangsUp func(*liar, uint32, string)) {
	says := func(records string) func(*liar, uint32, string) {
		return func(g *liar, ch uint32, _ string) { g.scanned(ch, records, done) }
	}
	dir := func(path string) string {
		return record(fmt.Sprintf(`{"path":%q,"change":"added","type":"dir","mode":493}`, path), "")
	}
	gone := func(path, typ string) string {
		return record(fmt.Sprintf(`{"path":%q,"change":"removed","type":%q}`, path, typ), "")
	}
	const a, ab, dotdot, nul, abs, empty, kept = "YQ==", "YS9i", "Li4vZXZpbA==", "YQBi", "L2V0Yy94", "", "a2VwdC50eHQ="
	add("scan", lie{at: "scan", want: ended, within: 20 * time.Second}, map[string]func(*liar, uint32, string){
		"of a path out of it":            says(file(dotdot, 0, "")),
		"of a name with a NUL":           says(file(nul, 0, "")),
		"of an absolute path":            says(file(abs, 0, "")),
		"of no path":                     says(file(empty, 0, "")),
		"of a path that is no base64":    says(file("%%%", 0, "")),
		"of one file twice":              says(file(a, 0, "") + file(a, 0, "")),
		"of a file in a file":            says(file(a, 0, "") + file(ab, 0, "")),
		"of a file in a removed place":   says(dir(a) + gone(a, "dir") + file(ab, 0, "")),
		"that removes one file twice":    says(gone(kept, "file") + gone(kept, "file")),
		"of a file cut short":            says(file(a, 1000, "xyz")),
		"of a file beyond the workspace": says(file(a, 1<<40, "xyz")),
		"of a file of less than nothing": says(file(a, -1, "")),
		"of bytes nobody has":            says(record(fmt.Sprintf(`{"path":%q,"change":"modified","type":"file","mode":420,"size":5,"sha256":%s}`, a, sum), "")),
		"of a mode beyond all":           says(record(fmt.Sprintf(`{"path":%q,"change":"added","type":"dir","mode":4294967295}`, a), "")),
		"of a thing of no type":          says(record(fmt.Sprintf(`{"path":%q,"change":"added","type":"device"}`, a), "")),
		"of a link to nothing":           says(record(fmt.Sprintf(`{"path":%q,"change":"added","type":"symlink"}`, a), "")),
		"of a directory with content":    says(record(fmt.Sprintf(`{"path":%q,"change":"added","type":"dir","size":4,"content":true}`, a), "xxxx")),
		"of an entry of a huge length":   says("\xff\xff\xff\xff"),
		"of an entry that is no JSON":    says("\x00\x00\x00\x02{]"),
		"of half an entry":               says("\x00\x00\x00\x40{"),
		"of more entries than fit":       says(manyDirs(20_000)),
		"cut off":                        func(g *liar, ch uint32, _ string) { g.send(frameOf(fReply, 0, ch, done)) },
		"with a token that is none":      func(g *liar, ch uint32, _ string) { g.scanned(ch, "", `{"token":"a/b","skipped":[]}`) },
		"with counts that cannot be":     func(g *liar, ch uint32, _ string) { g.scanned(ch, "", `{"token":"t","entries":-5,"skipped":[]}`) },
		"that skips a path out of it": func(g *liar, ch uint32, _ string) {
			g.scanned(ch, "", `{"token":"t","skipped":[{"path":"Li4=","why":"x"}],"skippedTotal":1}`)
		},
		"refused":            func(g *liar, ch uint32, _ string) { g.send(frameOf(fFail, 0, ch, `{"code":"internal","detail":"x"}`)) },
		"and the end":        hangsUp,
		"answered with junk": answers("[]"),
	})
	add("scan", lie{at: "scan", want: ended, believed: true, within: 20 * time.Second}, map[string]func(*liar, uint32, string){
		"of a file in what is not there": says(file(ab, 0, "")),
		"that removes what is not there": says(gone(a, "file")),
		"of a file with other content":   says(file(a, 3, "xyz")),
	})
	// A file that the scan named, and that is asked for again.
	read := func(content string, entry string) func(*liar, uint32, string) {
		return func(g *liar, ch uint32, _ string) {
			g.send(frameOf(fData, sContent, ch, from(0, content)), frameOf(fEnd, sContent, ch, from(uint64(len(content)), "")), frameOf(fReply, 0, ch, entry))
		}
	}
	add("read", lie{at: "read", keep: []string{"kept.txt"}, want: ended, within: 20 * time.Second}, map[string]func(*liar, uint32, string){
		"of other bytes":   read("KEPT\n", fmt.Sprintf(`{"path":%q,"type":"file","mode":420,"size":5,"sha256":%s}`, kept, sum)),
		"of another file":  read("kept\n", fmt.Sprintf(`{"path":%q,"type":"file","mode":420,"size":5,"sha256":%s}`, a, sum)),
		"answered by junk": read("kept\n", `7`),
		"and the end":      hangsUp,
	})
	add("read", lie{at: "read", keep: []string{"kept.txt"}, want: ended, believed: true, within: 20 * time.Second}, map[string]func(*liar, uint32, string){
		"of more bytes": read("kept\nmore", fmt.Sprintf(`{"path":%q,"type":"file","mode":420,"size":9,"sha256":%s}`, kept, sum)),
	})
	add("write", lie{at: "write", upload: true, want: failed, within: 20 * time.Second}, map[string]func(*liar, uint32, string){
		"refused": func(g *liar, ch uint32, _ string) {
			g.send(frameOf(fFail, 0, ch, `{"code":"workspace_full","detail":"x"}`))
		},
		"and the end":        hangsUp,
		"answered with junk": answers("[]"),
	})
}

func manyDirs(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(record(fmt.Sprintf(`{"path":%q,"change":"added","type":"dir","mode":493}`, fmt.Sprintf("%08d", i)), ""))
	}
	return b.String()
}
