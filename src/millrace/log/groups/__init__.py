"""Coordinators of consumer groups: the shell around core.groups [L20, L21]."""

from millrace.log.groups.coordinator import Coordinator
from millrace.log.groups.coordinators import Coordinators

__all__ = ["Coordinator", "Coordinators"]
