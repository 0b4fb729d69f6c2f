// Command bench measures Workbench against other ways to run the same few
// lines of code on this host, all in one run.
//
// Its one job is numbers that can be compared: every contender runs the same
// hello, and they take turns, in another order each round, so that whatever
// else the machine does meets all of them alike. It judges the project's goals
// by ratios of medians within the run, prints a table and writes it to
// bench/results/. What cannot be measured on a host is said, never left out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the command line's.
type options struct {
	settle                func(context.Context) error // what every contender waits for behind a sample
	samples, slowSamples  int
	tailSamples           int // of what is judged by its p99; 0: as many as of others
	suspended             int // sessions
	storedFew, storedMany int // runs
	loadRounds            int
	images                string // folder of the image store
	image                 string // name of the image everything runs in
	bin                   string // folder with guest, runsc and runc
	out                   string // folder of results; "" writes none
	only                  string // parts of names and languages; "" measures everything
	skip                  string // names of parts that are not measured
	profile               string // CPU profile of this process, the server's and the clients'
}

func parse() options {
	o := options{settle: awaitQuiet}
	full := flag.Bool("full", os.Getenv("WORKBENCH_BENCH_FULL") != "", "1,000 samples of what is judged by its p99, 100 of what is slow; about an hour (also: WORKBENCH_BENCH_FULL=1)")
	flag.IntVar(&o.samples, "samples", 200, "samples of each contender")
	flag.IntVar(&o.slowSamples, "slow-samples", 30, "samples of a peer slower than 100 ms, and of what takes as long to prepare")
	flag.IntVar(&o.suspended, "suspended", 40, "suspended sessions whose memory is measured")
	flag.IntVar(&o.storedFew, "stored-few", 1000, "stored runs of the one server whose cells are counted")
	flag.IntVar(&o.storedMany, "stored-many", 100_000, "stored runs of the other")
	flag.IntVar(&o.loadRounds, "load-rounds", 5, "turns of each of them, of 3 s")
	flag.StringVar(&o.images, "images", os.Getenv("WORKBENCH_IMAGES"), "folder of images (default: /var/lib/workbench/images)")
	flag.StringVar(&o.image, "image", "minimal", "image to run in")
	flag.StringVar(&o.bin, "bin", "bin", "folder with guest, runsc and runc")
	flag.StringVar(&o.out, "out", filepath.Join("bench", "results"), "folder to write results to; empty writes none")
	flag.StringVar(&o.only, "only", "", "measure only parts that are one of these, and contenders whose name and language hold one, separated by commas; writes no results")
	flag.StringVar(&o.skip, "skip", "", "parts to leave out, separated by commas: policies, packages, commits, suspension, cells, sessions, memory, files, burst; writes no results")
	flag.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of server and clients to this file")
	flag.Parse()
	if *full {
		o.tailSamples, o.slowSamples, o.suspended, o.loadRounds = 1000, 100, 200, 10
	}
	if o.images == "" {
		o.images = "/var/lib/workbench/images"
	}
	return o
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, parse())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run measures, prints and writes. An error means that there is no result.
func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "workbench-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// Sandboxes reach what is below it under unprivileged ids.
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	res := result{Schema: schema, Date: time.Now().UTC().Truncate(time.Second)}
	res.Host = describeHost(dir)

	world, err := openWorld(ctx, o, filepath.Join(dir, "server"), setting{warm: warmSandboxes, suspendAfter: -1, watched: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, world.close()) }()
	if err := world.openLives(ctx); err != nil {
		return err
	}
	peers, err := openPeers(ctx, o, world.server.Images(), world.image, filepath.Join(dir, "peers"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peers.close()) }()
	res.Versions = versions(ctx, world, peers)

	stopProfile, err := profile(o.profile)
	if err != nil {
		return err
	}
	defer stopProfile()
	tools, err := world.openTools(ctx)
	defer func() { err = errors.Join(err, tools.close()) }()
	if err != nil {
		return err
	}
	contenders := append(append(world.contenders(), tools.contenders()...), peers.contenders()...)
	if res.Rows, err = measure(ctx, o, contenders); err != nil {
		return err
	}
	if o.only == "" {
		res.Rows = append(res.Rows, peers.unmeasured...)
	}
	beyondHello(ctx, o, world, peers, dir, &res)
	for _, row := range res.Rows {
		if strings.HasPrefix(row.NotMeasured, failedRow) {
			res.Failed = append(res.Failed, row.Name+", "+row.Language+": "+row.NotMeasured)
		}
	}
	res.Split = world.split()
	res.Host.LoadAfter = loadAverage()
	res.judge()
	fmt.Print(res.text())
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if o.out != "" && o.only == "" && o.skip == "" {
		err = res.write(o.out)
	}
	return errors.Join(err, res.incomplete())
}

// incomplete is an error if a part has no result.
func (r *result) incomplete() error {
	if len(r.Failed) == 0 {
		return nil
	}
	return fmt.Errorf("%d parts have no result: %s", len(r.Failed), strings.Join(r.Failed, "; "))
}

// beyondHello measures what is not a race of hellos. A part that fails is
// noted, and the others go on.
func beyondHello(ctx context.Context, o options, w *world, p *peers, dir string, res *result) {
	part := func(name string, measure func() error) {
		unwanted := o.only != "" && !slices.Contains(strings.Split(o.only, ","), name)
		if unwanted || slices.Contains(strings.Split(o.skip, ","), name) || ctx.Err() != nil {
			return
		}
		progress("%s (load average %.1f)", name, loadAverage())
		if err := measure(); err != nil {
			progress("%s failed: %v", name, err)
			res.Failed = append(res.Failed, name+": "+err.Error())
		}
	}
	rows := func(more []row, err error) error {
		res.Rows = append(res.Rows, more...)
		return err
	}
	figures := func(more []figure, err error) error {
		res.Figures = append(res.Figures, more...)
		return err
	}
	part("policies", func() error {
		one, err := decisions()
		if err != nil {
			return err
		}
		return figures([]figure{one}, nil)
	})
	part("packages", func() error { return rows(packages(ctx, o, filepath.Join(dir, "packages"))) })
	part("commits", func() error { return rows(w.commits(ctx, o)) })
	part("suspension", func() error {
		more, measured, err := returns(ctx, o, p, filepath.Join(dir, "suspending"))
		return rows(more, figures(measured, err))
	})
	part("cells", func() error { return figures(cellsPerSecond(ctx, o, filepath.Join(dir, "loaded"))) })
	part("sessions", func() (err error) {
		res.Sessions, err = w.sessions(ctx)
		return err
	})
	part("memory", func() error {
		all, measured, err := w.idleMemory(ctx, o.image)
		res.Idle = all
		return figures(measured, err)
	})
	part("files", func() (err error) {
		res.Files, err = w.transfers(ctx)
		return err
	})
	part("burst", func() error { // last: it may cost idle sessions their sandboxes
		more, measured, err := w.burst(ctx, o)
		return rows(more, figures(measured, err))
	})
}

// profile starts a CPU profile, if one is wanted.
func profile(path string) (stop func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
