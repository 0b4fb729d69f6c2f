package upstream

import "net/netip"

// Public is public.
func Public(a netip.Addr) bool { return public(a) }
