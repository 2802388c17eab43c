"""The verbs that each call needs, and the kinds of shards that each command accepts.

Calls that are missing here are refused. In the space `system` every call needs `admin`.
"""

from __future__ import annotations

from millrace.core.commands import (
    AwaitCursor,
    CommitCursor,
    Configure,
    CreateQueue,
    Delete,
    DeleteCursor,
    DeleteQueue,
    Discard,
    DropStage,
    Explain,
    Extend,
    LeaseFromShards,
    LeaseMessages,
    ListHolders,
    Locate,
    NextSnapshot,
    OpenCursor,
    Pin,
    Publish,
    PublishStaged,
    Purge,
    Release,
    Replace,
    ResetCursor,
    Rewind,
    Settle,
    SnapshotShards,
    Stage,
    Unpin,
)
from millrace.core.model import ShardId
from millrace.core.session_commands import (
    CloseSession,
    GrantCredit,
    OpenSession,
    Receive,
    ResumeSession,
    SuspectSession,
)
from millrace.core.topic_commands import (
    ConfigureSubscription,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    Subscribe,
    Unsubscribe,
)
from millrace.errors import Denied
from millrace.rpc import calls
from millrace.server.auth.access import (
    SYSTEM,
    VERBS,
    Principal,
    Rule,
    Verb,
)

VERB_OF: dict[type, Verb] = {
    Publish: "publish",
    Stage: "publish",
    PublishStaged: "publish",
    DropStage: "publish",
    LeaseMessages: "work",
    LeaseFromShards: "work",
    Settle: "work",
    Release: "work",
    Extend: "work",
    Discard: "work",
    Replace: "work",
    Delete: "work",
    OpenSession: "work",
    ResumeSession: "work",
    Receive: "work",
    GrantCredit: "work",
    SuspectSession: "work",
    CloseSession: "work",
    Explain: "read",
    ListHolders: "read",
    OpenCursor: "read",
    NextSnapshot: "read",
    SnapshotShards: "read",
    AwaitCursor: "read",
    CommitCursor: "read",
    ResetCursor: "read",
    DeleteCursor: "read",
    Locate: "read",
    Pin: "read",
    Unpin: "read",
    Purge: "manage",
    Rewind: "manage",
    Configure: "manage",
    Subscribe: "manage",
    ConfigureSubscription: "manage",
    Unsubscribe: "manage",
    CreateQueue: "manage",
    DeleteQueue: "manage",
    CreateTopic: "manage",
    ConfigureTopic: "manage",
    DeleteTopic: "manage",
}
"""Verb of each command; a transaction needs the verbs of its parts."""

VERBS_OF: dict[type, tuple[Verb, ...]] = {
    calls.ReadRows: ("read",),
    calls.ReadLeased: ("work", "read"),
    calls.ReadBatches: ("read",),
    calls.Peek: ("read",),
    calls.ReadCells: ("read", "manage"),
    calls.FindNumber: ("publish", "read"),
    calls.FindQueue: VERBS,
    calls.FindTopic: VERBS,
    calls.ListQueues: VERBS,
    calls.ListSpaces: VERBS,
    calls.ListTopics: VERBS,
    calls.ListSubscriptions: ("read", "manage"),
    calls.ReadTopic: ("read", "manage"),
    calls.AwaitForwarding: ("publish", "read"),
    calls.ListForwardErrors: ("read", "manage"),
    calls.ReadSpec: ("read", "manage"),
    calls.ReadMeta: ("read", "manage"),
    calls.FindSeq: ("read", "manage"),
    calls.FindName: VERBS,
    calls.BackUp: ("admin",),
    calls.ReadBackup: ("admin",),
    calls.Unfollow: ("admin",),
    calls.ReadHealth: ("admin",),
    calls.Repair: ("admin",),
    calls.ReadGauges: ("watch",),
}
"""Verbs of the other calls, one of which is enough. A list contains the names that they allow."""

TOLD = frozenset({Release, Unpin, CloseSession, SuspectSession})
"""Commands that may be sent without waiting for an answer: they only return something. All others
have an answer, so that they are audited, counted and limited."""

OF_TOPICS = frozenset({Publish, Subscribe, ConfigureSubscription, Unsubscribe})
"""Commands that a topic accepts."""

JUDGED_BY_NAME = frozenset({Publish, LeaseMessages, Settle, Release, Extend, Discard})
"""Commands whose authorization depends on the shard's name alone."""

OF_TOPICS_ALONE = frozenset({Subscribe, ConfigureSubscription, Unsubscribe})
"""Commands that a topic accepts and a queue does not."""

OWNER = Principal("owner", (Rule(True, VERBS, "*", "*"),))
"""Principal of the user who runs the engine: its processes, and those of the same user on the same
machine."""


class Caller:
    """The sender of calls, authorized if one of several verbs is allowed."""

    __slots__ = ("is_server", "passed", "who")

    def __init__(self, who: Principal, *, is_server: bool = False) -> None:
        """`is_server`: a process of this server, which may write headers and notes that clients may
        not (`client/reserved.py`)."""
        self.who = who
        self.is_server = is_server
        self.passed: set[tuple[ShardId, type]] = set()
        """Cache of allowed commands by shard; it is valid for ever, because neither the rules of a
        caller nor the name of a shard change."""

    def may(self, verbs: tuple[Verb, ...], space: str, name: str) -> bool:
        """Return whether one of the verbs is allowed."""
        return any(self.who.may(verb, space, name) for verb in verbs)

    def check(self, verbs: tuple[Verb, ...], space: str, name: str) -> None:
        """Check that one of the verbs is allowed.

        Raises:
            Denied: none of them is.
        """
        if not self.may(verbs, space, name):
            wanted = "admin" if space == SYSTEM else " or ".join(verbs)
            raise Denied(
                f"{self.who.name} may not {wanted} {space}/{name}; ask who administers the "
                f"server for a rule such as 'allow {wanted.split(' or ')[0]} {space}/{name}'",
                field="verb",
            )

    def check_whole(self, verbs: tuple[Verb, ...]) -> None:
        """Check that one of the verbs is allowed on the whole server, and that no rule denies
        anything.

        Raises:
            Denied: none is allowed, or something is denied.
        """
        if not any(self.who.may_whole(verb) for verb in verbs):
            wanted = " or ".join(verbs)
            raise Denied(
                f"{self.who.name} may not {wanted} the whole server: that takes a rule such as "
                f"'allow {verbs[0]} */*', and no rule that denies anything",
                field="verb",
            )
