"""The settings of a server: frozen values from a file, the environment and flags.

Rule 1: a flag wins over the environment, which wins over the file, which wins over the default.
Rule 2: what is not known is an error that names what was probably meant; nothing is guessed.
Rule 3: what would let strangers in is refused before anything is opened.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from millrace import limits
from millrace.core import check
from millrace.errors import Invalid, MillraceError
from millrace.server import declared
from millrace.server.access import DEFAULT_QUOTA, Quota, parse_rule
from millrace.server.address import Address, parse_address
from millrace.server.aws.bounds import Bounds
from millrace.server.aws.names import Home
from millrace.server.config_file import ConfigFile, read_file
from millrace.server.declared import DeclaredQueue, DeclaredTopic, DeclaredUser
from millrace.server.roll import ANONYMOUS_RULES
from millrace.server.secret import ACCESS_KEY_FILE, ADMIN_TOKEN_FILE
from millrace.server.setting import (
    FLAG,
    FOLDER,
    PATH,
    TEXT,
    URL,
    About,
    Taken,
    from_text,
    one_of,
    seconds,
    setting,
    several,
    shaped,
    share,
    whole,
)
from millrace.server.sns.reach import PUBLIC, read_place
from millrace.settings import Settings

PREFIX = "MILLRACE_"
"""Before the names of settings in the environment."""

CONFIG_VARIABLE = f"{PREFIX}CONFIG"

ADDRESSES = several("addresses", lambda name, text: str(parse_address(text, name)))
ACCOUNT = shaped("[0-9]{12}", "twelve digits")
REGION = shaped("[a-z0-9-]{1,64}", "a region such as eu-central-1")
ENDPOINTS = several("any, public, networks and hosts", read_place)
RULES = several("rules", lambda _, text: str(parse_rule(text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What may be said of a server; the guide has it as a table (docs/guide/serving.md)."""

    data: Path = setting(Path("millrace-data"), FOLDER, "The folder with the queues.")
    listen: tuple[str, ...] = setting(
        ("127.0.0.1:7070",), ADDRESSES, "Where HTTP is spoken; port 0 takes any that is free."
    )
    socket: bool = setting(
        True, FLAG, "Let other processes of this user use the folder through a socket in it."
    )
    frontends: int = setting(
        0,
        whole(0, limits.FRONTENDS_MAX),
        "Processes that speak HTTP for the one that has the folder; 0: it does so itself.",
    )
    tls_certificate: Path | None = setting(
        None,
        PATH,
        "The certificate chain of the server, as PEM; with it HTTPS is spoken.",
        live=True,
    )
    tls_key: Path | None = setting(
        None,
        PATH,
        "The private key of the certificate, as PEM, not encrypted, of mode 0600.",
        live=True,
    )
    tls_client_ca: Path | None = setting(
        None, PATH, "Whoever connects must have a certificate that one of these has signed."
    )
    plain: bool = setting(
        False, FLAG, "Speak HTTP without TLS beyond this machine; tokens can be overheard."
    )
    anonymous: bool = setting(
        False, FLAG, "Let programs of this machine in without a token; loopback only.", live=True
    )
    anonymous_rules: tuple[str, ...] = setting(
        ANONYMOUS_RULES, RULES, "What they may do then.", live=True
    )
    admin_token_file: Path | None = setting(
        None, PATH, f"The token of the first administrator. [{ADMIN_TOKEN_FILE} in the folder]"
    )
    key_file: Path | None = setting(
        None, PATH, f"What secrets of access keys are made of. [{ACCESS_KEY_FILE} in the folder]"
    )
    aws_account: str = setting(
        "000000000000", ACCOUNT, "The account of AWS whose queues are those of the space `default`."
    )
    aws_region: str = setting("us-east-1", REGION, "And the region.")
    sqs_message_bytes_max: int = setting(
        limits.SQS_MESSAGE_BYTES_MAX,
        whole(limits.SQS_MESSAGE_BYTES_MIN, limits.BODY_BYTES_MAX),
        "Bytes of a message of SQS, and of all messages of a batch.",
    )
    sqs_batch_max: int = setting(
        limits.SQS_BATCH_MAX,
        whole(1, limits.SQS_BATCH_SETTING_MAX),
        "Entries of a batch of SQS, and messages of a receive.",
    )
    sqs_in_flight_max: int = setting(
        limits.SQS_IN_FLIGHT_MAX,
        whole(1, limits.IN_FLIGHT_MAX),
        "Messages in flight of a queue that SQS makes from then on.",
    )
    sqs_visibility_seconds_max: int = setting(
        limits.SQS_VISIBILITY_SECONDS_MAX,
        whole(1, limits.SQS_VISIBILITY_SECONDS_MAX),
        "The longest visibility timeout of SQS.",
    )
    sqs_cooldown_seconds: int = setting(
        0,
        whole(0, limits.SQS_COOLDOWN_SECONDS_MAX),
        "How long PurgeQueue, and CreateQueue after DeleteQueue, are refused again; 60 as on AWS.",
    )
    sns_endpoints: tuple[str, ...] = setting(
        (),
        ENDPOINTS,
        "Where SNS sends by HTTP. [public]",
    )
    connections_max: int = setting(
        limits.CONNECTIONS_MAX, whole(1, 1_000_000), "Connections at a time.", live=True
    )
    body_bytes_max: int = setting(
        limits.HTTP_BODY_BYTES_MAX,
        whole(1024, limits.HTTP_BODIES_BYTES_MAX),
        "Bytes of the body of a request.",
    )
    stop_seconds: float = setting(
        limits.HTTP_STOP_SECONDS, seconds(0, 3600), "How long a stop waits for requests.", live=True
    )
    session_silence_seconds: float = setting(
        limits.SESSION_SILENCE_SECONDS,
        seconds(limits.SESSION_SILENCE_SECONDS_MIN, 3600),
        "After so long without a word a session over HTTP ends.",
        live=True,
    )
    audit_keep: float = setting(
        limits.AUDIT_KEEP_SECONDS,
        seconds(1, 10 * 365 * 86_400),
        "How long notes of the audit are kept.",
        live=True,
    )
    log_level: str = setting(
        "info", one_of("debug", "info", "warning", "error"), "What is logged.", live=True
    )
    log_format: str = setting("text", one_of("text", "json"), "How it is logged.")
    access_log: int = setting(
        0,
        whole(0, 1_000_000),
        "Log one request of so many, and all that fail; 1: every one, 0: none.",
        live=True,
    )
    statsd: str = setting("", TEXT, "Address of a statsd, as host:port; empty: none.")
    otlp_endpoint: str = setting(
        "", URL, "Where traces and metrics go by OTLP over HTTP; empty: nowhere. Needs `otel`."
    )
    trace_ratio: float = setting(
        1.0,
        share(),
        "Of traces that begin here, so many are recorded; others are by their beginner.",
    )
    quota: Quota = DEFAULT_QUOTA
    """For those whose own quota says nothing."""
    engine: Settings = field(default_factory=Settings)
    queues: tuple[DeclaredQueue, ...] = ()
    topics: tuple[DeclaredTopic, ...] = ()
    users: tuple[DeclaredUser, ...] = ()

    @property
    def addresses(self) -> list[Address]:
        """Where to listen."""
        return [parse_address(text, "listen") for text in self.listen]

    @property
    def aws_home(self) -> Home:
        """The account and region of AWS whose queues are those of the space `default`."""
        return Home(self.aws_account, self.aws_region)

    @property
    def sqs_bounds(self) -> Bounds:
        """The limits of SQS."""
        return Bounds(
            self.sqs_message_bytes_max,
            self.sqs_batch_max,
            self.sqs_in_flight_max,
            self.sqs_visibility_seconds_max,
            self.sqs_cooldown_seconds,
        )

    @property
    def sns_places(self) -> tuple[str, ...]:
        """Where SNS sends by HTTP. Whoever may subscribe an endpoint would else have the server ask
        what only it can reach: also where it listens on loopback alone, for others come to it
        through a proxy."""
        return self.sns_endpoints or (PUBLIC,)

    @property
    def admin_token_path(self) -> Path:
        """Where the first administrator's token lies."""
        return self.admin_token_file or self.data / ADMIN_TOKEN_FILE

    @property
    def key_path(self) -> Path:
        """Where that lies which secrets of access keys are made of."""
        return self.key_file or self.data / ACCESS_KEY_FILE

    @property
    def is_tls(self) -> bool:
        """Whether HTTPS is spoken."""
        return self.tls_certificate is not None


