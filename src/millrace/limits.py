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
START_STILL_S = 60.0       # a start of a cluster in which nothing moves for so long is given up
START_CPU_S = 3.0          # ... where a process that used so much CPU time has moved: a twentieth of a core is more
                           # than one that waits uses, and less than a fair share at load 30 on two cores
START_SAY_S = 10.0         # between two lines that say what a start waits for

# -- sizes ---------------------------------------------------------------------------------------------------------
FRAME_BYTES_MAX = 16 * MIB         # a request larger than this is refused before a byte of it is stored
BATCH_BYTES_MAX = 1 * MIB + 12     # Kafka's default of max.message.bytes
BATCH_BYTES_CEILING = 12 * MIB     # what max.message.bytes may be raised to, so that a batch fits a frame
LOG_FILE_BYTES = 256 * MIB         # a log file rolls here
SEARCH_UNPACKED_BYTES_MAX = 64 * MIB  # of one batch searched by time: a fifth of a second of the loop
INDEX_EVERY_BYTES = 4 * KIB        # one index entry per so many bytes of log
STORE_APPEND_BYTES_MAX = 1 * MIB   # one append: a single value of etcd, whose requests end at 1.5 MiB
STORE_SNAPSHOT_BYTES_MAX = 64 * MIB  # 40,000 partitions take about 10 MiB
CHANGE_PART_BYTES_MAX = 4 * MIB    # a larger change batch is cut: three parts to a batch of a raised max.message.bytes
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
SECRET_FILE_BYTES_MAX = 64 * KIB   # behind ${file:…}: a password or a URL; a large file is a mistake in the path
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
DISK_USED_MAX = 0.95               # above this share of the disk leaders go elsewhere, then produce is refused
DISK_ROOM_AGAIN = 0.02             # below it by so much there is room again: leaders do not go to and fro
DISK_HAND_OVER_S = 2.0             # for leaders to go elsewhere before writes are refused: heartbeat, election, poll
JOURNAL_AGAIN_S = 0.5              # a journal without room is tried again after this

# -- retention -----------------------------------------------------------------------------------------------------
RETENTION_MS = 7 * 86_400_000      # of an ordinary topic, as Kafka
SEGMENT_MS = 7 * 86_400_000        # a log file is closed at this age, as Kafka: what is in it can go as a whole
RETENTION_CHECK_S = 60.0           # between two looks for what may go: 10,000 idle partitions cost 0.05 s of CPU
RETENTION_SLICE_S = 0.005          # of the loop, then others are served
RETENTION_SLICE_LOGS = 100         # ... also where time stands still during a callback, as on a simulated loop
FLOOR_DISK_SHARE_MAX = 0.5         # of a broker's disk, held back by one holder: half is left for everything else
CUTS_PER_CALL_MAX = 1_000          # log starts in one message to the controller, and in one record

# -- links ---------------------------------------------------------------------------------------------------------
LINK_PING_S = 1.0                  # an idle link proves itself this often
SUSPECT_S = 0.5                    # how long a broken link alone makes us doubt a leader towards clients
LINK_PROOF_S = 3.0                 # from the connection to the end of its proof: three frames, also over a slow network
LINK_UNPROVED_MAX = 128            # connections that have not proved the secret yet; the oldest gives way: honest ones
                                   # need milliseconds, and each holds a receive buffer
LINK_UNPROVED_FRAME_BYTES_MAX = 256   # a frame of the proof has 69 bytes at most
LINK_PEERS_LOGGED_MAX = 256        # peers whose last refusal is remembered, so that it is logged once
LINK_SILENCE_S = 3.0               # a link that brings nothing for this long is dead: TCP alone would wait minutes
LINK_FRAME_BYTES_MAX = 32 * MIB    # a DATA frame (8 MiB and one oversized batch) or a metadata snapshot slice
SMALL_BUFFER_BYTES = 64 * KIB      # receive buffer of every connection; larger frames get one of their own

