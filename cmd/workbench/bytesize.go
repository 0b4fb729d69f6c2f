package main

import (
	"errors"

	"github.com/spf13/pflag"
)

// byteSize is a flag that takes a number of bytes, with KiB, MiB or GiB behind
// it or not.
type byteSize struct{ n *int64 }

var _ pflag.Value = byteSize{}

func (b byteSize) Type() string { return "bytes" }

func (b byteSize) String() string {
	if b.n == nil {
		return ""
	}
	return withUnit(*b.n)
}

func (b byteSize) Set(s string) error {
	n, err := parseBytes(s)
	if err != nil {
		return errors.New("it takes a whole number of bytes, or one with KiB, MiB or GiB")
	}
	*b.n = n
	return nil
}

// bytesVar declares a flag of bytes with its default.
func bytesVar(f *pflag.FlagSet, to *int64, name string, value int64, usage string) {
	*to = value
	f.Var(byteSize{to}, name, usage)
}

// unbounded makes 0, for which a flag says that there is no bound, what the
// server's options have for that.
func unbounded(n int64) int64 {
	if n == 0 {
		return -1
	}
	return n
}