FIELDS: dict[str, About] = {
    one.name: one.metadata["about"]
    for one in dataclasses.fields(ServerSettings)
    if "about" in one.metadata
}
"""The settings that are single values."""

ENGINE_FIELDS = tuple(one.name for one in dataclasses.fields(Settings) if one.name != "fork")
"""The settings of the engine, which stand in the table `[engine]`."""

_TABLES = ("quota", "engine", "queues", "topics", "users")
_LIVE_TABLES = ("quota", "queues", "topics", "users")


_RAW = Taken("a value", lambda _, value: value)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and where they come from."""

    settings: ServerSettings
    sources: dict[str, str]
    """Of each that is not the default: file and line, variable or flag."""
    warnings: tuple[str, ...] = ()


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> Loaded:
    """Settings from a file, the environment and flags.

    `file` is read where it is given, else the one that MILLRACE_CONFIG names. Flags are those that
    were given, by the names of settings, those of the tables as engine_NAME and quota_NAME; a text
    is read as in the environment.

    Raises:
        Invalid: something is unknown, of another type, beyond a limit or unsafe; the error says
            where it stands.
    """
    environ = environ or {}
    if file is None and environ.get(CONFIG_VARIABLE):
        file = Path(environ[CONFIG_VARIABLE])
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    engine: dict[str, tuple[object, str]] = {}
    quota: dict[str, tuple[object, str]] = {}
    if file is not None:
        _from_file(read_file(file), values, sources, engine, quota)
    warnings = _from_environment(environ, values, sources, engine, quota)
    for name, value in (flags or {}).items():
        source = "--" + name.replace("_", "-")
        table, _, key = name.partition("_")
        if table in ("engine", "quota"):
            known = ENGINE_FIELDS if table == "engine" else Quota.__struct_fields__
            if key not in known:
                raise Invalid(f"{source}: {_unknown(key, table, known)}", field=name)
            (engine if table == "engine" else quota)[key] = (_given(name, _RAW, value), source)
            continue
        about = FIELDS.get(name)
        if about is None:
            raise Invalid(_unknown(name, "flag", FIELDS), field=name)
        values[name] = _read(source, partial(_given, name, about.taken, value))
        sources[name] = source
    if quota:
        values["quota"] = _read_quota(quota)
        sources["quota"] = "; ".join(sorted({where for _, where in quota.values()}))
    if engine:
        values["engine"] = _read_engine(engine)
        sources["engine"] = "; ".join(sorted({where for _, where in engine.values()}))
    settings = ServerSettings(**values)
    warnings += check_safety(settings)
    return Loaded(settings, sources, tuple(warnings))


def _from_file(
    found: ConfigFile,
    values: dict[str, Any],
    sources: dict[str, str],
    engine: dict[str, tuple[object, str]],
    quota: dict[str, tuple[object, str]],
) -> None:
    tables: dict[str, Callable[..., object]] = {
        "queues": declared.read_queues,
        "topics": declared.read_topics,
        "users": declared.read_users,
    }
    for name, value in found.values.items():
        where = found.where(name)
        if name in FIELDS:
            values[name] = _read(where, partial(FIELDS[name].taken.read, name, value))
        elif name in tables:
            values[name] = tables[name](value, found.where)
        elif name in ("engine", "quota"):
            known = ENGINE_FIELDS if name == "engine" else Quota.__struct_fields__
            if not isinstance(value, dict):
                raise Invalid(f"{where}: {name} is no table; write [{name}]", field=name)
            for key, one in value.items():
                place = found.where(name, key)
                if key not in known:
                    raise Invalid(f"{place}: {_unknown(key, name, known)}", field=key)
                (engine if name == "engine" else quota)[key] = (one, place)
            continue
        else:
            known = (*FIELDS, *_TABLES)
            raise Invalid(f"{where}: {_unknown(name, 'setting', known)}", field=name)
        sources[name] = where


def _from_environment(
    environ: Mapping[str, str],
    values: dict[str, Any],
    sources: dict[str, str],
    engine: dict[str, tuple[object, str]],
    quota: dict[str, tuple[object, str]],
) -> list[str]:
    """What the environment says; returns what looks as if it were meant to say something.

    Others use the prefix, too: Kubernetes sets MILLRACE_PORT and more beside a service of this
    name. So a variable that is unknown is no error.
    """
    warnings: list[str] = []
    known = {PREFIX + name.upper(): name for name in FIELDS}
    engines = {f"{PREFIX}ENGINE_{name.upper()}": name for name in ENGINE_FIELDS}
    quotas = {f"{PREFIX}QUOTA_{name.upper()}": name for name in Quota.__struct_fields__}
    for variable, text in sorted(environ.items()):
        if variable in known:
            name = known[variable]
            values[name] = _read(variable, partial(from_text, name, FIELDS[name].taken, text))
            sources[name] = variable
        elif variable in engines:
            engine[engines[variable]] = (from_text(variable, _RAW, text), variable)
        elif variable in quotas:
            quota[quotas[variable]] = (from_text(variable, _RAW, text), variable)
        elif variable.startswith(PREFIX):
            names = [*known, *engines, *quotas]
            near = get_close_matches(variable, names, n=1, cutoff=0.92)
            if near:
                warnings.append(f"{variable} is no setting; did you mean {near[0]}?")
    return warnings


def _given(name: str, taken: Taken, value: object) -> object:
    return from_text(name, taken, value) if isinstance(value, str) else taken.read(name, value)


def _read(where: str, read: Callable[[], object]) -> object:
    try:
        return read()
    except MillraceError as error:
        said = f"{where}: {error.message}"
        raise Invalid(said, field=error.field, limit=error.limit) from error


def _read_quota(found: dict[str, tuple[object, str]]) -> Quota:
    for name, (value, where) in found.items():
        _read(where, partial(declared.read_quota, {name: value}))
    given = declared.read_quota({name: value for name, (value, _) in found.items()})
    return msgspec.structs.replace(DEFAULT_QUOTA, **{name: getattr(given, name) for name in found})


def _read_engine(found: dict[str, tuple[object, str]]) -> Settings:
    given: dict[str, Any] = {name: value for name, (value, _) in found.items()}
    try:
        return Settings(**given)
    except MillraceError as error:
        where = found[error.field][1] if error.field in found else "[engine]"
        said = f"{where}: {error.message}"
        raise Invalid(said, field=error.field, limit=error.limit) from error


def _unknown(name: str, what: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    near = get_close_matches(name, list(known), n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    kind = f"setting of {what}" if what in ("engine", "quota") else what
    return f"{check.shown(name)} is no {kind}; {hint}"


# --- Safe -----------------------------------------------------------------------------------------


def check_safety(settings: ServerSettings) -> list[str]:
    """See that nobody is let in who should not be; returns what an operator should know.

    Raises:
        Invalid: strangers could get in, or overhear a token; the error says what to do.
    """
    warnings: list[str] = []
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        missing = "tls_key" if settings.tls_key is None else "tls_certificate"
        raise Invalid(f"{missing} is missing: a certificate and its key go together", field=missing)
    if settings.tls_client_ca is not None and not settings.is_tls:
        raise Invalid(
            "tls_client_ca says nothing without tls_certificate and tls_key", field="tls_client_ca"
        )
    if not settings.listen:
        raise Invalid("listen names no address", field="listen")
    open_ = [address for address in settings.addresses if not address.is_loopback]
    if open_ and settings.anonymous:
        raise Invalid(
            f"listen has {open_[0]}, which others can reach, and anonymous lets in whoever says "
            "nothing of who they are; set anonymous = false, and give out tokens",
            field="anonymous",
        )
    if open_ and not settings.is_tls:
        if not settings.plain:
            raise Invalid(
                f"listen has {open_[0]}, which others can reach, and without TLS they could "
                "overhear tokens; name tls_certificate and tls_key, listen at 127.0.0.1, or set "
                "plain = true where the network itself keeps strangers out",
                field="listen",
            )
        warnings.append(f"tokens cross the network to {open_[0]} without TLS (plain = true)")
    if settings.anonymous:
        warnings.append("whoever has an account on this machine is let in without a token")
    return warnings


# --- Reload ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reload:
    """What became other, by what it takes to be in force."""

    now: tuple[str, ...]
    restart: tuple[str, ...]


def compare(old: ServerSettings, new: ServerSettings) -> Reload:
    """Which settings differ: those in force at once, and those that wait for a restart."""
    now: list[str] = []
    restart: list[str] = []
    for one in dataclasses.fields(ServerSettings):
        if getattr(old, one.name) == getattr(new, one.name):
            continue
        about = FIELDS.get(one.name)
        is_live = about.is_live if about is not None else one.name in _LIVE_TABLES
        if one.name in ("tls_certificate", "tls_key"):
            # Another certificate is taken up at once; whether HTTPS is spoken is not changed so.
            is_live = old.is_tls and new.is_tls
        (now if is_live else restart).append(one.name)
    return Reload(tuple(now), tuple(restart))


def reloaded(old: ServerSettings, new: ServerSettings) -> ServerSettings:
    """The old settings with those of the new ones that are in force at once."""
    return dataclasses.replace(old, **{name: getattr(new, name) for name in compare(old, new).now})


def table() -> str:
    """The settings as a table in Markdown; the guide has it."""
    lines = ["| setting | takes | default | at once | what it is |", "|---|---|---|---|---|"]
    settings = ServerSettings()
    for name, about in FIELDS.items():
        value = getattr(settings, name)
        live = "yes" if about.is_live else "restart"
        lines.append(
            f"| `{name}` | {about.taken.words} | {_shown(value)} | {live} | {about.what} |"
        )
    return "\n".join(lines)


def _shown(value: object) -> str:
    match value:
        case None | "" | ():
            return "–"
        case bool():
            return f"`{str(value).lower()}`"
        case tuple():
            return "; ".join(f"`{one}`" for one in value)
        case _:
            return f"`{value}`"