# -- sources -------------------------------------------------------------------------------------------------------
MARK_EVERY_S = 0.05                # between two resolved marks: bounds what they cost, adds little to a change's delay
MARK_FULL_EVERY_S = 60.0           # a full mark names every partition; a start reads `progress` back to the last one
WRITER_EPOCH_MAX = 32_766          # a batch holds 16 bits of epoch; the last value fences a writer for ever
SOURCE_NAME_CHARS_MAX = 40         # names become parts of topics, slots (63 characters) and offices

# -- copies of tables ----------------------------------------------------------------------------------------------
COPY_CHUNK_BYTES = 64 * MIB        # of a table, per chunk: a second or two; little to repeat, and no lock for longer
COPY_CHUNKS_MAX = 4_096            # of one copy: its plan is one durable record; larger tables get larger chunks
COPY_KEYS_MAX = 1_000              # rows of a table that are read again by their keys; above it all of it is read again
COPY_PLAN_BYTES_MAX = 256 * KIB    # bounds in that record: keys may be long, a store's value may not
COPY_EMPTY_TOGETHER = 500          # copies of empty tables that are done by one record each, in one append
COPY_PARALLEL = 2                  # chunks of one source read at a time: what a copy may take of the database
COPY_READ_BYTES = 4 * MIB          # decoded at once: the column code is fastest around here
COPY_FRAME_BYTES_MAX = 1024 * MIB  # of COPY, one row each: PostgreSQL makes none of a GiB
COPY_RECORD_BYTES = 1 * MIB - 4 * KIB  # a record of rows, so that its batch stays below Kafka's default limit
COPY_ROWS_BYTES_MAX = 2 * MIB      # of rows in one record before they are compressed: what a reader has to take at once
COPY_IN_FLIGHT_BYTES_MAX = 16 * MIB  # appended without an answer, per chunk: bounds a worker's memory
COPY_WRITERS_WAIT_S = 600.0        # a window waits so long for transactions that wrote before its low mark
COPY_LOCK_WAIT_S = 10.0            # behind somebody's ALTER TABLE; an attempt is repeated
COPY_SILENCE_S = 60.0              # a worker or a server that says nothing: its attempt is given up
COPY_ATTEMPTS_MAX = 8              # failures of one chunk in a row before its copy is called stopped
COPY_STOPPED_S = 120.0             # a stopped chunk is tried again so often: what was missing may have been granted
COPY_PACK_CHUNKS = 32              # small chunks in one pack: a job on Spark costs as much time as two or three of them
COPY_PACK_BYTES = 16 * MIB         # of tables in one pack: a second of work, repeated if its worker dies; more is alone
COPY_PACK_S = 10.0                 # chunks of a pack not begun by then go to others: one before them is slow
COPY_AWAITING_MAX = 64             # windows written whose high mark the reader has not met yet: it is far behind
COPY_BACKOFF_MIN_S = 0.5           # between attempts, doubled each time, with jitter
COPY_BACKOFF_MAX_S = 30.0
COPY_SPARK_SHARE = 0.5             # of Spark's cores, but one at least: a chunk keeps its core for seconds, a window
                                   # that waits for writers for minutes, and rounds must not wait behind them
COPY_SPARK_START_S = 20.0          # a chunk that no worker of Spark has begun: it is run here instead
COPY_SPARK_AGAIN_S = 15.0          # after Spark was lost, or its workers do not reach database or log: tried again
COPY_SPARK_FRESH_S = 60.0          # without a chunk or a trial that came back, Spark is tried before it gets a chunk
COPY_TRIAL_WAIT_S = 2.0            # a chunk waits so long for the first trial: a Spark that is there is back by then
COPY_CANCEL_S = 1.0                # an attempt on Spark that was cancelled is waited for; then it ends by itself
COPY_WORDS_KEPT_S = 3600.0         # what chunks on Spark say while they run: of no use once it was heard
SNAPSHOT_HOLD_MAX_S = 6 * 3600.0   # a held snapshot keeps dead rows from being vacuumed; then windows take over
SNAPSHOT_CHECK_S = 1.0             # how often the holder proves that its snapshot lives

