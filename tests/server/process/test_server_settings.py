"""The settings of a server."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from millrace import Settings, limits
from millrace.errors import Invalid
from millrace.server.auth.access import DEFAULT_QUOTA, Quota, parse_rule
from millrace.server.process.declarations import DeclaredQueue, DeclaredTopic
from millrace.server.process.server_settings import (
    FIELDS,
    ServerSettings,
    check_safety,
    compare,
    load,
    reloaded,
    table,
)
from millrace.server.process.settings_file import lines_of

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "server.md"

WHOLE = """
data = "/var/lib/millrace"
listen = ["0.0.0.0:7070", "[::1]:7118"]
tls_certificate = "/etc/cert.pem"
tls_key = "/etc/key.pem"
stop_seconds = 2.5
log_level = "debug"

[quota]
requests = 100
bytes = 1_000_000

[engine]
disk_low = 1_000_000
scrub_every = 60

[queues.orders]
keyed = true
retention = "log"
shards = 4

[queues."shop/baskets"]
dead_letter = "dead"

[topics.news]
max_lag = 10
subscribe = ["mail", { queue = "orders", filter = { kind = ["sale"] } }]

[users.ada]
rules = ["allow publish,work default/*", "deny work default/secret"]
quota = { in_flight = 10 }
tokens = ["sha256:0000000000000000000000000000000000000000000000000000000000000000"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "millrace.toml"


def test_without_anything_there_are_defaults() -> None:
    loaded = load()
    assert loaded.settings == ServerSettings()
    assert (loaded.sources, loaded.warnings) == ({}, ())
    assert loaded.settings.key_path == Path("millrace-data/access.key")
    assert loaded.settings.admin_token_path == Path("millrace-data/admin.token")
    assert not loaded.settings.is_tls


def test_a_file_says_everything(file: Path) -> None:
    file.write_text(WHOLE)
    loaded = load(file)
    settings = loaded.settings
    assert settings.data == Path("/var/lib/millrace")
    assert [str(one) for one in settings.addresses] == ["0.0.0.0:7070", "[::1]:7118"]
    assert settings.is_tls
    assert (settings.stop_seconds, settings.log_level) == (2.5, "debug")
    assert settings.quota == replace(DEFAULT_QUOTA, requests=100, bytes=1_000_000)
    assert settings.engine == Settings(disk_low=1_000_000, scrub_every=60)
    assert settings.queues == (
        DeclaredQueue("default", "orders", {"keyed": True, "retention": "log"}, 4),
        DeclaredQueue("shop", "baskets", {"dead_letter": "dead"}),
    )
    subscribed: tuple[tuple[str, dict[str, object] | None], ...] = (
        ("mail", None),
        ("orders", {"kind": ["sale"]}),
    )
    assert settings.topics == (DeclaredTopic("default", "news", 10, subscribed),)
    [ada] = settings.users
    assert ada.user.rules == (
        parse_rule("allow publish,work default/*"),
        parse_rule("deny work default/secret"),
    )
    assert (ada.user.quota, ada.digests) == (Quota(in_flight=10), (bytes(32),))
    assert loaded.sources["stop_seconds"] == f"{file}, line 6"


def test_flags_win_over_the_environment_which_wins_over_the_file(file: Path) -> None:
    file.write_text('stop_seconds = 1\nlog_level = "error"\nfrontends = 1\n')
    environ = {"MILLRACE_STOP_SECONDS": "2", "MILLRACE_FRONTENDS": "2", "HOME": "x"}
    loaded = load(file, environ, {"stop_seconds": 3})
    settings = loaded.settings
    assert (settings.stop_seconds, settings.frontends, settings.log_level) == (3, 2, "error")
    assert loaded.sources == {
        "stop_seconds": "--stop-seconds",
        "frontends": "MILLRACE_FRONTENDS",
        "log_level": f"{file}, line 2",
    }


def test_the_environment_has_texts() -> None:
    loaded = load(
        environ={
            "MILLRACE_LISTEN": "127.0.0.1:1; [::1]:2",
            "MILLRACE_ANONYMOUS": "yes",
            "MILLRACE_ANONYMOUS_RULES": "allow read,work a/*; deny work a/b",
            "MILLRACE_DATA": "/x y",
            "MILLRACE_SOCKET": "0",
            "MILLRACE_KEY_FILE": "",
            "MILLRACE_QUOTA_REQUESTS": "5.5",
            "MILLRACE_ENGINE_DISK_LOW": "77",
        }
    )
    settings = loaded.settings
    assert settings.listen == ("127.0.0.1:1", "[::1]:2")
    assert settings.anonymous_rules == ("allow work,read a/*", "deny work a/b")
    assert (settings.data, settings.socket, settings.key_file) == (Path("/x y"), False, None)
    assert (settings.quota, settings.engine.disk_low) == (replace(DEFAULT_QUOTA, requests=5.5), 77)


def test_flags_of_tables_win_over_file_and_environment(file: Path) -> None:
    file.write_text("[engine]\nsegment_bytes = 4096000\nscrub_every = 60\n[quota]\nrequests = 1")
    environ = {"MILLRACE_ENGINE_SEGMENT_BYTES": "8192000", "MILLRACE_QUOTA_PINS": "7"}
    flags = {"engine_segment_bytes": "1048576", "quota_requests": "2.5"}
    loaded = load(file, environ, flags)
    settings = loaded.settings
    assert settings.engine == Settings(segment_bytes=1048576, scrub_every=60)
    assert settings.quota == replace(DEFAULT_QUOTA, requests=2.5, pins=7)
    assert loaded.sources["engine"] == f"--engine-segment-bytes; {file}, line 3"


@pytest.mark.parametrize(
    ("name", "value", "field", "text"),
    [
        ("engine_segment_byte", "5", "engine_segment_byte", "did you mean 'segment_bytes'"),
        ("engine_segment_bytes", "5", "segment_bytes", "--engine-segment-bytes: .* at least"),
        ("engine", "5", "engine", "no setting of engine"),
        ("quota_request", "5", "quota_request", "did you mean 'requests'"),
        ("quota_requests", "x", "quota", "--quota-requests"),
    ],
)
def test_flags_of_tables_are_judged(name: str, value: str, field: str, text: str) -> None:
    with pytest.raises(Invalid, match=text) as refused:
        load(flags={name: value})
    assert refused.value.field == field


def test_a_file_is_named_by_the_environment(file: Path) -> None:
    file.write_text("frontends = 3")
    assert load(environ={"MILLRACE_CONFIG": str(file)}).settings.frontends == 3


def test_variables_of_others_are_left_alone_and_typing_errors_told() -> None:
    environ = {
        "MILLRACE_PORT": "tcp://10.0.0.1:7070",
        "MILLRACE_SERVICE_HOST": "10.0.0.1",
        "MILLRACE_QUEUE": "orders",
        "MILLRACE_LISTN": "x",
    }
    loaded = load(environ=environ)
    assert loaded.settings == ServerSettings()
    assert loaded.warnings == ("MILLRACE_LISTN is no setting; did you mean MILLRACE_LISTEN?",)


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("\n\nlistn = 'x'", "listn", ["line 3", "did you mean 'listen'?"]),
        ("zebra = 1", "zebra", ["line 1", "there are data, listen"]),
        ("frontends = 'two'", "frontends", ["line 1", "'two'", "whole number"]),
        ("frontends = true", "frontends", ["line 1"]),
        ("frontends = 65", "frontends", ["line 1", "64"]),
        ("frontends = -1", "frontends", ["0 and 64"]),
        ("stop_seconds = nan", "stop_seconds", ["seconds"]),
        ("stop_seconds = inf", "stop_seconds", ["seconds"]),
        ("data = 5", "data", ["a path"]),
        ("data = ''", "data", ["a path"]),
        ("socket = 1", "socket", ["true or false"]),
        ("log_level = 'loud'", "log_level", ["debug, info"]),
        ('statsd = "a\\nb"', "statsd", ["one line"]),
        ("listen = 5", "listen", ["addresses"]),
        ("listen = [5]", "listen", ["text"]),
        ("listen = 'localhost'", "listen", ["127.0.0.1:7070"]),
        ("listen = '::1:99'", "listen", ["[::1]:7070"]),
        ("listen = '127.0.0.1:99999'", "listen", ["address"]),
        ("listen = []", "listen", ["no address"]),
        ("anonymous_rules = ['fly']", "rule", ["line 1", "allow publish"]),
        ("quota = 1", "quota", ["[quota]"]),
        ("[quota]\nrequest = 1", "request", ["line 2", "'requests'"]),
        ("[quota]\nrequests = -1", "requests", ["line 2"]),
        ("[quota]\nrequests = 'x'", "quota", ["line 2"]),
        ("[engine]\n\ndisk_lo = 1", "disk_lo", ["line 3", "'disk_low'"]),
        ("[engine]\nfork = true", "fork", ["line 2"]),
        ("[engine]\nsegment_bytes = 5", "segment_bytes", ["line 2", "at least"]),
        ("queues = 1", "queues", ["[queues.NAME]"]),
        ("[queues]\norders = 1", "orders", ["line 2"]),
        ("[queues.orders]\nkeyd = true", "keyd", ["line 2", "'keyed'", "queues.orders"]),
        ("[queues.orders]\nkeyed = 1", "keyed", ["line 2"]),
        ("[queues.orders]\nshards = 0", "shards", ["line 2"]),
        ("[queues.orders]\nroute = 'x'", "route", ["line 2"]),
        ("[queues.'a b']", "queue", ["line 1"]),
        ("[queues.'system/access']", "space", ["line 1", "belongs to the server"]),
        ("[topics.news]\nlag = 1", "lag", ["line 2", "topic"]),
        ("[topics.news]\nmax_lag = 0", "max_lag", ["line 2"]),
        ("[topics.news]\nsubscribe = 'x'", "subscribe", ["line 2"]),
        ("[topics.news]\nsubscribe = [1]", "subscribe", ["line 2"]),
        ("[topics.news]\nsubscribe = [{queue='a', filter=1}]", "filter", ["line 1"]),
        ("[users.ada]\nrules = 'x'", "rules", ["line 2"]),
        ("[users.ada]\nrules = ['fly a/b']", "rule", ["users.ada"]),
        ("[users.ada]\nrole = 'x'", "role", ["line 2", "user"]),
        ("[users.ada]\ntokens = ['mr_secret']", "tokens", ["line 2", "sha256:"]),
        ("[users.ada]\nquota = {pens = 1}", "pens", ["'pins'"]),
        ("[users.'a b']", "user", ["line 1"]),
        ("tls_key = 'x'", "tls_certificate", ["go together"]),
        ("tls_certificate = 'x'", "tls_key", ["go together"]),
        ("tls_client_ca = 'x'", "tls_client_ca", ["says nothing"]),
        ("data = ", "config", ["line 1, the last"]),
        ("data = [\n'x'\ny", "config", ["line 3"]),
        ("a = 1\na = 2", "config", ["line 2"]),
        (f"stop_seconds = {'9' * 5000}", "config", ["too long"]),
        (f"stop_seconds = {'9' * 400}", "stop_seconds", ["line 1", "within"]),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    file: Path, text: str, field: str, words: list[str]
) -> None:
    file.write_text(text)
    with pytest.raises(Invalid) as caught:
        load(file)
    assert caught.value.field == field
    for word in words:
        assert word in caught.value.message
    if "[" not in words[0] and caught.value.field not in ("tls_key", "tls_client_ca"):
        assert str(file) in caught.value.message or field in ("listen", "tls_certificate")
    assert "mr_secret" not in caught.value.message


