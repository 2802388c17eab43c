"""Fuzz target of settings: files, variables and flags are taken, or refused as `Invalid`."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from random import Random

from millrace.errors import Invalid
from millrace.server.auth.access import Quota
from millrace.server.process.server_settings import (
    ENGINE_FIELDS,
    FIELDS,
    PREFIX,
    check_safety,
    compare,
    load,
    reloaded,
    table,
)
from tests.fuzz.mutate import mutated, text
from tests.server.process.test_server_settings import WHOLE

_CORPUS = (
    WHOLE.encode(),
    b'anonymous = true\nanonymous_rules = ["allow read */*", "deny * a/b"]\n',
    b'listen = ["127.0.0.1:0"]\nsns_endpoints = ["public", "10.0.0.0/8", "example.org"]\n',
    b'[queues.a]\norder = "group"\ndead_letter = "b"\nkeep = 5\n[queues.a.notes]\n"x" = "y"\n',
    b'[topics.t]\nsubscribe = [{ queue = "q", name = "n", filter = { a = [{ prefix = "x" }] } }]\n',
    b'[users.u]\nrules = ["allow * */*"]\nquota = { requests = 0.5, jobs = 1 }\ntokens = []\n',
    b"[quota]\nqueues = 1\ntopics = 2\nsubscriptions = 3\nsessions = 4\nstreams = 5\njobs = 6\n",
    b"[engine]\nsegment_bytes = 1048576\nmemory_high = 1\nfollow_held_bytes = 0\n",
)
_TEXTS = (
    *("", "0", "1", "-1", "1e999", "nan", "true", "no", "127.0.0.1:0", "0.0.0.0:1", "[::1]:70000"),
    *("a;b", "\0", "allow * */*", "deny read a/*; allow x", "public", "/etc/passwd", "9" * 400),
    *("\u0661", "sha256:0", "http://h", "ftp://h", "{", "[1]", "'", "\udc80"),
)
_ODD: tuple[object, ...] = (
    "",
    None,
    True,
    -1,
    2**70,
    1.5,
    float("nan"),
    [],
    ["a", 1],
    {},
    {"a": {}},
    b"x",
)


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-settings-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def fuzz_settings(rng: Random) -> None:
    """Load settings of which everything may be wrong; what was taken is safe, and can be shown."""
    file = None
    if rng.random() < 0.8:
        data = rng.choice(_CORPUS)
        if rng.random() < 0.3:
            data += b"\n" + rng.choice(_CORPUS)
        if rng.random() < 0.9:
            data = mutated(data, _CORPUS, rng)
        file = _folder() / "millrace.toml"
        file.write_bytes(data)
    names = [
        *FIELDS,
        *(f"engine_{name}" for name in ENGINE_FIELDS),
        *(f"quota_{name}" for name in Quota.__struct_fields__),
        "unknown",
        "quota_",
        "engine_fork",
    ]
    environ = {
        PREFIX + rng.choice(names).upper(): _text(rng) for _ in range(rng.choice((0, 0, 1, 3)))
    }
    flags: dict[str, object] = {
        rng.choice(names): _text(rng) if rng.random() < 0.7 else rng.choice(_ODD)
        for _ in range(rng.choice((0, 0, 1, 3)))
    }
    try:
        loaded = load(file, environ, flags)
    except Invalid as error:
        if not error.message:
            raise AssertionError("an error without a word") from error
        return
    settings = loaded.settings
    check_safety(settings)
    assert compare(settings, settings).now == compare(settings, settings).restart == ()
    assert reloaded(settings, settings) == settings
    quotas = (settings.quota, *(one.user.quota for one in settings.users))
    for quota in quotas:
        assert all(getattr(quota, name) >= 0 for name in Quota.__struct_fields__)
    if settings.anonymous:
        assert all(address.is_loopback for address in settings.addresses)
    assert table()
    repr(settings)


def _text(rng: Random) -> str:
    if rng.random() < 0.7:
        return rng.choice(_TEXTS)
    return text(mutated(rng.choice(_TEXTS).encode("utf-8", "replace"), _CORPUS, rng))