# -- the source reader ---------------------------------------------------------------------------------------------
CHUNK_BYTES = 1 * MIB              # of the copy stream, decoded at once: below it column-wise decoding loses its lead
CHUNK_WAIT_S = 0.02                # a chunk is closed so long after its first message, or at a commit after a pause
FEEDBACK_S = 5.0                   # between two answers to the walsender, whatever else is going on [S2]
STREAM_ASK_S = 10.0                # a silent stream is asked for a sign of life
STREAM_SILENCE_S = 40.0            # ... and given up after this: TCP alone would wait for many minutes
LOG_SILENT_S = 5.0                 # nothing acknowledged for this long: shown as waiting for the log
LOG_PENDING_BYTES_MAX = 24 * MIB   # handed to the log and not acknowledged: above it the stream is not read
CHANGE_RECORD_BYTES_MAX = 1 * MIB - 4 * KIB  # one record of a table's partition; one row above it is cut into parts
CHANGE_ROW_BYTES_MAX = 256 * MIB   # a row above this is left out and its table needs a copy [S8]
SPOOL_BYTES_MAX = 64 * GIB         # all streamed transactions that have not committed yet
SPOOL_FREE_BYTES_MIN = 512 * MIB   # of the disk: others live there, too
SOURCE_POLL_S = 10.0               # between two looks at the catalogue (new tables, publication) and at the slot
PROGRESS_READ_RECORDS = 50_000     # a start that read more of `progress` restates the schemas: the next one reads less
SOURCE_RETRY_MIN_S = 0.2           # back-off of a reader that lost its database, with jitter
SOURCE_RETRY_MAX_S = 15.0
SOURCE_REFUSED_RETRY_S = 5.0       # a refused password at most: a rotation is picked up so soon after the new secret

# -- our own client of the log -------------------------------------------------------------------------------------
CLIENT_REFRESH_S = 30.0            # metadata is asked for this often, and at once when a broker says it is not leader
CLIENT_DEADLINE_S = 30.0           # without any progress for so long: a typed error. Twice the worst change of leader
CLIENT_CALL_S = 5.0                # one call without an answer: the connection is given up, another broker is asked
CLIENT_PRODUCE_S = 10.0            # how long a leader may wait for its followers before it says so
CLIENT_SLOW_S = 2.0                # an answer that takes longer makes us ask whether somebody else leads by now
CLIENT_TICK_S = 0.5                # between two looks at what is overdue
CLIENT_REQUEST_BYTES = 1 * MIB     # a Produce request is closed at this size: it is acknowledged as a whole
CLIENT_BATCH_BYTES = 512 * KIB     # small appends share a batch up to this: fits every topic's max.message.bytes
CLIENT_BROKER_BYTES_MAX = 16 * MIB  # sent to one broker without an answer; 100 MB/s at 100 ms is 10 MB
CLIENT_UNPACKED_BYTES_MAX = 256 * MIB  # of one batch read: no batch may fill the memory of its reader
CLIENT_PENDING_BYTES_MAX = 32 * MIB  # of one writer, before `room` makes its caller wait
CLIENT_FRAME_BYTES_MAX = 80 * MIB  # the largest answer: FETCH_BYTES_MAX, and a batch larger than the room left
CLIENT_TOGETHER_MAX = 4            # shared calls of one kind under way: one that a stopped broker keeps delays not all
CLIENT_TOPICS_ASKED_MAX = 500      # names in one question for metadata: some ms of a broker's loop
CLIENT_TOPICS_MADE_MAX = 100       # in one CreateTopics: their replicas' directories are made one after another
CLIENT_GROUPS_ASKED_MAX = 100      # in one FindCoordinator
TAKE_OVERS_TOGETHER_MAX = 500      # that share a call: some ten thousand bytes of floors
CLIENT_PARKED_MAX = 64             # long polls overtaken by another broker's answer, kept for the next call

