package telemetry

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Metrics counts for the server as a whole, in a registry of its own, and
// serves itself in the Prometheus text format. No label names a project,
// tenant, user, session or key, and every label has few values.
type Metrics struct {
	http.Handler

	requests  *prometheus.CounterVec
	latency   *prometheus.HistogramVec
	bytesIn   prometheus.Counter
	bytesOut  prometheus.Counter
	streams   prometheus.Gauge
	runs      *prometheus.CounterVec
	queued    prometheus.Histogram
	ran       *prometheus.HistogramVec
	committed prometheus.Histogram
	starts    *prometheus.CounterVec
	startTime *prometheus.HistogramVec
	claims    *prometheus.CounterVec
	warm      prometheus.Gauge
	vessels   prometheus.Gauge
	sandboxes prometheus.Gauge
	running   prometheus.Gauge
}

// NewMetrics makes the metrics.
func NewMetrics() *Metrics {
	const ns = "workbench"
	fast := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	long := []float64{.005, .025, .1, .5, 1, 5, 15, 30, 60, 180, 600, 3600}
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: "http_requests_total",
			Help: "Requests answered, by route pattern, method and status."}, []string{"route", "method", "status"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: ns, Name: "http_request_seconds",
			Help: "From the first byte of a request to the end of its answer. Long polls and streams last as long as they are held.", Buckets: fast}, []string{"route"}),
		bytesIn:  prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Name: "http_received_bytes_total", Help: "Bytes of request bodies read."}),
		bytesOut: prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Name: "http_sent_bytes_total", Help: "Bytes of answers written."}),
		streams:  prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Name: "http_held_requests", Help: "Long polls and event streams open now."}),
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: "runs_total",
			Help: "Runs that ended, by language and status."}, []string{"language", "status"}),
		queued: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Name: "run_queue_seconds",
			Help: "From admission to dispatch.", Buckets: fast}),
		ran: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: ns, Name: "run_seconds",
			Help: "Wall time of user code, by language.", Buckets: long}, []string{"language"}),
		committed: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Name: "commit_seconds",
			Help: "From the end of user code until its sandbox had said what changed and that was stored; the settlement comes after.", Buckets: fast}),
		starts: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: "sandbox_starts_total",
			Help: "Sandboxes bound to a session, by outcome: claimed from the warm ones, started, restored with their memory, failed."}, []string{"outcome"}),
		startTime: prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: ns, Name: "sandbox_start_seconds",
			Help: "How long a session's sandbox took until its files were in it, by outcome.", Buckets: fast}, []string{"outcome"}),
		claims: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: "warm_claims_total",
			Help: "Sessions that needed a sandbox of a kind kept warm, by whether one was ready (hit, miss)."}, []string{"outcome"}),
		warm:      prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Name: "warm_sandboxes", Help: "Sandboxes ready for new sessions now."}),
		vessels:   prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Name: "vessels", Help: "Sandboxes begun ahead for suspended sessions that return with their memory."}),
		sandboxes: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Name: "sandboxes", Help: "Sandboxes alive now."}),
		running:   prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Name: "runs_running", Help: "Runs that execute now."}),
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m.requests, m.latency, m.bytesIn, m.bytesOut, m.streams, m.runs, m.queued, m.ran, m.committed, m.starts, m.startTime,
		m.claims, m.warm, m.vessels, m.sandboxes, m.running, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.Handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return m
}

// Request counts one answered request. route is a pattern, never a path.
func (m *Metrics) Request(route, method string, status int, took time.Duration, in, out int64) {
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	m.latency.WithLabelValues(route).Observe(took.Seconds())
	m.bytesIn.Add(float64(in))
	m.bytesOut.Add(float64(out))
}

// Streams counts long polls and event streams as they open and end.
func (m *Metrics) Streams(delta int) { m.streams.Add(float64(delta)) }

// RunEnded counts a run that reached a terminal status.
func (m *Metrics) RunEnded(language, status string, queued, ran time.Duration) {
	m.runs.WithLabelValues(language, status).Inc()
	m.queued.Observe(queued.Seconds())
	m.ran.WithLabelValues(language).Observe(ran.Seconds())
}

// Committed counts a workspace that was committed after a run.
func (m *Metrics) Committed(took time.Duration) { m.committed.Observe(took.Seconds()) }

// SandboxStarted counts a sandbox that a session got, or did not; outcome is
// claimed, started or failed.
func (m *Metrics) SandboxStarted(outcome string, took time.Duration) {
	m.starts.WithLabelValues(outcome).Inc()
	m.startTime.WithLabelValues(outcome).Observe(took.Seconds())
}

// Claimed counts a session that needed a sandbox of a kind that is kept warm.
func (m *Metrics) Claimed(hit bool) {
	outcome := "miss"
	if hit {
		outcome = "hit"
	}
	m.claims.WithLabelValues(outcome).Inc()
}

// Warm sets how many sandboxes are ready for new sessions, and how many vessels
// for those that return with their memory.
func (m *Metrics) Warm(sandboxes, vessels int) {
	m.warm.Set(float64(sandboxes))
	m.vessels.Set(float64(vessels))
}

// Live sets how many sandboxes are alive and how many runs execute.
func (m *Metrics) Live(sandboxes, running int) {
	m.sandboxes.Set(float64(sandboxes))
	m.running.Set(float64(running))
}
