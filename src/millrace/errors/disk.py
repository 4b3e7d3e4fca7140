"""Disks and directories."""

from __future__ import annotations

from millrace.errors.base import ConfigError, Damaged


class DiskFailed(Damaged):
    """A write or sync failed: the file is not trusted again."""

    code = "storage_error"
    retriable = True


class DiskFull(DiskFailed):
    code = "disk_full"
    http_status = 507


class SpoolFull(DiskFull):
    """No room for a streamed transaction that has not committed yet: free the disk, or raise
    `logical_decoding_work_mem` on the server so that it streams less."""

    code = "spool_full"


class ForeignDirectory(ConfigError):
    """A data directory of another broker or another cluster."""

    code = "foreign_directory"
