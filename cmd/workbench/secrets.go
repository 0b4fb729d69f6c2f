package main

import (
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/workbenchdev/workbench"
)

// secretFlags say where the credentials of a connection are. The secrets among
// them are in no flag.
type secretFlags struct {
	username, header    string
	tokenURL, clientID  string
	scopes              []string
	bearer, password    secret
	value, clientSecret secret
	refresh             secret
}

// secret is where one secret is read from.
type secret struct {
	name      string // of its two flags
	file, env string
}

func (s *secret) flags(fl *pflag.FlagSet, name, what string) {
	s.name = name
	fl.StringVar(&s.file, name+"-file", "", "file with "+what+", or - for standard input")
	fl.StringVar(&s.env, name+"-env", "", "environment variable with "+what)
}

func (f *secretFlags) flags(fl *pflag.FlagSet) {
	f.bearer.flags(fl, "bearer", "the bearer token")
	fl.StringVar(&f.username, "username", "", "the user of basic authentication")
	f.password.flags(fl, "password", "that user's password")
	fl.StringVar(&f.header, "header", "", "name of the header that carries the secret, such as X-Api-Key")
	f.value.flags(fl, "value", "the header's value")
	fl.StringVar(&f.tokenURL, "token-url", "", "OAuth 2: the token endpoint")
	fl.StringVar(&f.clientID, "client-id", "", "OAuth 2: the client's id")
	f.clientSecret.flags(fl, "client-secret", "the client's secret")
	f.refresh.flags(fl, "refresh-token", "the refresh token")
	fl.StringArrayVar(&f.scopes, "oauth-scope", nil, "OAuth 2: scope to ask for; may be repeated")
}

// credentialFlags are the flags that each kind of credentials takes. A refresh
// token takes those of the client, too.
var credentialFlags = []struct {
	auth  workbench.AuthKind
	flags []string
}{
	{workbench.AuthBearer, []string{"bearer-file", "bearer-env"}},
	{workbench.AuthBasic, []string{"username", "password-file", "password-env"}},
	{workbench.AuthHeader, []string{"header", "value-file", "value-env"}},
	{workbench.AuthOAuthClient, []string{"token-url", "client-id", "client-secret-file", "client-secret-env", "refresh-token-file", "refresh-token-env", "oauth-scope"}},
}

// secrets reads the credentials that the flags of c speak of.
func (a *app) secrets(c *cobra.Command, f secretFlags) (workbench.AuthKind, workbench.Credentials, error) {
	var auth workbench.AuthKind
	for _, kind := range credentialFlags {
		for _, name := range kind.flags {
			if !c.Flags().Changed(name) {
				continue
			}
			if auth != "" && auth != kind.auth {
				return "", workbench.Credentials{}, usageError(c, "a connection has credentials of one kind, and --%s is of another", name)
			}
			auth = kind.auth
		}
	}
	if auth == "" {
		return "", workbench.Credentials{}, usageError(c, "give credentials, such as a token with --bearer-file or --bearer-env")
	}
	if auth == workbench.AuthOAuthClient && f.refresh.given() {
		auth = workbench.AuthOAuthRefresh
	}
	creds := workbench.Credentials{Username: f.username, Header: f.header, TokenURL: f.tokenURL, ClientID: f.clientID, Scopes: f.scopes}
	onStdin := ""
	for _, s := range []struct {
		secret
		to *string
	}{{f.bearer, &creds.Token}, {f.password, &creds.Password}, {f.value, &creds.Value}, {f.clientSecret, &creds.ClientSecret}, {f.refresh, &creds.RefreshToken}} {
		if s.file == "-" {
			if onStdin != "" {
				return "", workbench.Credentials{}, workbench.E(workbench.CodeInvalidRequest, "--%s-file and --%s-file cannot both be standard input", onStdin, s.name)
			}
			onStdin = s.name
		}
		var err error
		if *s.to, err = a.secret(s.secret); err != nil {
			return "", workbench.Credentials{}, err
		}
	}
	return auth, creds, nil
}

func (s secret) given() bool { return s.file != "" || s.env != "" }

// maxSecret bounds a secret, in bytes: the most that a server takes.
const maxSecret = 16 << 10

// secret reads one secret; "" for one that is not given.
func (a *app) secret(s secret) (string, error) {
	switch {
	case s.file != "" && s.env != "":
		return "", workbench.E(workbench.CodeInvalidRequest, "--%s-file and --%s-env are the same secret", s.name, s.name).WithHint("give one of them")
	case s.env != "":
		v := strings.TrimRight(os.Getenv(s.env), "\r\n")
		if v == "" {
			return "", workbench.E(workbench.CodeInvalidRequest, "--%s-env %s: no variable of that name is set, or it is empty", s.name, s.env).WithHint("name a variable that is set and exported")
		}
		return v, nil
	case s.file == "":
		return "", nil
	}
	from := a.in
	if s.file != "-" {
		f, err := os.Open(s.file)
		if err != nil {
			return "", workbench.E(workbench.CodeInvalidRequest, "--%s-file cannot be read: %s", s.name, s.file).WithHint("check its name and its permissions").Caused(err)
		}
		defer f.Close()
		from = f
	} else if term.IsTerminal(int(from.Fd())) {
		return "", workbench.E(workbench.CodeInvalidRequest, "--%s-file -: standard input is a terminal, which would show the secret", s.name).
			WithHint("pass it from a file, such as < secret, or from a command, such as pass show name |")
	}
	raw, err := io.ReadAll(io.LimitReader(from, maxSecret+1))
	v := strings.TrimRight(string(raw), "\r\n")
	switch {
	case err != nil:
		return "", workbench.E(workbench.CodeInvalidRequest, "--%s-file cannot be read: %s", s.name, s.file).Caused(err)
	case len(raw) > maxSecret:
		return "", workbench.E(workbench.CodeInvalidRequest, "--%s-file is too large for a secret: at most %s", s.name, size(maxSecret)).WithHint("it holds the secret and nothing else")
	case v == "":
		return "", workbench.E(workbench.CodeInvalidRequest, "--%s-file is empty", s.name).WithHint("it holds the secret and nothing else")
	}
	return v, nil
}
