"""The control plane of changefeeds in one process: store, captures, coordinator, maintainers, managers [C1-C9, V9].

Every decision is made by the product's own machines (core.feeds); what surrounds them here is a model: a store with
lost answers, a network that loses, delays, doubles and reorders, captures that crash and pause, rounds whose tasks
outlive their captures, a log with schema changes, a home of positions and a target. One seed is one run. After the
faults the world heals, and then everything must be placed, working, written once and in its place.
"""