def test_wrong_variables_and_flags_are_named() -> None:
    with pytest.raises(Invalid, match="MILLRACE_FRONTENDS: frontends is 'many'"):
        load(environ={"MILLRACE_FRONTENDS": "many"})
    with pytest.raises(Invalid, match="MILLRACE_SOCKET: socket is 'maybe', not true or false"):
        load(environ={"MILLRACE_SOCKET": "maybe"})
    with pytest.raises(Invalid, match="MILLRACE_QUOTA_PINS"):
        load(environ={"MILLRACE_QUOTA_PINS": "x"})
    with pytest.raises(Invalid, match="MILLRACE_ENGINE_DISK_LOW: disk_low"):
        load(environ={"MILLRACE_ENGINE_DISK_LOW": "x"})
    with pytest.raises(Invalid, match="--frontends: frontends is 99"):
        load(flags={"frontends": "99"})
    with pytest.raises(Invalid, match="did you mean 'frontends'"):
        load(flags={"frontend": 1})


def test_an_address_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hint = r"data is 'localhost:7070', not a folder; say listen .*\./localhost:7070"
    file = tmp_path / "x.toml"
    file.write_text('data = "localhost:7070"')
    with pytest.raises(Invalid, match=hint):
        load(file)
    with pytest.raises(Invalid, match=f"MILLRACE_DATA: {hint}"):
        load(environ={"MILLRACE_DATA": "localhost:7070"})
    with pytest.raises(Invalid, match=f"--data: {hint}") as caught:
        load(flags={"data": "localhost:7070"})
    assert caught.value.field == "data"
    assert load(flags={"data": "./localhost:7070"}).settings.data == Path("localhost:7070")
    Path("localhost:7070").mkdir()
    load(flags={"data": "localhost:7070"})


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.toml"):
        with pytest.raises(Invalid, match="cannot be read") as caught:
            load(path)
        assert caught.value.field == "config"
    path = tmp_path / "x.toml"
    path.write_bytes(b"a = 1\nb = '\xff'")
    with pytest.raises(Invalid, match="line 2: this is no UTF-8"):
        load(path)
    path.write_bytes(b"#" * (limits.CONFIG_BYTES_MAX + 1))
    with pytest.raises(Invalid, match="more than"):
        load(path)
    path.write_text("a = " + "[" * 100_000)
    with pytest.raises(Invalid):
        load(path)


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "example.org:1"])
def test_beyond_this_machine_there_is_tls_and_nobody_anonymous(address: str) -> None:
    listen = (address,)
    with pytest.raises(Invalid, match="TLS") as caught:
        check_safety(ServerSettings(listen=listen))
    assert caught.value.field == "listen"
    tls = ServerSettings(listen=listen, tls_certificate=Path("c"), tls_key=Path("k"))
    assert check_safety(tls) == []
    for settings in (tls, ServerSettings(listen=listen, plain=True)):
        with pytest.raises(Invalid, match="anonymous") as caught:
            check_safety(dataclasses.replace(settings, anonymous=True))
        assert caught.value.field == "anonymous"
    [warning] = check_safety(ServerSettings(listen=listen, plain=True))
    assert "without TLS" in warning


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.1.2.3:0"])
def test_on_this_machine_it_may_be_plain(address: str) -> None:
    assert check_safety(ServerSettings(listen=(address,))) == []
    [warning] = check_safety(ServerSettings(listen=(address,), anonymous=True))
    assert "without a token" in warning
    with pytest.raises(Invalid):
        check_safety(ServerSettings(listen=(address, "0.0.0.0:5"), anonymous=True))


