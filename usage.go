package workbench

import "time"

// UsageGroup is what usage is summed up by.
type UsageGroup string

// The groups.
const (
	UsageInAll    UsageGroup = ""
	UsageBySes    UsageGroup = "session"
	UsageByRun    UsageGroup = "run"
	UsageByKey    UsageGroup = "key"
	UsageByUser   UsageGroup = "user"
	UsageByTenant UsageGroup = "tenant"
	UsageBySize   UsageGroup = "size"
	UsageByDay    UsageGroup = "day" // in UTC
)

// UsageGroups lists every group but UsageInAll.
func UsageGroups() []UsageGroup {
	return []UsageGroup{UsageBySes, UsageByRun, UsageByKey, UsageByUser, UsageByTenant, UsageBySize, UsageByDay}
}

// UsageQuery asks for usage. What it is of counts when it is written down: active time
// at the end of code, and every MeterEvery while code goes on.
type UsageQuery struct {
	GroupBy      UsageGroup
	SessionID    string
	Since, Until time.Time // half-open; zero times are open
	Page
}

// MeterEvery is how long active time goes on at most before it is written down.
const MeterEvery = 30 * time.Second

// Usage is sums of the ledger. Each is exact: sums of groups are the whole's.
type Usage struct {
	Group         string `json:"group,omitempty"` // id, size or day; absent in a total
	DurationUs    int64  `json:"durationUs"`      // active sandbox time in microseconds, concurrent work in one sandbox once
	ChargeMicros  int64  `json:"chargeMicros"`    // millionths of the rate's currency
	InputTokens   int64  `json:"inputTokens"`
	OutputTokens  int64  `json:"outputTokens"`
	RetainedBytes int64  `json:"retainedBytes"` // of files that were retained
}

// UsageReport is a page of usage.
type UsageReport struct {
	GroupBy UsageGroup `json:"groupBy,omitempty"`
	Since   *time.Time `json:"since,omitempty"`
	Until   *time.Time `json:"until,omitempty"`
	Total   Usage      `json:"total"` // of all groups, those of other pages too
	Items   []Usage    `json:"items"` // by group
	Next    string     `json:"nextCursor,omitempty"`
}

// Charge is what active time costs at a rate, in millionths, and what is left below one
// (in millionths of a millionth), which is carried over: the charges of parts add up to
// that of the whole.
func Charge(durationUs, rateMicrosPerSecond, carried int64) (chargeMicros, left int64) {
	const second = 1_000_000
	seconds, rest := durationUs/second, durationUs%second // without overflow
	part := rest*rateMicrosPerSecond + carried
	return seconds*rateMicrosPerSecond + part/second, part % second
}
