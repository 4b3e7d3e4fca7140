"""What is found before a capture starts."""

from __future__ import annotations

import socket

import pytest

from millrace.errors import ConfigError
from millrace.ops import config, preflight
from support_ports import free_ports

CLUSTER = "cluster: {id: 3f0d9d3e-58a5-4f66-8f3b-2b6f5c1f0f11}\n"


@pytest.mark.parametrize("key", ["http_port", "link_port"])
def test_A2_a_port_of_a_capture_that_is_taken_is_named(key: str) -> None:
    taken, other = free_ports(2)
    ports = {"http_port": other, "link_port": other + 1, key: taken}
    settings = config.parse(f"{CLUSTER}capture: {{http_port: {ports['http_port']}, link_port: {ports['link_port']}}}")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", taken))
        holder.listen(1)
        with pytest.raises(ConfigError, match=f"capture.{key}: 127.0.0.1:{taken} is taken by another process"):
            preflight.check_capture(settings)
    preflight.check_capture(settings)


def test_links_of_a_capture_are_300_above_its_http_unless_told() -> None:
    assert config.parse("capture: {http_port: 8301}").capture_link_port == 8601
    assert config.parse("capture: {link_port: 7000}").capture_link_port == 7000
