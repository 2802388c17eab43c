"""Transcripts: commands as text in, answers and changes as text out.

A transcript begins with a sentence of purpose (lines that begin with `#`), then has one line per
batch: commands, joined by ` & ` where they are decided together. After `---` comes what happened.

Rows are written `body`, `key=body`, `key!` (a delete), with headers `key=body{name:value,...}`, and
with a priority and a delay of their own `body^9~5s`; `body@x` is of group x. A word `ids:a,,b`
gives the first and the third of them de-duplication ids.
Some words steer the group itself instead of asking something of a queue: `wait 5s`, `hold` (commit
later), `fold`, `crash`, `take_over B 7` (a new history, after the first seven entries), `read`.
"""

from __future__ import annotations

from pyroaring import BitMap64

from millrace.core.answers import MultiShardSnapshot, SnapshotRef
from millrace.core.catalog import queue_key
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
    SpecPart,
    Stage,
    Tick,
    Unpin,
)
from millrace.core.format.block import Block
from millrace.core.model import (
    CATALOG,
    CursorPosition,
    LeaseId,
    NewMessage,
    Seq,
    ShardId,
    StartPoint,
)
from millrace.core.session_commands import (
    Claim,
    CloseSession,
    GrantCredit,
    OpenSession,
    Receive,
    ResumeSession,
    SuspectSession,
)
from millrace.core.spec import Order, QueueSpec
from millrace.core.state.fold import Reader
from tests.support.models.commit_group import Group, Result, history_named
from tests.support.transcript.options import (
    is_option,
    millis,
    most_of,
    notes_of,
)
from tests.support.transcript.rows import (
    aside,
    ids,
    lives,
    numbered,
    rows,
)
from tests.support.transcript.topics import TOPIC_VERBS, topic_command
from tests.support.transcript.wording import (
    say_answer,
    say_batch,
    say_counts,
    say_rows,
    seqs_of,
)

Ask = tuple[ShardId, Command]
SPACE = "default"
DIVIDER = "---"


def run(text: str) -> str:
    """The transcript with what happens now after its divider."""
    given = text.partition(f"\n{DIVIDER}\n")[0].rstrip("\n")
    play = Play()
    out: list[str] = []
    for line in given.splitlines():
        if line.strip() and not line.startswith("#"):
            out += [f"> {line}", *play.do(line)]
    return "\n".join([given, DIVIDER, *out]) + "\n"