# -- rounds of row work on Spark -----------------------------------------------------------------------------------
ROUND_TASK_TRIES = 2               # a task whose worker died: its second try finds the claim taken and says so [P5]
WORK_DEADLINE_S = 5.0              # of one dispatcher in its task [P2]
CLAIM_S = 5.0                      # the claim of a task: one request
ROUND_GRACE_S = 60.0               # beyond the deadlines of its work: first workers, a busy machine; then cancelled
ROUND_COLD_S = 300.0               # instead, until a session's first job is back: a cold Spark given up would stay cold
ROUND_CANCEL_S = 15.0              # a cancelled job that does not end: the session is given up
ROUND_JOBS_MAX = 8                 # jobs in flight per manager: one shared, the others small
ROUND_ALONE_MAX = 4                # of them for dispatchers that are not healthy: most cores are for those that are
ROUND_LONG_S = 1.0                 # who came too late for a shared job waits so long for its end, then shares another
ROUND_LONG_MAX_S = 10.0            # ... or twice what the last one took, but no longer than this
ROUND_HEAVY_BYTES = 4 * MIB        # a shared job that has read so much: rows come faster than rounds are worth it ...
ROUND_GATHER_S = 0.4               # ... so the next one begins so long after it began, if it is over by then
ROUND_SETTLE_S = 0.02              # who is stored first waits so long for the others of its job
TASK_CONCURRENT_MAX = 16           # dispatchers of one task at a time: bounds a worker's memory, hides their waits
SPARK_OPEN_S = 30.0                # a session that does not open: Spark is absent
SPARK_CHECK_S = 55.0               # settings of a changefeed, held against all its tables, before somebody is answered
SPARK_LOOK_S = 2.0                 # a job is under way and nothing has come back for so long: whether Spark answers
SPARK_SILENT_S = 5.0               # ... within this; a greeting takes a millisecond
SPARK_MISSED_S = 30.0              # an absence that nobody has met with for so long is not told any more
SPARK_IDLE_S = 1800.0              # a session of our own unused so long is opened anew: servers forget it after an hour
SPARK_DAEMON_IDLE_S = 3600.0       # a parent of Python workers that had none for so long: its session may be gone

# -- the breaker of a sink that takes no writes ----------------------------------------------------------------------
BREAKER_WINDOW_S = 15.0            # failures count together for so long: two full deadlines and a wait between them
BREAKER_SHARE = 0.5                # of those that ran meanwhile: with fewer it is trouble of some topics, not of a sink
BREAKER_FAILED_MIN = 8             # so many must have failed, or all that are here, more than once altogether
BREAKER_PROBE_MIN_S = 1.0          # before the first probe, doubled after each that failed, with jitter
BREAKER_PROBE_MAX_S = 10.0         # ... up to this: so much later at worst is the end of an outage noticed
BREAKER_APART_S = 1.0              # between probes of all changefeeds into one sink: a job each
BREAKER_RELEASED_S = 10.0          # a probe that must be taken over first is placed again: no answer by then is none

# -- writing to Kafka topics ---------------------------------------------------------------------------------------
ENDS_REFRESH_S = 60.0              # an idle dispatcher moves its stored ends at least this often, if they lag [K3]
ENDS_LOOK_S = 20.0                 # ... with all others of its changefeed that will be due soon: one look for many
WRITE_WINDOW = 16                  # batches of one source partition without an answer, in all targets together

# -- the Spark data source -------------------------------------------------------------------------------------------
HISTORY_POINTS_MAX = 20_000        # complete positions kept of one table: some megabytes; above it every second goes
READ_RECORDS_PER_TASK = 128        # log records of one Spark partition: up to 128 MiB, some seconds of a core
READ_GROUP_ROWS = 4_096            # small records are joined up to this: a batch of Arrow costs as much as many rows
READ_GROUP_BYTES = 4 * MIB         # ... and up to this, so that a task's memory stays small
READ_IDLE_WAIT_S = 1.0             # a streaming query without news asks again after this; stopping it waits as long

# -- changefeeds ---------------------------------------------------------------------------------------------------
CHANGEFEED_ID_CHARS_MAX = 60       # it becomes part of offices (100 characters), groups and writer names
COMMAND_REPEAT_S = 1.0             # a command is sent again until its effect is reported; two heartbeats
MEET_AT_ONCE_MAX = 16              # copies of one partition met at a time: each asks brokers a few times
VERSIONS_JUDGED_MAX = 10_000       # of tables, for which a plan is remembered: a source's daily migrations for decades
OPERATOR_S = 10.0                  # without effect for so long counts as a destination lost: a session and a bootstrap
TAKE_OVER_S = 60.0                 # the same for one that says it is taking over: brokers that fail over take a few s,
                                   # each move begins the same work again, and who waits is shown all the time
