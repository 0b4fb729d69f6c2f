// Command standin takes the guest's place in tests of the driver alone. It
// answers one line for each line of its input and ends with it.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	fmt.Fprintln(os.Stderr, "standin: up")
	fmt.Printf("hello %s\n", strings.Join(os.Args[1:], " "))
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		verb, arg, _ := strings.Cut(in.Text(), " ")
		fmt.Printf("%s\n", answer(verb, arg))
	}
	if stays {
		time.Sleep(time.Hour)
	}
}

// stays: the end of input does not end the program.
var stays bool

var held [][]byte

func answer(verb, arg string) string {
	switch verb {
	case "ping":
		return "pong"
	case "cat":
		raw, err := os.ReadFile(arg)
		if err != nil {
			return err.Error()
		}
		return strconv.Quote(string(raw))
	case "ls":
		entries, err := os.ReadDir(arg)
		if err != nil {
			return err.Error()
		}
		var names []string
		for _, e := range entries {
			link, _ := os.Readlink(arg + "/" + e.Name())
			names = append(names, e.Name()+"->"+link)
		}
		return strings.Join(names, " ")
	case "env":
		return strings.Join(os.Environ(), " ")
	case "write":
		if err := os.WriteFile(arg, []byte("x"), 0o600); err != nil {
			return err.Error()
		}
		return "written"
	case "eat": // MiB
		n, _ := strconv.Atoi(arg)
		b := make([]byte, n<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		held = append(held, b)
		return "eaten"
	case "spin": // ms, on 16 threads
		ms, _ := strconv.Atoi(arg)
		end := time.Now().Add(time.Duration(ms) * time.Millisecond)
		done := make(chan bool)
		for range 16 {
			go func() {
				for time.Now().Before(end) {
				}
				done <- true
			}()
		}
		for range 16 {
			<-done
		}
		return "spun"
	case "stay":
		stays = true
		return "staying"
	case "noise": // lines on stderr
		n, _ := strconv.Atoi(arg)
		for i := range n {
			fmt.Fprintf(os.Stderr, "noise %d\n", i)
		}
		return "made"
	case "exit":
		code, _ := strconv.Atoi(arg)
		os.Exit(code)
	}
	return "what"
}
