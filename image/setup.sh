#!/bin/sh
# Installs the Debian packages that building, testing and making images need,
# if they are missing, and says which and why. Changes nothing otherwise. With the
# word bench, those that measuring needs too.
set -eu

missing=""
need() { # need PACKAGE WHY TEST...: TEST succeeds if it is there
	package=$1 why=$2
	shift 2
	if ! "$@" >/dev/null 2>&1; then
		echo "setup: $package is missing ($why)"
		missing="$missing $package"
	fi
}
has() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1"; }
has_postgres() { ls /usr/lib/postgresql/*/bin/postgres || has postgres; }
has_seccomp() { echo 'int main(void){return 0;}' | cc -x c -o /dev/null - -l:libseccomp.a && test -e /usr/include/seccomp.h; }

need gcc "builds runc" has cc
need libc6-dev "builds runc" test -e /usr/include/stdio.h
need libseccomp-dev "builds runc" has_seccomp
need mmdebstrap "builds sandbox images" has mmdebstrap
need debian-archive-keyring "checks the packages of sandbox images" test -e /usr/share/keyrings/debian-archive-keyring.gpg
need erofs-utils "packs sandbox images" has mkfs.erofs
need nodejs "lints the OpenAPI document" has node
need npm "installs that linter" has npm
need curl "the README's examples, which the tests run" has curl
need jq "the README's examples, which the tests run" has jq
need postgresql "the tests run on a real one" has_postgres
[ "${1-}" != bench ] || need bubblewrap "make bench measures it as well" has bwrap

if ! has go >/dev/null; then
	echo "setup: Go is missing; install Go 1.26 or newer (https://go.dev/dl)" >&2
	exit 1
fi
if [ "$(id -u)" -ne 0 ]; then
	echo "setup: sandboxes need root; run make as root" >&2
	exit 1
fi
[ -n "$missing" ] || { echo "setup: every Debian package is there"; exit 0; }
if ! has apt-get >/dev/null; then
	echo "setup: install these with this system's package manager:$missing" >&2
	exit 1
fi
echo "setup: installing$missing"
export DEBIAN_FRONTEND=noninteractive
# Packages that bring a server (postgresql) must not start it: the tests start
# their own. Debian asks this program whether they may.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap 'rm -f "$policy"' EXIT
	trap 'exit 1' INT TERM
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
# shellcheck disable=SC2086 # a list of words
apt-get install -y --no-install-recommends $missing >/dev/null 2>&1 || {
	apt-get update >/dev/null
	apt-get install -y --no-install-recommends $missing >/dev/null
}
echo "setup: installed$missing"
