"""Every bound of the product, each with its reason. Configuration may lower some of them; nothing is unbounded."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

# -- time: one set for brokers and captures ------------------------------------------------------------------------
HEARTBEAT_S = 0.5          # eight chances within a lease
LEASE_S = 4.0              # a leader without a fresh answer refuses writes after this
SESSION_S = 6.0            # silence over a network costs this; lease < session x (1-r)/(1+r)
TENURE_S = 2.0             # an office changes hands within this when its holder falls silent
TENURE_RENEW_S = 0.5       # four chances within a tenure
CLOCK_DRIFT_MAX = 0.01     # r: how far two clocks may drift apart, as a rate
STORE_CALL_S = 5.0         # a store call without an answer; longer than a tenure: time to remove a stuck process
STORE_WATCH_POLL_S = 0.5   # how often a watch looks at a SQLite file; 0.15 % of a core. A holder's end is seen at once
REPLICA_LAG_S = 10.0       # a follower that has not caught up for this long leaves the ISR
LEADER_BALANCE_S = 20.0    # a leader goes home after so long without a change. Longer than a session: a broker that
                           # comes and goes takes no leaders with it. Longer than a client's reconnect back-off
                           # (librdkafka: up to 15 s), which it would wait out while nobody else may take its writes
LEADER_BALANCE_PASS_S = 1.0  # between two looks at leaders that are away
LINK_BACKOFF_MIN_S = 0.05  # a broken link is redialled with jitter between these two
LINK_BACKOFF_MAX_S = 1.0
LINK_CONNECT_S = 2.0       # a dial without an answer
LINK_CALL_S = 5.0          # a control call without an answer; below the session so that silence is noticed by both
METADATA_WAIT_S = 5.0      # long poll for metadata; only bounds how long an idle request stays open
FETCH_WAIT_MAX_S = 30.0    # a consumer may ask for a longer poll, it gets this
PRODUCE_TIMEOUT_MAX_S = 300.0
PEER_FIRST_BYTE_S = 10.0   # a connection that says nothing
PEER_FRAME_S = 30.0        # a frame that does not end
PEER_IDLE_S = 600.0
PEER_DRAIN_S = 30.0        # a peer that does not read its answers

# -- sizes ---------------------------------------------------------------------------------------------------------
FRAME_BYTES_MAX = 16 * MIB         # a request larger than this is refused before a byte of it is stored
BATCH_BYTES_MAX = 1 * MIB + 12     # Kafka's default of max.message.bytes
BATCH_BYTES_CEILING = 12 * MIB     # what max.message.bytes may be raised to, so that a batch fits a frame
LOG_FILE_BYTES = 256 * MIB         # a log file rolls here
INDEX_EVERY_BYTES = 4 * KIB        # one index entry per so many bytes of log
STORE_APPEND_BYTES_MAX = 1 * MIB   # one append: a single value of etcd, whose requests end at 1.5 MiB
STORE_SNAPSHOT_BYTES_MAX = 64 * MIB  # 40,000 partitions take about 10 MiB
FETCH_BYTES_MAX = 50 * MIB         # one consumer answer
REPLICA_STREAM_BYTES_MAX = 1 * MIB  # one stream's share of a DATA frame: no stream starves the others
REPLICA_FRAME_BYTES_MAX = 8 * MIB  # one DATA frame
REPLICA_CATCH_UP_BYTES_MAX = 2 * MIB  # one DATA frame of a stream out of sync: what others wait for follows behind it
JOURNAL_BATCH_BYTES_MAX = 64 * KIB  # larger appends go straight to their file and are synced there
OUT_BYTES_MAX = 64 * MIB           # queued answers of one connection before reading stops
IN_FLIGHT_MAX = 1_000              # requests of one connection without an answer before reading stops
MEMORY_IN_FLIGHT_MAX = 512 * MIB   # all answers queued in one process

# -- counts --------------------------------------------------------------------------------------------------------
CONNECTIONS_MAX = 10_000
PARTITIONS_PER_TOPIC_MAX = 10_000
PARTITIONS_PER_BROKER_MAX = 40_000
LEADER_MOVES_PER_PASS_MAX = 250    # leaders that go home at once: their clients ask once more, others notice nothing
TOPIC_NAME_CHARS_MAX = 249         # as Kafka: names become parts of file names elsewhere
REQUEST_ENTRIES_MAX = 100_000      # array entries in one request: a small frame may not become a large heap
PRODUCER_ID_BLOCK = 1_000          # ids handed to a broker at once: one durable record per thousand producers
PRODUCER_BATCHES_KEPT = 5          # repeats that can still be recognised, as Kafka's clients expect
RECORDS_PER_POLL_MAX = 500         # metadata records in one answer: bounds the time a broker's loop is busy with them
RECORDS_PER_APPEND_MAX = 2_000     # metadata records in one store transaction
SNAPSHOT_EVERY_RECORDS = 20_000    # replay at start stays below a second

# -- disk ----------------------------------------------------------------------------------------------------------
DISK_USED_MAX = 0.95               # produce is refused above this share of the disk

# -- links ---------------------------------------------------------------------------------------------------------
LINK_PING_S = 1.0                  # an idle link proves itself this often
SUSPECT_S = 0.5                    # how long a broken link alone makes us doubt a leader towards clients
LINK_SILENCE_S = 3.0               # a link that brings nothing for this long is dead: TCP alone would wait minutes
LINK_FRAME_BYTES_MAX = 32 * MIB    # a DATA frame (8 MiB and one oversized batch) or a metadata snapshot slice
SMALL_BUFFER_BYTES = 64 * KIB      # receive buffer of every connection; larger frames get one of their own
