"""Which commands may be asked again after a lost connection: applied once or twice is the same.

A lease call may: what the first one handed out, if it did, is nobody's until its time is over.
"""

from __future__ import annotations

from typing import assert_never

from millrace.core.across_commands import LeaseAcross, SnapshotAcross
from millrace.core.commands import (
    AwaitCursor,
    Bury,
    Command,
    CommitCursor,
    Configure,
    CreateQueue,
    DeleteCursor,
    DeleteQueue,
    Discard,
    DropStage,
    Explain,
    Extend,
    Found,
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
    Tick,
    Transaction,
    Unpin,
)
from millrace.core.holder import ListHolders
from millrace.core.leased_commands import Replace
from millrace.core.partition_commands import Delete
from millrace.core.quarantine_commands import EndQuarantine, Mend, Quarantine
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
    Forward,
    Subscribe,
    Unsubscribe,
)


def may_repeat(command: Command) -> bool:
    """Whether asking again does no harm, and is answered as the first time would have been."""
    match command:
        case Publish(numbered=numbered) | PublishStaged(numbered=numbered):
            return numbered is not None
        case Stage(number=number):
            return number > 0
        case Transaction(parts=parts):
            return all(may_repeat(part) for _, part in parts)
        case (
            Lease()
            | LeaseAcross()
            | Settle()
            | Release()
            | Extend()
            | Discard()
            | Explain()
            | ListHolders()
            | OpenCursor()
            | NextSnapshot()
            | SnapshotAcross()
            | AwaitCursor()
            | CommitCursor()
            | ResetCursor()
            | Locate()
            | Pin()
            | Unpin()
            | Configure()
            | OpenSession()
            | ResumeSession()
            | Receive()
            | SuspectSession()
            | CreateQueue()
            | CreateTopic()
            | ConfigureTopic()
            | Subscribe()
            | ConfigureSubscription()
        ):
            return True
        case (
            Replace()
            | Delete()
            | Purge()
            | Rewind()
            | DropStage()
            | DeleteCursor()
            | DeleteQueue()
            | DeleteTopic()
            | Unsubscribe()
            | GrantCredit()
            | CloseSession()
            | Bury()
            | Forward()
            | Tick()
            | Found()
            | Quarantine()
            | Mend()
            | EndQuarantine()
        ):
            return False
        case _:
            assert_never(command)
