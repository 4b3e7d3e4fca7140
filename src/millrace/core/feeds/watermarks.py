"""Where a watermark holds: the topics in which all up to a checkpoint stands [K4].

In: the topic of each table that the changefeed takes, the tables that its checkpoint waits for. Out: topics. An
isolated table has left the checkpoint [C8]: of a topic that its rows go to nothing can be said, whoever else writes
there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from millrace.model.spans import TableId


def holds_in(topics: Mapping[TableId, str], tables: Collection[TableId]) -> set[str]:
    return {topics[table] for table in tables if table in topics} - {
        topic for table, topic in topics.items() if table not in tables}
