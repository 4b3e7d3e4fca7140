"""A changefeed as commands tell it: facts, what it waits for. What the API does not know is not told as zero."""

from __future__ import annotations

from typing import Any

from millrace.core.durations import duration_text, size_text


def waiting(found: dict[str, Any]) -> str:
    """What a running changefeed still lacks; empty: every dispatcher works."""
    if found["state"] != "normal" and not _lacks_tables_only(found):
        return f"{found['state']}{': ' if found['why'] else ''}{found['why']}"
    if found["working_count"] is None or found["resolved"] is None:
        return f"normal: {held_up(found) or 'its source has made no mark yet'}"
    if found["working_count"] < found["dispatchers_count"]:
        return f"{found['working_count']} of {found['dispatchers_count']} dispatchers work"
    return ""


def _lacks_tables_only(found: dict[str, Any]) -> bool:
    """Every table that its source carries is on its way; what the source refuses is said, and nobody waits for it."""
    return found["state"] == "warning" and {one["code"] for one in found["health"]} == {"table_not_carried"}


def held_up(found: dict[str, Any]) -> str:
    """The oldest thing that waits; empty where nothing does."""
    oldest = found["oldest_blocker"]
    return "" if oldest is None else f"{oldest['what']}: {oldest['reason']} ({seconds(oldest['age_s'])})"


def facts(f: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        ("changefeed", f["id"]), ("source", f["source"]), ("sink", f["sink"]), ("tables", ", ".join(f["tables"])),
        *((f"settings[{i}]", _settings(one)) for i, one in enumerate(f["settings"])),
        ("on error", f["on_error"]), ("on schema break", f["on_schema_break"]), ("state", f["state"]),
        ("why", f["why"]),
        ("maintainer", None if f["maintainer"] is None else f"capture {f['maintainer']}"),
        ("epoch", f["maintainer_epoch"]), ("tables there", f["tables_count"]), ("isolated", f["isolated_count"]),
        ("need a copy", f["needs_copy_count"]), ("rows in quarantine", f["quarantined_count"]),
        ("dispatchers at work", None if f["working_count"] is None else
         f"{f['working_count']} of {f['dispatchers_count']}"),
        ("checkpoint", f["checkpoint"]), ("since", seconds(f["checkpoint_age_s"])), ("resolved", f["resolved"]),
        ("lag", lag_text(f) if f["maintainer"] is not None else None), ("waits for", held_up(f)),
        *((f"warning: {w['about']}", w["text"]) for w in f["warnings"]),
    ]


def _settings(one: dict[str, Any]) -> str:
    said = [f"{field} {value if isinstance(value, str) else ', '.join(value)}" for field, value in one.items()
            if value and field != "tables"]
    return f"{one['tables']}: {'; '.join(said)}"


def seconds(value: float | None) -> str | None:
    return None if value is None else duration_text(value)


def bytes_text(value: str | None) -> str | None:
    return None if value is None else size_text(int(value))


def lag_text(found: dict[str, Any]) -> str:
    """In seconds and in bytes; what is not known is said so."""
    known = [text for text in (seconds(found["lag_s"]), bytes_text(found["lag_bytes"])) if text is not None]
    return ", ".join(known) if known else "unknown"
