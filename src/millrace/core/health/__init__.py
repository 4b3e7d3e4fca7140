"""Health: what a user would call broken, as findings; one model for commands, metrics, alert rules and the API [A9].

    facts (sources, changefeeds, Spark, captures, brokers) ─▶ sources, feeds, members ─▶ findings ─▶ commands, metrics

Promise: the same facts give the same findings, whoever asks; what is not known is a finding or null, never zero.
"""
