package govern_test

import (
	"testing"

	"github.com/workbenchdev/workbench"
	"github.com/workbenchdev/workbench/internal/govern"
)

func TestSecretOfAWebhook(t *testing.T) {
	for _, tc := range []struct{ given, want string }{
		{"whsec_c2VjcmV0", "secret"}, // as Standard Webhooks writes it
		{"a plain one", "a plain one"},
		{"", ""},
	} {
		h, err := govern.NewWebhook("https://example.com/hook", []byte(tc.given))
		if err != nil || string(h.Secret) != tc.want {
			t.Errorf("%q is %q (%v), want %q", tc.given, h.Secret, err, tc.want)
		}
	}
	for _, bad := range []string{"whsec_", "whsec_not base64"} {
		if _, err := govern.NewWebhook("https://example.com/hook", []byte(bad)); !workbench.HasCode(err, workbench.CodeInvalidRequest) {
			t.Errorf("%q gives %v", bad, err)
		}
	}
}