def test_a_reload_tells_what_is_in_force_at_once() -> None:
    old = ServerSettings()
    new = dataclasses.replace(
        old, log_level="debug", frontends=2, quota=Quota(pins=1), engine=Settings(disk_low=5)
    )
    found = compare(old, new)
    assert found.now == ("log_level", "quota")
    assert found.restart == ("frontends", "engine")
    merged = reloaded(old, new)
    assert (merged.log_level, merged.quota) == ("debug", Quota(pins=1))
    assert (merged.frontends, merged.engine) == (0, Settings())
    assert compare(old, old).now == compare(old, old).restart == ()


def test_another_certificate_is_taken_up_at_once_but_not_tls_itself() -> None:
    plain = ServerSettings()
    tls = ServerSettings(tls_certificate=Path("a"), tls_key=Path("b"))
    other = ServerSettings(tls_certificate=Path("c"), tls_key=Path("b"))
    assert compare(tls, other).now == ("tls_certificate",)
    assert compare(plain, tls).restart == ("tls_certificate", "tls_key")
    assert compare(tls, plain).now == ()


def test_the_guide_has_the_table_as_it_is() -> None:
    assert table() in GUIDE.read_text(encoding="utf-8")
    for name in FIELDS:
        assert f"`{name}`" in table()


@given(st.text(max_size=200))
def test_any_text_has_lines_or_none(text: str) -> None:
    for keys, line in lines_of(text).items():
        assert keys
        assert 1 <= line <= text.count("\n") + len(text) + 1


