package image

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
)

// The archive to build from is the one this machine's own apt uses, through the
// same proxy. apt itself says which: its configuration has many forms.

// debianKeys is where Debian and Ubuntu install the keys of Debian's archive.
const debianKeys = "/usr/share/keyrings/debian-archive-keyring.gpg"

// debianSuites are code names by which a repository is known to be Debian's.
var debianSuites = []string{
	"bullseye", "bookworm", "trixie", "forky", "duke",
	"oldstable", "stable", "testing", "unstable", "sid",
}

// aptSources are the archives that this machine's apt uses, as far as they can
// serve another suite.
type aptSources struct {
	Archive  string // URI of the main archive, "" if none was found
	Security string // URI of the security archive, "" if none was found
}

var indexPattern = regexp.MustCompile(`^'([^']+)/dists/([^/']+)/InRelease'`)

// ParseAptURIs reads the output of apt-get update --print-uris, which names
// every configured index. A repository is taken for Debian's main archive if
// its address ends in /debian and one of Debian's suites comes from it; one
// that also serves that suite's -updates is preferred, for only the archive
// does.
func ParseAptURIs(output []byte) (archive, security string) {
	var plain, withUpdates []string
	lines := bufio.NewScanner(bytes.NewReader(output))
	for lines.Scan() {
		m := indexPattern.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		base, suite := m[1], m[2]
		u, err := url.Parse(base)
		if err != nil {
			continue
		}
		code, kind, _ := strings.Cut(suite, "-")
		if !slices.Contains(debianSuites, code) {
			continue
		}
		last := path.Base(u.Path)
		switch {
		case kind == "security" && strings.HasPrefix(last, "debian") && security == "":
			security = base
		case kind == "" && last == "debian":
			plain = append(plain, base)
		case kind == "updates" && last == "debian":
			withUpdates = append(withUpdates, base)
		}
	}
	for _, base := range plain {
		if slices.Contains(withUpdates, base) {
			return base, security
		}
	}
	if len(plain) > 0 {
		archive = plain[0]
	}
	return archive, security
}

// findAptSources asks this machine's apt. Without one, or if it uses another
// distribution, both are empty, and mmdebstrap's own default serves.
func findAptSources(ctx context.Context) aptSources {
	out, err := exec.CommandContext(ctx, "apt-get", "update", "--print-uris").Output()
	if err != nil {
		return aptSources{}
	}
	archive, security := ParseAptURIs(out)
	return aptSources{Archive: archive, Security: security}
}

// list is the sources.list for a suite, "" if no archive is known.
func (a aptSources) list(r Recipe) string {
	if a.Archive == "" {
		return ""
	}
	options := ""
	if _, err := os.Stat(debianKeys); err == nil {
		options = "[signed-by=" + debianKeys + "] "
	}
	components := strings.Join(r.Components, " ")
	var b strings.Builder
	fmt.Fprintf(&b, "deb %s%s %s %s\n", options, a.Archive, r.Suite, components)
	if a.Security != "" {
		fmt.Fprintf(&b, "deb %s%s %s-updates %s\n", options, a.Archive, r.Suite, components)
		fmt.Fprintf(&b, "deb %s%s %s-security %s\n", options, a.Security, r.Suite, components)
	}
	return b.String()
}

// inheritedOptions are the settings of this machine's apt that decide whether
// it reaches its archive. apt reads no other of its settings in a build root.
var inheritedOptions = regexp.MustCompile(
	`^Acquire::(((http|https)::(Proxy|Proxy::.*|ProxyAutoDetect|Proxy-Auto-Detect|CaInfo|Timeout|AllowRedirect|User-Agent))|Retries|ForceIPv4|ForceIPv6) "`)

// ParseAptOptions picks the settings to inherit from the output of apt-config
// dump, in apt's configuration syntax.
func ParseAptOptions(dump []byte) string {
	var b strings.Builder
	lines := bufio.NewScanner(bytes.NewReader(dump))
	for lines.Scan() {
		if inheritedOptions.MatchString(lines.Text()) {
			b.WriteString(lines.Text())
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func findAptOptions(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "apt-config", "dump").Output()
	if err != nil {
		return ""
	}
	return ParseAptOptions(out)
}
