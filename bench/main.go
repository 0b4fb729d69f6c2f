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
	"syscall"
	"time"
)

// options are the command line's.
type options struct {
	samples, slowSamples int
	images               string // folder of the image store
	image                string // name of the image everything runs in
	bin                  string // folder with guest, runsc and runc
	out                  string // folder of results; "" writes none
	only                 string // parts of names and languages; "" measures everything
	profile              string // CPU profile of this process, the server's and the clients'
}

func parse() options {
	var o options
	flag.IntVar(&o.samples, "samples", 200, "samples of each contender")
	flag.IntVar(&o.slowSamples, "slow-samples", 30, "samples of a peer slower than 100 ms")
	flag.StringVar(&o.images, "images", os.Getenv("WORKBENCH_IMAGES"), "folder of images (default: /var/lib/workbench/images)")
	flag.StringVar(&o.image, "image", "minimal", "image to run in")
	flag.StringVar(&o.bin, "bin", "bin", "folder with guest, runsc and runc")
	flag.StringVar(&o.out, "out", filepath.Join("bench", "results"), "folder to write results to; empty writes none")
	flag.StringVar(&o.only, "only", "", "measure only contenders whose name and language hold one of these, separated by commas; writes no results")
	flag.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile of server and clients to this file")
	flag.Parse()
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

	world, err := openWorld(ctx, o, filepath.Join(dir, "server"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, world.close()) }()
	peers, err := openPeers(ctx, o, world.image, filepath.Join(dir, "peers"))
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
	contenders := append(world.contenders(), peers.contenders()...)
	if res.Rows, err = measure(ctx, o, contenders); err != nil {
		return err
	}
	if o.only == "" {
		res.Rows = append(res.Rows, peers.unmeasured...)
		if err := beyondHello(ctx, world, &res); err != nil {
			return err
		}
	}
	res.Split = world.split()
	res.Host.LoadAfter = loadAverage()
	res.judge()
	fmt.Print(res.text())
	if o.out == "" || o.only != "" {
		return nil
	}
	return res.write(o.out)
}

// beyondHello measures what is not a race against peers.
func beyondHello(ctx context.Context, w *world, res *result) (err error) {
	progress("sessions, memory, files")
	if res.Sessions, err = w.sessions(ctx); err != nil {
		return err
	}
	if res.Idle, err = w.idleMemory(ctx); err != nil {
		return err
	}
	res.Files, err = w.transfers(ctx)
	return err
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
