"""Settings of a server: immutable values from a file, the environment and flags.

Rule 1: a flag overrides the environment, which overrides the file, which overrides the default.
Rule 2: an unknown name is an error that suggests the closest known one; nothing is guessed.
Rule 3: unsafe settings, which would admit strangers, are refused before anything is opened.
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
from millrace.core import validate
from millrace.errors import Invalid, MillraceError
from millrace.server.auth.access import DEFAULT_QUOTA, Quota, parse_rule
from millrace.server.auth.index import ANONYMOUS_RULES
from millrace.server.auth.secret_file import ACCESS_KEY_FILE, ADMIN_TOKEN_FILE
from millrace.server.aws.names import AccountRegion
from millrace.server.aws.queue_info import SqsLimits
from millrace.server.http.listener import ListenAddress, parse_address
from millrace.server.process import declarations
from millrace.server.process.declarations import DeclaredQueue, DeclaredTopic, DeclaredUser
from millrace.server.process.setting import (
    FLAG,
    FOLDER,
    PATH,
    TEXT,
    URL,
    SettingInfo,
    SettingType,
    from_text,
    one_of,
    seconds,
    setting,
    several,
    shaped,
    share,
    whole,
)
from millrace.server.process.settings_file import ConfigFile, read_file
from millrace.server.sns.endpoint_policy import PUBLIC, read_place
from millrace.settings import Settings

PREFIX = "MILLRACE_"
"""Prefix of settings in the environment."""

CONFIG_VARIABLE = f"{PREFIX}CONFIG"

ADDRESSES = several("addresses", lambda name, text: str(parse_address(text, name)))
ACCOUNT = shaped("[0-9]{12}", "twelve digits")
REGION = shaped("[a-z0-9-]{1,64}", "a region such as eu-central-1")
ENDPOINTS = several("any, public, networks and hosts", read_place)
RULES = several("rules", lambda _, text: str(parse_rule(text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server; docs/guide/server.md contains them as a table."""

    data: Path = setting(Path("millrace-data"), FOLDER, "The folder with the queues.")
    listen: tuple[str, ...] = setting(
        ("127.0.0.1:7070",), ADDRESSES, "Addresses and ports for HTTP; port 0 picks a free one."
    )
    socket: bool = setting(
        True, FLAG, "Share the folder with other processes of this user, through a socket in it."
    )
    frontends: int = setting(
        0,
        whole(0, limits.FRONTENDS_MAX),
        "Number of front-end processes for HTTP; 0: the engine's process serves HTTP.",
    )
    tls_certificate: Path | None = setting(
        None,
        PATH,
        "Certificate chain of the server, as PEM; enables HTTPS.",
        live=True,
    )
    tls_key: Path | None = setting(
        None,
        PATH,
        "Private key of the certificate, as PEM, not encrypted, mode 0600.",
        live=True,
    )
    tls_client_ca: Path | None = setting(
        None, PATH, "Require client certificates signed by one of these authorities (mutual TLS)."
    )
    plain: bool = setting(
        False,
        FLAG,
        "Allow HTTP without TLS on addresses beyond loopback; tokens can be intercepted.",
    )
    anonymous: bool = setting(
        False, FLAG, "Accept programs on this machine without a token; loopback only.", live=True
    )
    anonymous_rules: tuple[str, ...] = setting(
        ANONYMOUS_RULES, RULES, "Rules for programs without a token.", live=True
    )
    admin_token_file: Path | None = setting(
        None,
        PATH,
        f"File with the token of the first administrator. [{ADMIN_TOKEN_FILE} in the folder]",
    )
    key_file: Path | None = setting(
        None,
        PATH,
        f"File from which secrets of access keys are derived. [{ACCESS_KEY_FILE} in the folder]",
    )
    aws_account: str = setting(
        "000000000000", ACCOUNT, "AWS account whose queues are in the space `default`."
    )
    aws_region: str = setting(
        "us-east-1", REGION, "AWS region whose queues are in the space `default`."
    )
    sqs_message_bytes_max: int = setting(
        limits.SQS_MESSAGE_BYTES_MAX,
        whole(limits.SQS_MESSAGE_BYTES_MIN, limits.BODY_BYTES_MAX),
        "Maximum bytes of an SQS message, and of all messages of a batch.",
    )
    sqs_batch_max: int = setting(
        limits.SQS_BATCH_MAX,
        whole(1, limits.SQS_BATCH_SETTING_MAX),
        "Maximum entries of an SQS batch, and messages of a receive.",
    )
    sqs_in_flight_max: int = setting(
        limits.SQS_IN_FLIGHT_MAX,
        whole(1, limits.IN_FLIGHT_MAX),
        "In-flight limit of queues that SQS creates from then on.",
    )
    sqs_visibility_seconds_max: int = setting(
        limits.SQS_VISIBILITY_SECONDS_MAX,
        whole(1, limits.SQS_VISIBILITY_SECONDS_MAX),
        "Maximum visibility timeout of SQS.",
    )
    sqs_cooldown_seconds: int = setting(
        0,
        whole(0, limits.SQS_COOLDOWN_SECONDS_MAX),
        "Seconds before PurgeQueue, or CreateQueue after DeleteQueue, may be repeated; 60 on AWS.",
    )
    sns_endpoints: tuple[str, ...] = setting(
        (),
        ENDPOINTS,
        "Allowed addresses of SNS endpoints. [public]",
    )
    connections_max: int = setting(
        limits.CONNECTIONS_MAX,
        whole(1, 1_000_000),
        "Maximum number of open connections.",
        live=True,
    )
    body_bytes_max: int = setting(
        limits.HTTP_BODY_BYTES_MAX,
        whole(1024, limits.HTTP_BODIES_BYTES_MAX),
        "Maximum bytes of a request body.",
    )
    stop_seconds: float = setting(
        limits.HTTP_STOP_SECONDS,
        seconds(0, 3600),
        "Grace period of a shutdown for running requests.",
        live=True,
    )
    session_silence_seconds: float = setting(
        limits.SESSION_SILENCE_SECONDS,
        seconds(limits.SESSION_SILENCE_SECONDS_MIN, 3600),
        "Heartbeat timeout of sessions over HTTP.",
        live=True,
    )
    audit_keep: float = setting(
        limits.AUDIT_KEEP_SECONDS,
        seconds(1, 10 * 365 * 86_400),
        "Retention of audit records.",
        live=True,
    )
    log_level: str = setting(
        "info",
        one_of("debug", "info", "warning", "error"),
        "Minimum level of log messages.",
        live=True,
    )
    log_format: str = setting("text", one_of("text", "json"), "Format of log lines.")
    access_log: int = setting(
        0,
        whole(0, 1_000_000),
        "Log one of N requests, and all failed ones; 1: every request, 0: none.",
        live=True,
    )
    statsd: str = setting("", TEXT, "Address of a statsd server, as host:port; empty: none.")
    otlp_endpoint: str = setting(
        "", URL, "Collector for traces and metrics, by OTLP over HTTP; empty: none. Needs `otel`."
    )
    trace_ratio: float = setting(
        1.0,
        share(),
        "Share of traces that start here to record; others follow their sampling flag.",
    )
    quota: Quota = DEFAULT_QUOTA
    """For users without a quota of their own."""
    engine: Settings = field(default_factory=Settings)
    queues: tuple[DeclaredQueue, ...] = ()
    topics: tuple[DeclaredTopic, ...] = ()
    users: tuple[DeclaredUser, ...] = ()

    @property
    def addresses(self) -> list[ListenAddress]:
        """Addresses to listen on."""
        return [parse_address(text, "listen") for text in self.listen]

    @property
    def aws_home(self) -> AccountRegion:
        """The AWS account and region of the queues in the space `default`."""
        return AccountRegion(self.aws_account, self.aws_region)

    @property
    def sqs_bounds(self) -> SqsLimits:
        """Limits of SQS."""
        return SqsLimits(
            self.sqs_message_bytes_max,
            self.sqs_batch_max,
            self.sqs_in_flight_max,
            self.sqs_visibility_seconds_max,
            self.sqs_cooldown_seconds,
        )

    @property
    def sns_places(self) -> tuple[str, ...]:
        """Allowed addresses of SNS endpoints. Public ones by default: by subscribing an endpoint, a
        user could otherwise make the server reach hosts in its private network. That holds for a
        server on loopback too, whose clients may come through a proxy."""
        return self.sns_endpoints or (PUBLIC,)

    @property
    def admin_token_path(self) -> Path:
        """Path of the file with the first administrator's token."""
        return self.admin_token_file or self.data / ADMIN_TOKEN_FILE

    @property
    def key_path(self) -> Path:
        """Path of the file with the master secret of access keys."""
        return self.key_file or self.data / ACCESS_KEY_FILE

    @property
    def is_tls(self) -> bool:
        """True if the server uses HTTPS."""
        return self.tls_certificate is not None