SCHEDULE_BATCH_MAX = 10_000        # spans looked at, and placed, in one pass: pings must not wait for more
BALANCE_BATCH_MAX = 64             # moves that balance begins at once: each costs its span a pause
LOADS_EVERY_S = 5.0                # between two tellings of all captures' loads: they only order the choice
DDL_COMMIT_MAX = 8                 # schema changes that pass together: the first waits until the last is written
WAIT_MARK_S = 1.0                  # marks that come together are one, for whoever asks how long a change waits
WAIT_MARKS_MAX = 4_096             # ... of those that are not reached; then every second one goes
CHECKPOINT_EVERY_S = 1.0           # a record each: watermarks need no more, a restart repeats no more
LEASE_LOOK_S = 0.1                 # a capture whose place is taken looks so often: proof of a death counts at once
LEASE_LATE_S = 5.0                 # etcd ends leases about a second late, and later while it is busy
PUT_OUT_SESSIONS = 3               # a capture unheard by the coordinator for so many sessions starts anew
STAND_BACK_SESSIONS = 2            # a coordinator that hears too few lets the others try for so long
FEED_RETRY_MIN_S = 1.0             # back-off of a changefeed or table in trouble, doubled each time, with jitter
FEED_RETRY_MAX_S = 60.0
FEED_ERRORS_MAX = 256              # different troubles kept for people; the oldest go

# -- consumer groups -----------------------------------------------------------------------------------------------
GROUP_SESSION_MIN_S = 6.0          # as Kafka: shorter ones make a group rebalance at every hiccup
GROUP_SESSION_MAX_S = 1800.0       # ... longer ones leave partitions unread for as long
GROUP_INITIAL_DELAY_S = 3.0        # a group's first rebalance waits so long for more members: one instead of many
GROUP_NEW_MEMBER_S = 300.0         # a new member whose join is parked cannot heartbeat: given up after this
GROUP_MEMBERS_MAX = 10_000         # one record holds all of them
OFFSETS_RETENTION_S = 7 * 86_400.0  # offsets of a group that nobody uses, as Kafka
OFFSET_METADATA_CHARS_MAX = 4_096  # text that a consumer may leave beside an offset

# -- the Kafka sink ------------------------------------------------------------------------------------------------
SINK_MESSAGE_BYTES_MAX = BATCH_BYTES_CEILING  # not even sent; below it the topic's max.message.bytes decides
SINK_BATCH_BYTES = 512 * KIB       # a batch is closed at this size: its followers are asked for it at once
SINK_BATCH_MESSAGES_MAX = 10_000   # ... or at this count: a consumer's poll handles a batch as a whole
SINK_ENCODE_BYTES = 64 * MIB       # about what is encoded at once: arrays end at 2 GiB, escapes make six bytes of one

# -- the mover of the Kafka sink -----------------------------------------------------------------------------------
WORK_SENDING_S = 3.0               # of a work's deadline: the rest is for answers, else every full round ends unknown
WORK_PENDING_BYTES_MAX = 16 * MIB  # encoded and not delivered, per work: reading waits
WRITE_LOOK_S = 0.05                # how often a work looks at its time
QUARANTINE_ROW_BYTES_MAX = 8 * MIB  # a larger row is not kept twice: below what a batch takes, its key beside it

# -- hosts of changefeeds ------------------------------------------------------------------------------------------
FEED_HEARTBEAT_S = 0.5             # between pings of a coordinator or maintainer: twelve in a session
FEED_PASS_GAP_S = 0.02             # between two passes of one machine: answers that come together cost one
FEED_LEASES_EVERY_S = 1.0          # who lives, and where, is read from the store this often by every capture
FEED_SNAPSHOT_EVERY_RECORDS = 1_000  # of a changefeed's office, or as many as it has spans: a checkpoint is a record

# -- rules of changefeeds ------------------------------------------------------------------------------------------
TABLE_RULES_MAX = 1_000            # of one changefeed, and of its settings: each new table is held against all of them
EXPRESSION_CHARS_MAX = 8_192       # of one filter or expression: more is a program, and Spark's parser is recursive
EXPRESSION_DEPTH_MAX = 64          # parentheses, brackets, CASE inside each other: Spark's parser is recursive
COMPUTED_COLUMNS_MAX = 62          # of one table: which of them a row can be asked for is told by bits of one number
PROJECTION_MAX = 1_600              # entries of one projection: as many as a table of PostgreSQL has columns

