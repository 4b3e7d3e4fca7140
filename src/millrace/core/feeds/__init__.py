"""The control plane of changefeeds as pure machines; see README.md."""
