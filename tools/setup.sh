#!/usr/bin/env bash
# Makes .venv ready for work. Needs Python 3.11 or later with pip, and a package index that pip can
# reach; a mirror, proxy or certificate that pip is configured with is used.
#
# pip, not uv, installs the lock: it honours every pip.conf, and what it installs is checked against
# the hashes of requirements.lock. uv is one of those packages, and is used to change the lock.
#
# tools/setup.sh FOLDER LOCK makes another folder ready, from another lock.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=${1:-.venv}
lock=${2:-requirements.lock}

say() { printf 'setup: %s\n' "$*" >&2; }

new_enough='import sys; sys.exit(sys.version_info < (3, 11))'

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3 python3.12 python3.13 python}; do
        if command -v "$candidate" >/dev/null && "$candidate" -c "$new_enough" 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    say "no Python of version 3.11 or later was found; install one, or name it: make setup PYTHON=..."
    return 1
}

make_environment() {
    if [ -x "$environment/bin/python" ] && "$environment/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    local python
    python=$(find_python)
    say "making $environment with $("$python" --version)"
    rm -rf "$environment"
    if ! "$python" -m venv "$environment" >/dev/null 2>&1; then
        # Some distributions ship venv without ensurepip; pip itself can then furnish the folder.
        rm -rf "$environment"
        "$python" -m venv --without-pip "$environment"
        "$python" -m pip --python "$environment/bin/python" install --quiet pip
    fi
}

install_packages() {
    local pip=("$environment/bin/python" -m pip --disable-pip-version-check)
    local checked=(install --quiet --require-hashes --only-binary :all:)
    say "installing the locked packages; the first time Spark is fetched, too: 450 MB"
    "${pip[@]}" "${checked[@]}" -r <(awk '/^setuptools==/, !/\\$/' "$lock")
    # Of Spark there is source only. The set-up tool just installed builds it, so that pip fetches
    # none that is not in the lock, and pip keeps what was built.
    "${pip[@]}" "${checked[@]}" --no-binary pyspark --use-pep517 --no-build-isolation \
        -r "$lock"
    "${pip[@]}" install --quiet --no-deps --no-build-isolation --editable .
}

install_strace() {
    if command -v strace >/dev/null; then
        return
    fi
    if tools/install.sh strace; then
        return
    fi
    say "strace is missing and was not installed; tests that rebuild crash states from recorded" \
        "system calls are skipped. Install it with your system's package tool to run them."
}

install_java() {
    local find='from millrace.spark.java import find_java; find_java()'
    if "$environment/bin/python" -c "$find" 2>/dev/null || tools/install.sh openjdk-17-jre-headless; then
        return
    fi
    say "Java is missing and was not installed: what runs on Spark does not run until it is there."
}

make_environment
install_packages
install_strace
install_java
say "ready"