# -- coordinators of consumer groups -------------------------------------------------------------------------------
GROUP_PARTITIONS = 50              # of the group topic, as Kafka: as many brokers may share the work; never changed
GROUP_KEYS_MAX = 100_000           # offsets and groups of one of its partitions: 50 MB, and at worst 10 s of replay
RESTATE_EVERY_RECORDS = 20_000     # beyond twice what is alive: 0.6 s of replay
RESTATE_BATCH_BYTES = 64 * KIB     # of a restatement, written with each change: a few milliseconds of the loop
GROUP_FORGET_RECORDS = 10_000      # of topics gone, in one batch: below 3 MiB with names of 249 characters
GROUP_LOAD_BYTES = 64 * KIB        # replayed at once: a few milliseconds, then the loop serves others
GROUP_APPEND_S = 5.0               # a change that is not committed by then: its coordinator begins anew, from the log
GROUP_TICK_S = 0.1                 # sessions and rebalances are looked at so often while there are members
GROUP_LOOK_S = 0.25                # a coordinator that ended without another leader is started again after this
GROUP_EXPIRE_S = 600.0             # between two looks for offsets that nobody uses
GROUP_CREATE_S = 10.0              # the group topic is created on first need; a client that asks waits so long

# -- the data path of changefeeds ----------------------------------------------------------------------------------
MARK_POINTS_MAX = 256              # complete positions kept of one partition: a barrier is looked for between two
ROUND_OFFSETS_MAX = 8_192          # records of one plan: as many small ones as a work may send in its time
ROUND_OFFSETS_FIRST = 64           # of a dispatcher's first plan: 64 MiB at most, then as it goes
PROGRESS_WAIT_S = 5.0              # one long poll of a source's `progress`: it wakes on news, not on this
PROGRESS_READY_S = 30.0            # a take-over that waits longer for it is given up, and placed again
MARKER_LOOK_BYTES = 256 * KIB      # read at a time for a marker: it stands near, and far behind it all that is waiting
MARKERS_KEPT = 64                  # of one partition: changefeeds may stand at different ones
IDLE_LOOKS_MAX = 16                # dispatchers of a changefeed that store fresh ends, or look around, at a time
ENDS_LOOK_MAX = 1_000              # targets in one look at their ends: some milliseconds of a broker
TARGET_GONE_AGAIN_S = 2.0          # a target topic that is gone is looked for once more: one broker's list may lag
LOOK_AROUND_S = 600.0              # an idle dispatcher looks whether it was taken over, or its targets have changed;
                                   # whoever takes over, changes topics or meets an error tells sooner
QUARANTINE_PARTITIONS = 1          # of a changefeed's quarantine: few rows, and people read them in order

# -- homes of changefeeds on our own log ---------------------------------------------------------------------------
HOME_CALLS_MAX = 32                # calls of one changefeed's home at once: its first tables may be ten thousand
HOME_LOOK_BYTES = 4 * KIB          # of a look at one record: of a larger batch one comes anyway
HOME_LOOKS_MAX = 500               # partitions in one look for markers
HOME_WAIT_S = 2.0                  # of a long poll for marks and positions: it wakes on news; a silent broker is given
                                   # up about when another one leads
HOME_SHOW_S = 5.0                  # at most so often tools see a changefeed's place in `progress` move on
HOME_LOOK_S = 0.05                 # between two looks for a marker that is not there yet
HOME_SETTLE_S = 0.005              # partitions of a table are stored one after another: one look serves those that come
                                   # so close together, and every barrier waits so long

