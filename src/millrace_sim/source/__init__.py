"""A source end to end in one process: database, reader, log, copies, two changefeeds, under seeded faults [S1-S9].

The protocol is decided by the product's own machines (core.reader, core.copies, core.sources, core.windows,
core.producers); what surrounds them here is a model: a WAL whose index is the LSN, partitions with a high watermark, a
scheduler that picks among all steps that are possible. One seed is one run. After the faults the world heals, and then
the rebuilt tables must equal the database and the log must hold each change once.
"""
