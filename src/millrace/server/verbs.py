"""Which verb each call needs, and of what kind of shard each command may be asked.

What is not named here is refused. In the space `system` nobody does anything without `admin`.
"""

from __future__ import annotations

from millrace.core.across_commands import LeaseAcross, SnapshotAcross
from millrace.core.commands import (
    AwaitCursor,
    CommitCursor,
    Configure,
    CreateQueue,
    DeleteCursor,
    DeleteQueue,
    Discard,
    DropStage,
    Explain,
    Extend,
    Lease,
    Locate,
    NextSnapshot,
    OpenCursor,
    Pin,
    Publish,
    PublishStaged,
    Purge,
    Release,
    ResetCursor,
    Rewind,
    Settle,
    Stage,
    Unpin,
)
from millrace.core.holder import ListHolders
from millrace.core.leased_commands import Replace
from millrace.core.model import ShardId
from millrace.core.partition_commands import Delete
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
from millrace.server.access import SYSTEM, VERBS, Principal, Rule, Verb

VERB_OF: dict[type, Verb] = {
    Publish: "publish",
    Stage: "publish",
    PublishStaged: "publish",
    DropStage: "publish",
    Lease: "work",
    LeaseAcross: "work",
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
    SnapshotAcross: "read",
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
"""Of each command; of a transaction, those of its parts."""

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
    calls.Arrive: ("publish", "read"),
    calls.ListTrouble: ("read", "manage"),
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
"""Of the other calls: one of these is enough. Of a list, each name for itself."""

TOLD = frozenset({Release, Unpin, CloseSession, SuspectSession})
"""Commands of which nobody hears what became of them: they give back, and nothing else. All others
are asked, so that whatever is noted, counted or bounded of them is."""

OF_TOPICS = frozenset({Publish, Subscribe, ConfigureSubscription, Unsubscribe})
"""Commands that may be asked of a topic."""

JUDGED_BY_NAME = frozenset({Publish, Lease, Settle, Release, Extend, Discard})
"""Commands that are allowed or not by nothing but the name of the shard."""

OF_TOPICS_ALONE = frozenset({Subscribe, ConfigureSubscription, Unsubscribe})
"""And those of them that no queue takes."""

OWNER = Principal("owner", (Rule(True, VERBS, "*", "*"),))
"""Whoever runs the engine: its own processes, and those of the same user on the same machine."""


class Caller:
    """Someone who asks, by calls of which one of several verbs is enough."""

    __slots__ = ("is_server", "passed", "who")

    def __init__(self, who: Principal, *, is_server: bool = False) -> None:
        """`is_server`: a process of this server, which writes headers and notes that no client may
        (`client/reserved.py`)."""
        self.who = who
        self.is_server = is_server
        self.passed: set[tuple[ShardId, type]] = set()
        """Commands that they may ask of shards, of those that were judged: both stay as they are,
        the rules of a caller and the name of a shard."""

    def may(self, verbs: tuple[Verb, ...], space: str, name: str) -> bool:
        """Whether one of the verbs is allowed."""
        return any(self.who.may(verb, space, name) for verb in verbs)

    def check(self, verbs: tuple[Verb, ...], space: str, name: str) -> None:
        """See that one of the verbs is allowed.

        Raises:
            Denied: none is.
        """
        if not self.may(verbs, space, name):
            wanted = "admin" if space == SYSTEM else " or ".join(verbs)
            raise Denied(
                f"{self.who.name} may not {wanted} {space}/{name}; ask who administers the "
                f"server for a rule such as 'allow {wanted.split(' or ')[0]} {space}/{name}'",
                field="verb",
            )

    def check_whole(self, verbs: tuple[Verb, ...]) -> None:
        """See that one of the verbs is allowed for the whole server, and nothing is denied.

        Raises:
            Denied: none is, or something is denied.
        """
        if not any(self.who.may_whole(verb) for verb in verbs):
            wanted = " or ".join(verbs)
            raise Denied(
                f"{self.who.name} may not {wanted} the whole server: that takes a rule such as "
                f"'allow {verbs[0]} */*', and no rule that denies anything",
                field="verb",
            )
