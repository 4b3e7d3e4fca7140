"""The public Spark data source `format("millrace")`."""

from millrace.pipeline.datasource.source import MillraceDataSource

__all__ = ["MillraceDataSource"]
