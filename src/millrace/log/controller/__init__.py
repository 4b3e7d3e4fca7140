"""The controller: one broker decides for the log. `ControllerShell` is what the composition root builds."""

from millrace.log.controller.config import ControllerConfig
from millrace.log.controller.reign import CONTROLLER_MESSAGES
from millrace.log.controller.shell import ControllerShell
from millrace.log.controller.stats import ControllerStats

__all__ = ["CONTROLLER_MESSAGES", "ControllerConfig", "ControllerShell", "ControllerStats"]