class Play:
    """A group that is driven by text."""

    def __init__(self) -> None:
        self.group = Group()
        self._names: dict[ShardId, str] = {CATALOG: "catalog"}
        self._refs: dict[tuple[str, str], SnapshotRef] = {}

    def do(self, line: str) -> list[str]:
        """Do one line; returns what is to be said about it."""
        out = self._steer(line.split())
        if out is None:
            out = self._ask([part.split() for part in line.split(" & ")])
        if not self.group.pending:
            self.group.check()
        return out

    def _ask(self, parts: list[list[str]]) -> list[str]:
        asks = [self._command(words) for words in parts]
        before = len(self.group.log) + len(self.group.pending)
        answers = self.group.ask(*asks)
        for words, answer in zip(parts, answers, strict=True):
            self._notice(words, answer)
        out = [line for answer in answers for line in say_answer(answer, self.group.now)]
        entries = [*self.group.committed(), *self.group.pending]
        for entry in entries[before:]:
            for batch in entry.batches:
                out += say_batch(batch, self._names.get(batch.shard, "?"))
        return out

    def _notice(self, words: list[str], answer: Result) -> None:
        if words[0] in ("create", "create_topic") and not isinstance(answer, Exception):
            for at, shard in enumerate(shards := self._shards(words[1])):
                self._names[shard] = words[1] if len(shards) == 1 else f"{words[1]}/{at}"
        if words[0] == "next_across" and isinstance(answer, MultiShardSnapshot):
            for at, ref in enumerate(answer.refs):
                self._refs[f"{words[1]}/{at}", words[2]] = ref
        if words[0] == "next" and isinstance(answer, SnapshotRef):
            self._refs[words[1], words[2]] = answer

    # --- Words that ask -----------------------------------------------------------------------

    def _shard(self, name: str) -> ShardId:
        catalog = self.group.view(CATALOG)
        assert catalog is not None
        queue, _, at = name.partition("/")
        cell = catalog.queues.get(queue_key(SPACE, queue))
        if cell is not None:
            return ShardId(cell.shards[int(at or 0)])
        topic = catalog.topics.get(queue_key(SPACE, name))
        if topic is not None:
            return ShardId(topic.shard)
        gone = [shard for shard, known in self._names.items() if known == name]
        return gone[-1] if gone else ShardId(99)

    def _shards(self, name: str) -> tuple[ShardId, ...]:
        catalog = self.group.view(CATALOG)
        cell = catalog.queues.get(queue_key(SPACE, name)) if catalog else None
        return tuple(map(ShardId, cell.shards)) if cell else (self._shard(name),)

    def _command(self, words: list[str]) -> Ask:
        if words[0] == "transaction":
            # Its parts are joined by " | ".
            parts = [part.split() for part in " ".join(words[1:]).split(" | ")]
            return CATALOG, ApplyTransaction(tuple(self._command(part) for part in parts))  # type: ignore[misc]
        verb, name, rest = words[0], words[1], words[2:]
        options = dict(word.split(":", 1) for word in rest if is_option(word))
        plain = [word for word in rest if not is_option(word)]
        if verb in ("create", "delete"):
            return CATALOG, (
                CreateQueue(
                    SPACE,
                    name,
                    _part(plain, options) or _spec(plain, options),
                    int(options["shards"]) if "shards" in options else None,
                    options.get("route"),  # type: ignore[arg-type]
                )
                if verb == "create"
                else DeleteQueue(SPACE, name)
            )
        if verb in TOPIC_VERBS:
            return topic_command(self.group, self._shard(name), verb, name, rest)
        return self._shard(name), self._shard_command(verb, name, plain, options)

    def _shard_command(
        self, verb: str, name: str, words: list[str], options: dict[str, str]
    ) -> Command:
        match verb:
            case "configure":
                return Configure(_part(words, options) or _spec(words, options), most_of(words))
            case "publish":
                return Publish(
                    rows(words), numbered(options), aside(words), *ids(options), lives(options)
                )
            case "block":
                block = Block.of_messages(rows(words))
                return Publish(
                    block, numbered(options), aside(words), *ids(options), lives(options)
                )
            case "lease_across":
                for_ms = millis(options.get("for", "30s"))
                return LeaseFromShards(self._shards(name), int(words[0]), for_ms)
            case "lease":
                lease_ms = millis(options.get("for", "30s"))
                attempt = options.get("attempt", "")
                return LeaseMessages(int(words[0]), lease_ms, attempt, together="together" in words)
            case "open":
                return _open_session(words, options)
            case "receive" | "grant" | "suspect" | "resume" | "close":
                return self._session_command(verb, name, words, options)
            case "settle" | "release" | "extend" | "discard" | "replace":
                return self._leased_command(verb, words, options)
            case "bury":
                return self._bury(self._shard(name), words)
            case "delete_ids":
                return Delete(seqs_of(words[0]))
            case "purge":
                return Purge("forgets_ids" in words)
            case "rewind":
                return Rewind(_start(words[0]))
            case "holders":
                return ListHolders()
            case "explain":
                group = words[1].encode() if len(words) > 1 else None
                return Explain(Seq(int(words[0])), group)
            case "stage":
                return Stage(
                    words[0],
                    Block.of_messages(rows(words[1:])),
                    aside(words[1:]),
                    lives(options),
                    int(options.get("number", 0)),
                )
            case "publish_staged":
                return PublishStaged(tuple(words), numbered(options))
            case "drop":
                return DropStage(words[0])
            case "tick":
                return Tick()
            case "quarantine":
                seqs = seqs_of(words[0])
                return Quarantine(seqs.min(), seqs.max(), " ".join(words[1:]))
            case "mend":
                ranges = [seqs_of(word) for word in words]
                return Mend(tuple((seqs.min(), seqs.max()) for seqs in ranges))
            case "end_quarantine":
                return EndQuarantine()
            case _:
                return self._follow_command(verb, name, words, options)

    def _leased_command(self, verb: str, words: list[str], options: dict[str, str]) -> Command:
        lease, seqs = LeaseId(int(words[0])), seqs_of(words[1])
        history, on_time = self._history(options, self.group.history), "on_time" in words
        any_delivery = "any_delivery" in words
        if verb == "settle":
            return Settle(lease, seqs, history, on_time, any_delivery)
        if verb == "release":
            delay = millis(options.get("delay", "0s"))
            return Release(lease, seqs, history, "failed" in words, delay, on_time=on_time)
        if verb == "discard":
            return Discard(lease, seqs, history)
        if verb == "replace":
            [message] = rows(words[2:])
            return Replace(lease, seqs, history, message, millis(options.get("for", "30s")))
        most_ms = millis(options.get("within", "0s"))
        return Extend(lease, seqs, history, millis(options["for"]), on_time, most_ms, any_delivery)

    def _session_command(
        self, verb: str, name: str, words: list[str], options: dict[str, str]
    ) -> Command:
        """Of the newest claim, unless another one is named."""
        number = int(words[0])
        view = self.group.view(self._shard(name))
        cell = view.sessions.get(number) if view else None
        history = self._history(options, self.group.history)
        claim = Claim(
            number,
            history,
            int(options.get("claim", cell.claim if cell else 1)),
            int(options.get("epoch", cell.epoch if cell else 1)),
        )
        match verb:
            case "receive":
                expected = int(options.get("from", cell.next if cell else 0))
                return Receive(claim, expected, int(options.get("count", 100)))
            case "grant":
                return GrantCredit(claim, int(words[1]), "drain" in words)
            case "suspect":
                return SuspectSession(claim)
            case "resume":
                return ResumeSession(number, history)
            case _:
                seen = int(options.get("seen", cell.next if cell else 0))
                return CloseSession(claim, seen, keep="keep" in words)

    def _bury(self, shard: ShardId, words: list[str]) -> MoveDeadLetters:
        """These dead letters, or all that there are."""
        view = self.group.view(shard)
        seqs = seqs_of(words[0]) if words else view.doomed if view else BitMap64()
        rows = self.group.store.rows(shard, seqs)
        return MoveDeadLetters(
            tuple(
                (row.seq, row.time_ms, NewMessage(row.body, row.key, row.headers)) for row in rows
            )
        )

    def _follow_command(
        self, verb: str, name: str, words: list[str], options: dict[str, str]
    ) -> Command:
        match verb:
            case "cursor":
                return OpenCursor(
                    words[0],
                    self._start(words[1]),
                    "retain" in words,
                    claims="claims" in words,
                    cursor=int(options.get("id", 0)),
                )
            case "next":
                return self._next(name, words[0], int(options.get("after", 0)), options)
            case "next_across":
                after = [int(seq) for seq in options.get("after", "").split(",") if seq]
                shards = self._shards(name)
                return SnapshotShards(
                    tuple(
                        (shard, self._next(f"{name}/{at}", words[0], seq, options))
                        for at, (shard, seq) in enumerate(
                            zip(shards, after or [0] * len(shards), strict=True)
                        )
                    )
                )
            case "commit":
                return CommitCursor(
                    words[0],
                    self._cursor_id(name, words[0], options),
                    self._position(name, words, options),
                    self._claim(name, words[0], options),
                )
            case "reset":
                return ResetCursor(words[0], self._start(words[1]), claims="claims" in words)
            case "locate":
                return Locate(self._place(words[0]) if words else None)
            case "await":
                return AwaitCursor(words[0], self._place(words[1]))
            case "forget":
                return DeleteCursor(words[0])
            case "pin":
                return Pin(millis(options.get("for", "60s")))
            case "unpin":
                return self._unpin(name, int(words[0]), options)
            case _:
                raise ValueError(f"no such word: {verb}")

    def _start(self, word: str) -> StartPoint | int | CursorPosition:
        return self._place(word) if "@" in word else _start(word)

    def _place(self, word: str) -> CursorPosition:
        """A position: its history, its seq, and the snapshot that it is in, as A@4 or A@4,2,6."""
        history, _, rest = word.partition("@")
        seq, *snapshot = map(int, rest.split(","))
        start, end = snapshot or (seq, seq)
        return CursorPosition(history_named(history), seq, start, end)

    def _next(self, name: str, cursor: str, after: int, options: dict[str, str]) -> NextSnapshot:
        return NextSnapshot(
            cursor,
            self._cursor_id(name, cursor, options),
            after,
            millis(options.get("for", "60s")),
            self._history(options, b""),
            self._claim(name, cursor, options),
            claims=options.get("claim") == "new",
        )

    def _claim(self, name: str, cursor: str, options: dict[str, str]) -> bytes:
        """The claim with this number, or the present one."""
        if "claim" not in options:
            view = self.group.view(self._shard(name))
            cell = view.cursors.get(cursor) if view else None
            return cell.claim if cell else b""
        if options["claim"] == "new":
            return b""
        return self.group.history + int(options["claim"]).to_bytes(8, "big")

    def _unpin(self, name: str, pin: int, options: dict[str, str]) -> Unpin:
        """The pin that has the number now, unless another one's batch is named."""
        view = self.group.view(self._shard(name))
        cell = view.pins.get(pin) if view else None
        index = int(options.get("batch", cell.index if cell else 0))
        cursor = options.get("cursor", "")
        claim = self._claim(name, cursor, options)
        return Unpin(pin, self._history(options, self.group.history), index, cursor, claim)

    def _history(self, options: dict[str, str], otherwise: bytes) -> bytes:
        return history_named(options["of"]) if "of" in options else otherwise

    def _cursor_id(self, name: str, cursor: str, options: dict[str, str]) -> int:
        view = self.group.view(self._shard(name))
        cell = view.cursors.get(cursor) if view else None
        return int(options.get("id", cell.id if cell else 0))

    def _position(self, name: str, words: list[str], options: dict[str, str]) -> CursorPosition:
        """Within the snapshot that the cursor was given last, unless another one is named."""
        ref = self._refs.get((name, words[0]))
        start, end = (ref.start, ref.boundary) if ref else (0, 0)
        return CursorPosition(
            self._history(options, self.group.history),
            int(words[1]) if len(words) > 1 else end,
            int(options.get("start", start)),
            int(options.get("end", end)),
        )

    # --- Words that steer ----------------------------------------------------------------------

    def _steer(self, words: list[str]) -> list[str] | None:
        """Do what is asked of the group itself; None if it is not."""
        group = self.group
        match words:
            case ["wait", time]:
                group.now += millis(time)
            case ["hold"]:
                group.hold = True
            case ["fold"]:
                group.fold()
                group.hold = False
            case ["fold", count]:
                group.fold(int(count))
            case ["crash"]:
                group.crash()
            case ["take_over", history]:
                group.take_over(history)
            case ["take_over", history, upto]:
                group.take_over(history, int(upto))
            case ["read", name, *rest]:
                return self._read(self._shard(name), rest)
            case ["counts", name]:
                meta = group.store.meta(self._shard(name))
                return say_counts(meta) if meta else ["no such queue"]
            case ["log"]:
                return [f"{len(group.log)} entries"]
            case _:
                return None
        return []

    def _read(self, shard: ShardId, words: list[str]) -> list[str]:
        options = dict(word.split(":", 1) for word in words if ":" in word)
        meta = self.group.store.meta(shard)
        reader = Reader(int(options["pin"]) if "pin" in options else None, "retain" in words)
        upto = int(options.get("upto", meta.last_seq if meta else 0))
        return say_rows(self.group.store.scan(shard, int(options.get("after", 0)), upto, reader))


