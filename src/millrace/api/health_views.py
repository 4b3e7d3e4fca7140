"""Findings of health as JSON; the same on brokers and captures [A9]."""

from __future__ import annotations

from typing import Any

from millrace.core.health.findings import Finding


def finding_view(finding: Finding) -> dict[str, Any]:
    return {"kind": finding.kind, "name": finding.name, "code": finding.code, "severity": finding.severity,
            "reason": finding.reason, "age_s": None if finding.age_s is None else round(finding.age_s, 1),
            "next_step": finding.next_step}
