"""What a copying process is made of."""

from __future__ import annotations

import subprocess
import sys

COPIES = """
import sys
from struct import pack
import millrace.source.copying.worker
from millrace.model.tables import Column, TableSchema
from millrace.source.copying.append import encode_rows
from millrace.wire.pg.copybinary import CopyDecoder
from millrace.wire.pg.partition import partition_of

types = (20, -1), (25, -1), (1700, (12 << 16 | 2) + 4), (1184, -1), (16, -1)
table = TableSchema(7, "s", "t", "d", tuple(Column(f"c{i}", *kind, is_key=not i) for i, kind in enumerate(types)))
cells = pack(">q", 1), b"x", pack(">hhHHh", 1, 0, 0, 2, 7), pack(">q", 5), b"1"
row = pack(">h", 5) + b"".join(pack(">i", len(cell)) + cell for cell in cells)
batch = CopyDecoder(table).decode([b"PGCOPY\\n\\xff\\r\\n\\0" + bytes(8), *[row] * 5000])
partition_of(batch, table, 4)
encode_rows(batch)
print(batch.num_rows, [name for name in ("pandas", "pyspark") if name in sys.modules])
"""


def test_a_worker_does_not_import_what_it_has_no_use_for() -> None:
    """Pandas alone takes as long as half of the rest."""
    said = subprocess.run([sys.executable, "-c", COPIES], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["5000", "[]"]
