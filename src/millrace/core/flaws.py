"""Switches that plant one known flaw each, so that the checkers can be shown to catch it.

Production passes `NO_FLAWS`. Each field names a mistake of the seed's pseudo-code or of its later plan; the simulation
turns one on at a time and must find a violation within a stated number of seeds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flaws:
    credit_on_send: bool = False            # a follower's LEO counts what was just sent to it
    elect_by_leo: bool = False              # the longest reported log wins an election, whatever the ISR says
    hw_over_all: bool = False               # HW waits for every follower, not for the ISR
    hw_over_known: bool = False             # a follower with unknown LEO counts as absent
    no_truncation: bool = False             # a divergent suffix is kept
    hw_before_data: bool = False            # a follower takes the leader's HW before it has the data
    same_epoch_after_restart: bool = False  # a restarted leader goes on in the epoch it led before
    leader_owned_isr: bool = False          # the leader changes the ISR alone, without compare-and-set
    heartbeat_overwrites: bool = False      # a heartbeat's reports overwrite what the controller decided
    leo_before_disk: bool = False           # LEO moves before the data is durable
    cut_above_hw: bool = False              # a recorded log start is carried out above the high watermark
    cut_above_floor: bool = False           # a log start is recorded whatever floors stand there
    cut_unrecorded: bool = False            # a leader cuts by the floors it knows, without asking the controller
    writers_forgotten: bool = False         # a follower that starts over is told nothing of writers


NO_FLAWS = Flaws()
