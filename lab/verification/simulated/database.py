"""A simulated database: READ COMMITTED transactions, row locks, statements that take time and get lost.

The real store on SQLite cannot take its place: SQLite has one writer at a time, so no two transactions would
interleave, and a process that is frozen in one would hold up all others, which PostgreSQL's row locks do not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final

from app.domain.errors import Unavailable
from lab.verification.simulated.world import Process, World

Key = tuple[str, Any]
"""Table and primary key."""

_LOCK_SECONDS: Final = 5.0
_IDLE_SECONDS: Final = 4.0
_RETRY_SECONDS: Final = 0.05
_NETWORK_SECONDS: Final = 2.0
"""After which a client gives up a statement that got no answer."""


class Transaction:
    """An open transaction of a process. checks: run when it commits, before its writes become visible."""

    def __init__(self, process: Process, now: float) -> None:
        self.process = process
        self.writes: dict[Key, Any] = {}
        self.locks: set[Key] = set()
        self.checks: list[Callable[[], None]] = []
        self.used_at = now
        self.is_aborted = False
        self.attempt: tuple[str, int] | None = None


class Database:
    """Committed rows by table and key. clock_offset: what its wall clock is ahead of the virtual time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock_offset = 0.0
        self.away_until = 0.0
        self.on_commit: Callable[[Transaction], None] = lambda _transaction: None
        self.committed: defaultdict[str, dict[Any, Any]] = defaultdict(dict)
        self._holders: dict[Key, Transaction] = {}

    def clock(self) -> float:
        """The database's wall clock."""
        return self.world.now + self.clock_offset

    def begin(self) -> Transaction:
        return Transaction(self.world.process, self.world.now)

    def statement(self, transaction: Transaction) -> None:
        """The way of one statement to the server and back. Raises Unavailable."""
        self._travel(transaction)
        if transaction.is_aborted or self.world.now - transaction.used_at > _IDLE_SECONDS:
            self.rollback(transaction)
            raise Unavailable("The transaction was idle for too long.")
        transaction.used_at = self.world.now

    def get(self, transaction: Transaction, table: str, key: Any) -> Any:
        """A row as the transaction sees it; None if there is none."""
        if (table, key) in transaction.writes:
            return transaction.writes[table, key]
        return self.committed[table].get(key)

    def rows(self, transaction: Transaction, table: str) -> Iterator[tuple[Any, Any]]:
        """All rows of a table as the transaction sees them, by key."""
        own = {key: row for (name, key), row in transaction.writes.items() if name == table}
        for key, row in sorted((self.committed[table] | own).items()):
            if row is not None:
                yield key, row

    def lock(self, transaction: Transaction, table: str, key: Any) -> None:
        """Lock a row until the transaction ends. Raises Unavailable after the lock timeout."""
        deadline = self.world.now + _LOCK_SECONDS
        while (holder := self._holders.get((table, key))) not in (None, transaction):
            if holder is not None and self.world.now - holder.used_at > _IDLE_SECONDS:
                self.rollback(holder)
                continue
            if self.world.now > deadline:
                self.rollback(transaction)
                raise Unavailable("The row is locked.")
            self.world.sleep(_RETRY_SECONDS)
            # Waiting for a lock, the transaction is not idle.
            transaction.used_at = self.world.now
        self._holders[table, key] = transaction
        transaction.locks.add((table, key))

    def put(self, transaction: Transaction, table: str, key: Any, row: Any) -> None:
        """Write a row, or delete it with None."""
        self.lock(transaction, table, key)
        transaction.writes[table, key] = row

    def commit(self, transaction: Transaction) -> None:
        """Raises Unavailable; when only the answer was lost, the transaction is committed nevertheless."""
        self.statement(transaction)
        for check in transaction.checks:
            check()
        self.on_commit(transaction)
        for (table, key), row in transaction.writes.items():
            if row is None:
                self.committed[table].pop(key, None)
            else:
                self.committed[table][key] = row
        self._release(transaction)
        transaction.writes = {}
        self.world.sleep(self._latency())
        if transaction.process.cut_off_until > self.world.now:
            raise Unavailable("The answer to COMMIT was lost.")

    def rollback(self, transaction: Transaction) -> None:
        transaction.is_aborted = True
        transaction.writes = {}
        self._release(transaction)

    def disconnect(self, process: Process) -> None:
        """The process has crashed: the server rolls its transactions back."""
        for transaction in {holder for holder in self._holders.values() if holder.process is process}:
            self.rollback(transaction)

    def _travel(self, transaction: Transaction) -> None:
        world = self.world
        world.sleep(self._latency())
        if max(transaction.process.cut_off_until, self.away_until) > world.now:
            world.sleep(_NETWORK_SECONDS)
            raise Unavailable("The database cannot be reached.")

    def _latency(self) -> float:
        random = self.world.random
        return random.expovariate(1 / 0.2) if random.random() < 0.02 else 0.002 + 0.01 * random.random()

    def _release(self, transaction: Transaction) -> None:
        for key in transaction.locks:
            if self._holders.get(key) is transaction:
                del self._holders[key]
        transaction.locks = set()
