package api

import "strings"

// meant says what people call a thing that is named otherwise here; the first
// of the names that is allowed is suggested.
var meant = map[string][]string{
	"command": {"code"}, "cmd": {"command", "code"}, "script": {"code", "command"}, "source": {"code", "command"}, "program": {"code", "command"},
	"code": {"command"}, "lang": {"language"}, "runtime": {"language"}, "kernel": {"language"},
	"timeout": {"timeoutMs"}, "timeoutseconds": {"timeoutMs"}, "maxtime": {"timeoutMs"}, "ttl": {"ttlMs"}, "ttlseconds": {"ttlMs"}, "lifetime": {"ttlMs"},
	"wait": {"waitMs"}, "timeoutms": {"waitMs"},
	"files": {"artifactIds"}, "artifacts": {"artifactIds"}, "inputs": {"artifactIds"}, "fileids": {"artifactIds"},
	"arguments": {"args"}, "argv": {"args"}, "environment": {"env"}, "envs": {"env"}, "variables": {"env"}, "input": {"stdin"}, "outputs": {"keep"},
	"session": {"sessionId"}, "context": {"contextId"}, "tier": {"size"}, "template": {"image"}, "metadata": {"labels"}, "tags": {"labels"},
	"memory": {"memoryBytes"}, "memorymb": {"memoryBytes"}, "memorymib": {"memoryBytes"}, "disk": {"workspaceBytes"}, "pids": {"tasks"}, "processes": {"tasks"},
	"version": {"expectedCurrentVersion"}, "revision": {"expectedCurrentVersion"}, "filename": {"name"}, "destination": {"path"}, "role": {"scopes"}, "permissions": {"scopes"},
	"pagesize": {"limit"}, "perpage": {"limit"}, "page": {"cursor"}, "pagetoken": {"cursor"}, "from": {"since"}, "to": {"until"}, "seq": {"after"},
	"js": {"javascript"}, "node": {"javascript"}, "ts": {"typescript"}, "py": {"python"}, "python3": {"python"}, "sh": {"bash"}, "shell": {"bash"},
}

// Nearest is the allowed name that the given one was most likely meant to be,
// "" if none comes near: the same but for case and separators, a known other
// word, the beginning of one, or one or two slips away.
func Nearest(name string, allowed []string) string {
	if len(name) == 0 || len(name) > 64 {
		return ""
	}
	given := folded(name)
	for _, a := range allowed {
		if folded(a) == given {
			return a
		}
	}
	for _, word := range meant[given] {
		for _, a := range allowed {
			if a == word {
				return a
			}
		}
	}
	best, distance := "", len(given)/3+1 // a slip in three letters, and never a word of two
	for _, a := range allowed {
		f := folded(a)
		if len(given) >= 4 && (strings.HasPrefix(f, given) || strings.HasPrefix(given, f) && len(f) >= 4) {
			return a
		}
		if d := slips(given, f); d < distance && d <= 2 {
			best, distance = a, d
		}
	}
	return best
}

// nearestRoute is the pattern of the route that a path was most likely meant to
// be, "" if none comes near: as long, and with at most two slips in all.
func nearestRoute(path string, patterns []string) string {
	given := strings.Split(path, "/")
	best, distance := "", 3
	for _, pattern := range patterns {
		want := strings.Split(pattern, "/")
		if len(want) != len(given) {
			continue
		}
		total := 0
		for i, segment := range want {
			if strings.HasPrefix(segment, "{") || len(given[i]) > 64 {
				continue
			}
			total += slips(folded(given[i]), folded(segment))
		}
		if total < distance {
			best, distance = pattern, total
		}
	}
	return best
}

func folded(s string) string {
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s))
}

// slips is how many letters must be put in, left out, changed or swapped with
// their neighbour to make b of a (optimal string alignment).
func slips(a, b string) int {
	var before, last, now []int
	last = make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		now = make([]int, len(b)+1)
		now[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			now[j] = min(change, last[j]+1, now[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
		before, last = last, now
	}
	return last[len(b)]
}