def is_judged(file: Path | None = None, flags: dict[str, object] | None = None) -> bool:
    """Whether settings are taken, or refused with the name of a field; nothing else is raised."""
    try:
        load(file, flags=flags)
    except Invalid as error:
        return bool(error.field)
    return True


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(data)
    assert is_judged(path)


NAMES = st.sampled_from([*FIELDS, "quota", "engine", "queues", "topics", "users", "x"])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["rules", "keyed", "a", "quota", "requests"]), inner),
    ),
    max_leaves=6,
)


@given(st.dictionaries(NAMES, VALUES, max_size=3))
def test_any_flags_are_taken_or_refused(flags: dict[str, object]) -> None:
    assert is_judged(flags=flags)


def test_sec_29_users_have_default_quotas_and_no_default_rates(file: Path) -> None:
    assert ServerSettings().quota == Quota(
        queues=10_000, topics=1_000, subscriptions=10_000, sessions=1_000, streams=100, jobs=4
    )
    file.write_text("[quota]\nqueues = 5\njobs = 0\n")
    quota = load(file, {}).settings.quota
    assert (quota.queues, quota.jobs, quota.topics) == (5, 0, 1_000)


@pytest.mark.parametrize("path", ["~no-such-user/x", f"h:{'9' * 5_000}", f"a{'b' * 5_000}:1"])
def test_paths_that_lead_nowhere_are_refused_or_taken(path: str) -> None:
    with suppress(Invalid):
        load(environ={"MILLRACE_DATA": path})


def test_variables_that_are_no_utf_8_are_refused() -> None:
    with pytest.raises(Invalid, match="no UTF-8"):
        load(environ={"MILLRACE_QUOTA_JOBS": "\udc80"})