# --- Small words -------------------------------------------------------------------------------


def _open_session(words: list[str], options: dict[str, str]) -> OpenSession:
    """A session with so much credit: refilled by settling, or `granted`."""
    return OpenSession(
        int(words[0]),
        "granted" not in words,
        millis(options.get("for", "0s")),
        millis(options.get("suspect", "60s")),
    )


def _start(word: str) -> StartPoint | int:
    return int(word) if word.isdigit() else StartPoint(word)


def _spec(words: list[str], options: dict[str, str]) -> QueueSpec:
    return QueueSpec(
        keyed="keyed" in words,
        retention="log" if "log" in words else "work",
        keep_deletes_ms=millis(options.get("keep_deletes", "1d")),
        retry_min_ms=millis(options.get("retry_min", "0s")),
        retry_max_ms=millis(options.get("retry_max", "0s")),
        max_failures=int(options.get("max_failures", "0")),
        max_deliveries=int(options.get("max_deliveries", "0")),
        dead_letter=f"{SPACE}/{options['dead_letter']}" if "dead_letter" in options else "",
        delay_ms=millis(options.get("delay", "0s")),
        dedup_ms=millis(options.get("dedup", "5m")),
        dedup_by_body="dedup_by_body" in words,
        ttl_ms=millis(options.get("ttl", "0s")),
        dead_letter_expired="expired" in words,
        keep_ms=millis(options.get("keep", "0s")),
        keep_bytes=int(options.get("keep_bytes", "0")),
        keep_messages=int(options.get("keep_messages", "0")),
        retain_max_ms=millis(options.get("retain_max", "0s")),
        retain_max_bytes=int(options.get("retain_max_bytes", "0")),
        pin_max_bytes=int(options.get("pin_max_bytes", "0")),
        order=_ORDERS[options.get("order", "none")],
        group_in_flight=int(options.get("group_in_flight", "0")),
        rate_us=_rate("rate", options)[0],
        rate_burst=_rate("rate", options)[1],
        group_rate_us=_rate("group_rate", options)[0],
        group_burst=_rate("group_rate", options)[1],
        delivery="partitions" if "partitions" in options else "messages",
        partitions_min=int(options.get("partitions", "1-10").split("-")[0]),
        partitions_max=int(options.get("partitions", "1-10").split("-")[1]),
        partition_age_ms=millis(options.get("age", "5d")),
        max_messages=int(options.get("max_messages", "0")),
        max_bytes=int(options.get("max_bytes", "0")),
        overflow="drop" if "drop" in words else "refuse",
        notes=notes_of(words),
        max_in_flight=int(options.get("max_in_flight", "0")),
        group_blocking="message" if options.get("blocking") == "message" else "lease",
        message_bytes_max=int(options.get("message_bytes", "0")),
    )


_ORDERS: dict[str, Order] = {"none": "none", "strict": "strict", "group": "group", "fair": "fair"}


def _rate(option: str, options: dict[str, str]) -> tuple[int, int]:
    """A rate as `rate:2s/3`: one in two seconds, three at once."""
    if option not in options:
        return 0, 0
    time, _, burst = options[option].partition("/")
    return 1000 * millis(time), int(burst)


def _part(words: list[str], options: dict[str, str]) -> SpecPart | None:
    """With the word `named`, only those settings that stand there."""
    if "named" not in words:
        return None
    keep = options.get("keep_deletes")
    return SpecPart(
        keyed=True if "keyed" in words else None,
        retention="log" if "log" in words else "work" if "work" in words else None,
        keep_deletes_ms=None if keep is None else millis(keep),
        notes=notes_of(words) or None,
    )