# -- expressions of changefeeds on Spark ---------------------------------------------------------------------------
ASKED_JOBS_MAX = 4                 # jobs of tables with expressions at a time: most cores are for those without
HEARD_AHEAD = 2                    # portions that Spark has judged and nobody has encoded yet: up to 4 MiB each
CULPRITS_MAX = 16                  # rows of one plan that break an expression; with more the expression is wrong
CULPRITS_S = 60.0                  # of one trial at most: a job of a tenth of a second, or of some seconds
SEARCH_SLICE_S = 10.0              # of a search in one round, then the next goes on with it: who must stop waits for it
TRIALS_AT_ONCE = 4                 # jobs of one search: as many as tables with expressions have, at most
SEARCHES_MAX = 1024                # remembered: a few hundred bytes each

# -- changefeeds on a capture --------------------------------------------------------------------------------------
PASSED_LOOK_MIN_S = 0.02           # between two looks at a ddl position while somebody waits at a barrier, doubled
PASSED_LOOK_MAX_S = 1.0            # ... up to this: a barrier may wait for hours behind an isolated table
CHANGEFEEDS_STOP_S = 3.0           # of each part: all of them fit into what a supervisor gives a process

# -- what people ask about changefeeds -----------------------------------------------------------------------------
RELEASED_ANSWER_S = 2.0            # for what the log or an office tells of a changefeed, shown beside the rest
QUARANTINE_ANSWER_S = 20.0         # for reading a quarantine: below what a command waits for its answer
REPLAY_S = 40.0                    # for one row: what stands behind it in its partition is looked through
QUARANTINE_COUNT_S = 5.0           # between two looks at how many rows stand in quarantines, for health and metrics
POSITIONS_ASKED_MAX = 16           # offices of changefeeds that do not run, read at a time for one answer
QUARANTINE_SETTLE_MAX = 1_000      # rows dropped by one append
SOURCE_TABLES_S = 20.0             # for a source's tables: a `progress` of a million records is read in less

# -- health ---------------------------------------------------------------------------------------------------------
HEALTH_EVERY_S = 3.0               # between two looks of the coordinator: metrics are to be right within 15 s
HEALTH_FRESH_S = 1.0               # a look that is younger is shown again: many may ask at once
HEALTH_STALE_S = 30.0              # a look that is older says nothing any more: its series vanish
HEALTH_SERIES_MAX = 500            # findings in metrics, the worst first: a thousand tables in trouble are one cause
HEALTH_NAMES_MAX = 5               # tables that one finding names
SPARK_IDLE_LOOK_S = 5.0            # a capture with dispatchers and no job under way looks whether Spark answers
SPARK_FIRST_LOOK_S = 0.5           # ... and soon after the first has come: its creator waits to hear whether it moves
SOURCE_LAG_WARN_S = 60.0           # changes reach the log so late: a large transaction may take as long
FEED_LAG_WARN_S = 30.0             # a change waits so long: rounds take a second, a lost Spark is back in 20 s
BLOCKED_WARN_S = 30.0              # a move, a barrier, a take-over waits so long: a fail-over takes ten seconds
ROUND_STUCK_S = 10.0               # a round's work has a deadline of 5 s, and Spark's answer needs a moment
SLOT_WARN_LEFT, SLOT_URGENT_LEFT = 0.5, 0.2      # shares of the slot's WAL budget that are left
SLOT_FULL_SOON_S = 3600.0          # the budget is used up by then at the present rate
DISK_WARN_FREE = 0.1               # share of a broker's disk that is free; writes are refused below 5 %

# -- copies through changefeeds ------------------------------------------------------------------------------------
COPY_NUMBER_BITS = 24              # records of one chunk in one partition: sixteen million of a mebibyte each

# -- floors of the log ---------------------------------------------------------------------------------------------
FLOOR_OWNER_CHARS_MAX = 200        # `copy/<source>/<copy>`, `changefeed/<id>`
FLOORS_MAX = 400_000               # ten holders of each partition of a full broker: 100 MB, and 20 MiB of a snapshot
FLOORS_PER_CALL_MAX = 10_000       # one request stays below a mebibyte
FLOORS_PER_RECORD_MAX = 5_000      # 0.3 MiB of a store's append
FLOOR_OWNERS_GONE_MAX = 1_000      # owners without floors whose epoch is kept, so that a late call does not bring one
                                   # back; each copy of a table is an owner, so the oldest are forgotten
FLOOR_MOVE_S = 30.0                # how often a holder moves its floors: each move is a record to every broker
