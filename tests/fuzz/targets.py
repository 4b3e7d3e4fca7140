"""What meets bytes from outside. Each target is a module beside this one with `run(data)` and `seeds()`.

In: any bytes. Out: nothing, or an error of the tree. Seeds are made by our encoders, so that the fuzzer begins with
inputs that are understood. `run.py` has libFuzzer drive one target; `test_fuzz.py` starts it.
"""

from __future__ import annotations

# By target: the modules whose branches lead the fuzzer. They are imported first, with what they need of ours.
TARGETS: dict[str, tuple[str, ...]] = {
    "kafka_requests": ("millrace.wire.kafka.hot", "millrace.wire.kafka.codec", "millrace.wire.records",
                       "millrace.model.position_calls", "millrace.model.floors"),
    "record_batches": ("millrace.wire.records", "millrace.wire.primitives", "millrace.wire.compression"),
    "link_frames": ("millrace.wire.links", "millrace.wire.feeds", "millrace.wire.framing", "millrace.wire.records",
                    "millrace.wire.proof"),
    "pgoutput": ("millrace.wire.pg.pgoutput", "millrace.wire.pg.chunks"),
    "copy_binary": ("millrace.wire.pg.copybinary", "millrace.wire.pg.frames"),
    "http_bodies": ("millrace.core.feeds.feeds", "millrace.sink.uri", "millrace.sink.routes"),
}

