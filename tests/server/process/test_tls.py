"""Certificates: those that work, and clear words for those that do not."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import Invalid
from millrace.rpc.tls import client_context, explain, first_certificate
from millrace.server.process.tls import Certificates, validity_of
from tests.client.harness import run
from tests.server.authority import DAY, Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class Echo:
    """A server that says back what it hears."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self._context = context
        self.port = 0

    async def __aenter__(self) -> Echo:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            if self._context is None:
                await reader.read(1)
                writer.write(b"HTTP/1.1 400 this is plain\r\n\r\n")
            while self._context is not None and (line := await reader.readline()):
                writer.write(line)
                await writer.drain()
        writer.close()

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()


class Caller:
    """A client of it."""

    def __init__(self, port: int, context: ssl.SSLContext, name: str = "localhost") -> None:
        self._port = port
        self._context = context
        self._name = name

    async def __aenter__(self) -> Caller:
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._context, server_hostname=self._name
        )
        return self

    async def say(self, line: bytes) -> bytes:
        self._writer.write(line)
        await self._writer.drain()
        return await self._reader.readline()

    @property
    def certificate(self) -> bytes:
        found = self._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        assert isinstance(found, bytes)
        return found

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


def made(pair: Pair, client_ca: Path | None = None) -> Certificates:
    return Certificates(pair.certificate, pair.key, client_ca=client_ca)


async def refusal(port: int, context: ssl.SSLContext, name: str = "localhost") -> str:
    """Why a connection fails."""
    try:
        async with Caller(port, context, name) as caller:
            # TLS 1.3 lets a client begin before the server has judged its certificate.
            said = await caller.say(b"hello\n")
    except OSError as error:
        return explain(error, f"{name}:{port}")
    assert said == b""
    return "cut off"


def test_who_trusts_the_authority_is_served(authority: Authority) -> None:
    async def main() -> None:
        certificates = made(authority.sign("localhost", "127.0.0.1"))
        async with Echo(certificates.context) as echo:
            for name in ("localhost", "127.0.0.1"):
                context = client_context(authority.path)
                async with Caller(echo.port, context, name) as caller:
                    assert await caller.say(b"hello\n") == b"hello\n"

    run(main())


def test_old_versions_are_not_spoken(authority: Authority) -> None:
    context = made(authority.sign()).context
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    assert client_context(authority.path).minimum_version >= ssl.TLSVersion.TLSv1_2
    assert client_context().verify_mode is ssl.CERT_REQUIRED
    assert client_context().check_hostname


def test_certificates_are_changed_without_dropping_connections(authority: Authority) -> None:
    first, second = authority.sign(), authority.sign()

    async def main() -> None:
        certificates = made(first)
        context = client_context(authority.path)
        async with Echo(certificates.context) as echo, Caller(echo.port, context) as before:
            assert before.certificate == first_certificate(first.certificate)
            certificates.reload(second.certificate, second.key)
            async with Caller(echo.port, context) as after:
                assert after.certificate == first_certificate(second.certificate)
                assert await after.say(b"new\n") == b"new\n"
            assert await before.say(b"old\n") == b"old\n"

    run(main())


def test_a_reload_that_fails_changes_nothing(authority: Authority) -> None:
    good = authority.sign()
    old = authority.sign(expires=datetime.now(UTC) - timedelta(hours=1))
    other = authority.sign()

    async def main() -> None:
        certificates = made(good)
        expires = certificates.expires
        for certificate, key in (
            (old.certificate, old.key),
            (other.certificate, good.key),
            (other.certificate, other.certificate),
            (Path("missing"), good.key),
        ):
            with pytest.raises(Invalid):
                certificates.reload(certificate, key)
        assert certificates.expires == expires
        async with (
            Echo(certificates.context) as echo,
            Caller(echo.port, client_context(authority.path)) as caller,
        ):
            assert caller.certificate == first_certificate(good.certificate)

    run(main())


