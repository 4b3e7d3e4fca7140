"""The pure machines driven straight from a heap: thousands of small worlds, each from one seed.

In: a seed, perhaps a planted flaw. Out: a run in which every rule of the log was checked from outside the machines, or
a `Violation` with a sentence and the command that replays it. Promise: a seed gives the same run everywhere.
"""
