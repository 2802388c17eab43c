"""The rules of a queue as pure functions: no clock, chance, logging or I/O.

`decide.py` turns commands into changes; `state/fold.py` applies changes to a store. Commands are in
`commands.py`, `session_commands.py` and `topic_commands.py`, their results in `answers.py`, state
records in `cells.py`, shared values in `model.py`.

Packages import only those below them (an import contract holds it):

- `decide` dispatches commands; `catalog` (queues and their settings), `multi_shard` and `ticks`
- `transfer`: dead letters, forwarding from topics, replacement of a leased message
- `publishing`: validation of rows, producers, deduplication, stages, shard routing
- `followers`: cursors, snapshots and pins
- `delivery`: leases, settlement, redelivery, sessions, quarantine; `topics`: subscriptions, filters
- `retention`: TTL, log retention, maximum length
- `ordering`: message groups, partitions, priorities and delays, rate limits
- `state`: the view of a shard in memory, the draft of a batch, and the fold of a batch
- `format`, and the modules of commands, answers, cells and values
"""