def test_wrong_certificates_are_told_apart(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")

    async def main() -> None:
        async with Echo(made(authority.sign("elsewhere.example")).context) as echo:
            said = await refusal(echo.port, client_context(authority.path))
            assert "another name" in said
            assert "localhost" in said
        async with Echo(made(stranger.sign()).context) as echo:
            said = await refusal(echo.port, client_context(authority.path))
            assert "nobody who is trusted has signed it" in said
        async with Echo(None) as echo:
            said = await refusal(echo.port, client_context(authority.path))
            assert "does not speak TLS" in said

    run(main())


@pytest.mark.parametrize(("shift", "word"), [(-10, "expired"), (10, "not valid yet")])
def test_a_certificate_out_of_its_time_is_refused(
    authority: Authority, shift: int, word: str
) -> None:
    """By a client, where the server's clock is wrong."""
    then = datetime.now(UTC) + shift * DAY
    pair = authority.sign(begins=then - DAY, expires=then + DAY)
    certificates = Certificates(pair.certificate, pair.key, now=lambda: then)

    async def main() -> None:
        async with Echo(certificates.context) as echo:
            assert word in await refusal(echo.port, client_context(authority.path))

    run(main())


def test_a_server_that_wants_to_know_its_clients(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")

    async def main() -> None:
        certificates = made(authority.sign(), authority.path)
        async with Echo(certificates.context) as echo:
            own, other = authority.sign("client"), stranger.sign("client")
            context = client_context(authority.path, own.certificate, own.key)
            async with Caller(echo.port, context) as caller:
                assert await caller.say(b"hello\n") == b"hello\n"
            assert await refusal(echo.port, client_context(authority.path))
            context = client_context(authority.path, other.certificate, other.key)
            assert await refusal(echo.port, context)

    run(main())


@pytest.mark.parametrize("hours", [-1, 0])
def test_an_expired_certificate_is_not_presented(authority: Authority, hours: int) -> None:
    expires = (datetime.now(UTC) + timedelta(hours=hours)).replace(microsecond=0)
    pair = authority.sign(expires=expires)
    with pytest.raises(Invalid, match="has expired at") as caught:
        Certificates(pair.certificate, pair.key, now=lambda: expires)
    assert caught.value.field == "tls_certificate"
    early = datetime.now(UTC) - 3 * DAY
    with pytest.raises(Invalid, match="compare the clocks"):
        Certificates(pair.certificate, pair.key, now=lambda: early)


def test_files_that_are_wrong_are_named(authority: Authority, tmp_path: Path) -> None:
    good, other = authority.sign(), authority.sign()
    hidden = authority.sign(password=b"secret")
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for path in (empty, good.certificate):
        path.chmod(0o600)
    cases: list[tuple[Path, Path, str, str]] = [
        (tmp_path / "missing", good.key, "tls_certificate", "cannot be read"),
        (good.certificate, tmp_path / "missing", "tls_key", "cannot be read"),
        (tmp_path, good.key, "tls_certificate", "cannot be read"),
        (empty, good.key, "tls_certificate", "a certificate"),
        (good.key, good.key, "tls_certificate", "a certificate"),
        (good.certificate, good.certificate, "tls_key", "a private key"),
        (good.certificate, empty, "tls_key", "a private key"),
        (good.certificate, other.key, "tls_key", "is not that of the certificate"),
        (hidden.certificate, hidden.key, "tls_key", "is encrypted"),
    ]
    for certificate, key, field, words in cases:
        with pytest.raises(Invalid) as caught:
            Certificates(certificate, key)
        assert caught.value.field == field, words
        assert words in caught.value.message
    for ca in (empty, tmp_path / "missing"):
        with pytest.raises(Invalid) as caught:
            made(good, ca)
        assert caught.value.field == "tls_client_ca"
        with pytest.raises(Invalid) as caught:
            client_context(ca)
        assert caught.value.field == "ca"
    with pytest.raises(Invalid, match="go together"):
        client_context(authority.path, good.certificate)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620])
def test_sec_24_a_key_that_others_may_read_is_refused(authority: Authority, mode: int) -> None:
    pair = authority.sign()
    used = Certificates(pair.certificate, pair.key)
    pair.key.chmod(mode)
    for use, field in (
        (lambda: Certificates(pair.certificate, pair.key), "tls_key"),
        (lambda: used.reload(pair.certificate, pair.key), "tls_key"),
        (lambda: client_context(authority.path, pair.certificate, pair.key), "key"),
    ):
        with pytest.raises(Invalid, match=f"its mode is {mode:04o}.*run `chmod 600") as caught:
            use()
        assert caught.value.field == field
    pair.key.chmod(0o400)
    pair.certificate.chmod(0o444)
    Certificates(pair.certificate, pair.key)


def test_the_time_of_a_certificate_is_read(authority: Authority) -> None:
    begins = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    for expires in (
        datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),
        datetime(2077, 1, 1, tzinfo=UTC),
    ):
        pair = authority.sign(begins=begins, expires=expires)
        assert validity_of(first_certificate(pair.certificate)) == (begins, expires)
        assert made(pair).expires == expires


def test_any_bytes_are_a_certificate_or_none(authority: Authority) -> None:
    der = first_certificate(authority.path)

    @given(st.integers(0, len(der)), st.binary(max_size=8))
    def fuzz(at: int, data: bytes) -> None:
        for broken in (der[:at], der[:at] + data + der[at + len(data) :], data):
            try:
                begins, _ = validity_of(broken)
            except ValueError:
                continue
            assert begins.tzinfo is UTC

    fuzz()


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "asks for a certificate of the client"),
        ("TLSV1_ALERT_UNKNOWN_CA", "does not trust who signed"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "no version of TLS from 1.2 on"),
        ("INTERNAL_ERROR", "internal error"),
    ],
)
def test_what_others_say_is_told(reason: str, words: str) -> None:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    assert words in explain(error, "example.org:443")
    assert "refused" in explain(ConnectionRefusedError(111, "Connection refused"), "x")
