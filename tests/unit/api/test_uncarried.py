"""Tables that match and are not carried, as changefeeds tell of them [C9]."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from millrace.api.uncarried import not_carried, uncarried_of, uncarried_warnings
from millrace.changefeed.coordinator import Reign
from millrace.core.sources.registry import SourceState
from millrace.model.changefeeds import ChangefeedSpec
from millrace.source.reading.status import ReaderStatus, Uncarried

SPEC = ChangefeedSpec(id="f", source="shop", sink="kafka:?format=json", tables=("public.*", "!public.tmp"))


def reign_of(*tables: Uncarried) -> Reign:
    reader = SimpleNamespace(status=ReaderStatus(uncarried=tables), state=SourceState("shop"))
    return cast(Reign, SimpleNamespace(hosts={"shop": SimpleNamespace(reader=reader)}))


def test_C9_a_table_that_was_never_carried_is_told_with_its_reason_and_the_next_step() -> None:
    step = "ALTER TABLE public.keyless ADD PRIMARY KEY (…);"
    no_key = Uncarried("public", "keyless", "it has no key", step)
    reign = reign_of(no_key, Uncarried("public", "tmp", "no", ""), Uncarried("other", "t", "no", ""))
    assert uncarried_of(reign, SPEC) == [
        {"table": "public.keyless", "why": "it has no key", "next_step": step}]
    assert list(not_carried(reign, SPEC)) == ["public.keyless"]
    (warning,) = uncarried_warnings(reign, SPEC)
    assert warning["about"] == "table public.keyless"
    assert "it has no key; next step: ALTER TABLE" in warning["text"]


def test_C9_of_a_source_without_a_reader_nothing_is_said() -> None:
    nobody: dict[str, Any] = {}
    assert uncarried_of(cast(Reign, SimpleNamespace(hosts=nobody)), SPEC) == []
