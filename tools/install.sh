#!/usr/bin/env bash
# Installs packages of the system, on Debian and Ubuntu and as root: tools/install.sh PACKAGE...
# Elsewhere it says what to install and fails. Services that come with them are not started: tests
# run programs of their own, in folders and on ports of their own.
set -euo pipefail

say() { printf 'install: %s\n' "$*" >&2; }

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "missing: $*; install it with your system's package tool" \
        "(Debian, Ubuntu: sudo apt-get install --no-install-recommends $*)"
    exit 1
fi

policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
get=(apt-get -qq -y -o DPkg::Lock::Timeout=300)
say "installing $*"
if ! "${get[@]}" install --no-install-recommends "$@" >/dev/null 2>&1; then
    "${get[@]}" update >/dev/null || true
    "${get[@]}" install --no-install-recommends "$@" >/dev/null
fi