FIELDS: dict[str, SettingInfo] = {
    one.name: one.metadata["about"]
    for one in dataclasses.fields(ServerSettings)
    if "about" in one.metadata
}
"""Settings with a single value."""

ENGINE_FIELDS = tuple(one.name for one in dataclasses.fields(Settings) if one.name != "fork")
"""Settings of the engine, in the table `[engine]`."""

_TABLES = ("quota", "engine", "queues", "topics", "users")
_LIVE_TABLES = ("quota", "queues", "topics", "users")


_RAW = SettingType("a value", lambda _, value: value)


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings and their sources."""

    settings: ServerSettings
    sources: dict[str, str]
    """File and line, variable or flag of each setting that is not the default."""
    warnings: tuple[str, ...] = ()


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> LoadedSettings:
    """Load settings from a file, the environment and flags.

    Without `file`, the variable MILLRACE_CONFIG names it. Flags are given by the names of settings,
    those of the tables as engine_NAME and quota_NAME; text values are parsed as in the environment.

    Raises:
        Invalid: a setting is unknown, has a wrong type, exceeds a limit or is unsafe; the
            error names its source.
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
    return LoadedSettings(settings, sources, tuple(warnings))


def _from_file(
    found: ConfigFile,
    values: dict[str, Any],
    sources: dict[str, str],
    engine: dict[str, tuple[object, str]],
    quota: dict[str, tuple[object, str]],
) -> None:
    tables: dict[str, Callable[..., object]] = {
        "queues": declarations.read_queues,
        "topics": declarations.read_topics,
        "users": declarations.read_users,
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
    """Read settings from the environment; return warnings for names close to a known one.

    Unknown variables are no errors, because others use the prefix too: Kubernetes sets
    MILLRACE_PORT and more for a service of this name.
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


def _given(name: str, taken: SettingType, value: object) -> object:
    return from_text(name, taken, value) if isinstance(value, str) else taken.read(name, value)


def _read(where: str, read: Callable[[], object]) -> object:
    try:
        return read()
    except MillraceError as error:
        said = f"{where}: {error.message}"
        raise Invalid(said, field=error.field, limit=error.limit) from error


def _read_quota(found: dict[str, tuple[object, str]]) -> Quota:
    for name, (value, where) in found.items():
        _read(where, partial(declarations.read_quota, {name: value}))
    given = declarations.read_quota({name: value for name, (value, _) in found.items()})
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
    return f"{validate.shown(name)} is no {kind}; {hint}"


# --- Safety ---------------------------------------------------------------------------------------


def check_safety(settings: ServerSettings) -> list[str]:
    """Check that the settings admit no strangers; return warnings for the operator.

    Raises:
        Invalid: strangers could get access or intercept a token; the error names the remedy.
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
    """Names of changed settings: effective at once, and after a restart."""

    now: tuple[str, ...]
    restart: tuple[str, ...]


def compare(old: ServerSettings, new: ServerSettings) -> Reload:
    """Compare settings: which changes take effect at once, and which after a restart."""
    now: list[str] = []
    restart: list[str] = []
    for one in dataclasses.fields(ServerSettings):
        if getattr(old, one.name) == getattr(new, one.name):
            continue
        about = FIELDS.get(one.name)
        is_live = about.is_live if about is not None else one.name in _LIVE_TABLES
        if one.name in ("tls_certificate", "tls_key"):
            # A new certificate takes effect at once; switching HTTPS on or off does not.
            is_live = old.is_tls and new.is_tls
        (now if is_live else restart).append(one.name)
    return Reload(tuple(now), tuple(restart))


def reloaded(old: ServerSettings, new: ServerSettings) -> ServerSettings:
    """Return the old settings with the changes that take effect at once."""
    return dataclasses.replace(old, **{name: getattr(new, name) for name in compare(old, new).now})


def table() -> str:
    """Return the settings as a Markdown table, which the guide contains."""
    lines = ["| setting | values | default | at once | meaning |", "|---|---|---|---|---|"]
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
