"""Commands that are safe to retry after a lost connection: applied twice they have the same effect.

Lease calls are: messages leased by a lost answer are delivered again when their lease expires.
"""

from __future__ import annotations

from typing import assert_never

from millrace.core.commands import (
    ApplyTransaction,
    AwaitCursor,
    Command,
    CommitCursor,
    Configure,
    CreateQueue,
    Delete,
    DeleteCursor,
    DeleteQueue,
    Discard,
    DropStage,
    EndQuarantine,
    Explain,
    Extend,
    InitCatalog,
    LeaseFromShards,
    LeaseMessages,
    ListHolders,
    Locate,
    Mend,
    MoveDeadLetters,
    NextSnapshot,
    OpenCursor,
    Pin,
    Publish,
    PublishStaged,
    Purge,
    Quarantine,
    Release,
    Replace,
    ResetCursor,
    Rewind,
    Settle,
    SnapshotShards,
    Stage,
    Tick,
    Unpin,
)
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


def is_retryable(command: Command) -> bool:
    """Return True if repeating a command does no harm and returns the first answer."""
    match command:
        case Publish(numbered=numbered) | PublishStaged(numbered=numbered):
            return numbered is not None
        case Stage(number=number):
            return number > 0
        case ApplyTransaction(parts=parts):
            return all(is_retryable(part) for _, part in parts)
        case (
            LeaseMessages()
            | LeaseFromShards()
            | Settle()
            | Release()
            | Extend()
            | Discard()
            | Explain()
            | ListHolders()
            | OpenCursor()
            | NextSnapshot()
            | SnapshotShards()
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
            | MoveDeadLetters()
            | Forward()
            | Tick()
            | InitCatalog()
            | Quarantine()
            | Mend()
            | EndQuarantine()
        ):
            return False
        case _:
            assert_never(command)
