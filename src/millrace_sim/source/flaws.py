"""Rules that can be switched off, one at a time, to show that the checkers notice.

Those of the product's machines are declared beside them; the rest are rules of what surrounds the machines (decoder,
fence, copy tasks, retention), which this world plays itself.
"""

from __future__ import annotations

from millrace.core.sources import copies, reader, windows

AROUND = {
    "fence": "a starting reader does not fence the tables' partitions [L28]",
    "fence_progress": "a starting reader does not fence `progress` before it reads the last mark",
    "idempotent": "a repeated append is not recognised [L20]",
    "ack_durable": "the slot is acknowledged up to what was received [S2]",
    "keepalive": "no marks from keep-alives [S2]",
    "seq_surviving": "seq counts changes that were rolled back, when they are streamed",
    "spool": "streamed blocks enter the log before the commit [S8]",
    "manifest": "rows of a copy's topic count without a manifest [S4]",
    "reread": "incomplete rows are not read again [S5]",
    "copy_floor": "a copy does not hold the log from its low mark on [F10]",
    "feed_floor": "a changefeed does not hold its position [F10]",
    "h_key_seq": "the two halves of a key update share a seq",
    "h_reader_floor": "the reader does not hold the ends of its last mark",
    "h_writers": "a chunk is read without waiting for the table's writers",
    "h_conn_timeline": "a mark carries the present timeline",
}

FLAWS = {**AROUND, **reader.FLAWS, **copies.FLAWS, **windows.FLAWS}
