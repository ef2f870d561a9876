"""Backups of the embedded database and of what belongs to it: made under load, restored elsewhere.

A backup is a directory of mode 0700 that holds, each of mode 0600:

- `journal/`: the rows of finished requests that were not in the ledger yet (`<data-dir>/spool`);
- `database.dump`: one snapshot of the database, by `pg_dump`;
- `files/`: the files of tenants that this snapshot lists, where they lie in the data directory;
- `root-secret`, only where it was asked for: who has both can make keys and read kept answers;
- `manifest.json`, written last: size and SHA-256 of all others, the versions, the sums of the
  ledger in that snapshot, the heads of the audit log. A backup without it was not finished.

The journal is copied first. A row that is in it then is either copied, or it was inserted and its
file removed before the snapshot was taken, and so is in the dump; what is in both counts once, as
the ledger takes no row twice. So everything that had ended when the backup began is in it. The sums
are read in the snapshot that is dumped, by the connection that exports it.

A restore checks every byte before it writes any, loads the dump in one transaction as the owner of
the tables (whom it can give no right that the owner has not), and then compares sums and heads and
walks the audit log's chain under the root secret, which the manifest is signed with too. From its
first byte to its last the data directory has a mark, with which no server starts there. It makes no
schema newer: the next start does. Redis is not in a backup, since what it holds is counted from the
ledger again.
"""

from gateway.store.backup.manifest import Manifest
from gateway.store.backup.mark import refuse_half_restored
from gateway.store.backup.restore import Restored, restore
from gateway.store.backup.write import back_up

__all__ = ["Manifest", "Restored", "back_up", "refuse_half_restored", "restore"]
