"""Nasty values for every type of S6: what the workload writes into table `types`, as SQL literals.

Each entry: column name, declared type, literals. Values stand at the edges of their types or are printed in a way a
careless decoder gets wrong; NULL and the plain case are added for every column by `pick`.
"""

from __future__ import annotations

import random

PREPARE = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'very happy', 'it''s', 'комма,');
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN label AS text;
CREATE TYPE pair AS (a int, b text);
"""

# name, type, literals
VALUES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("c_bool", "boolean", ("true", "false")),
    ("c_int2", "smallint", ("-32768", "32767", "0")),
    ("c_int4", "integer", ("-2147483648", "2147483647", "-1")),
    ("c_int8", "bigint", ("-9223372036854775808", "9223372036854775807", "0")),
    ("c_float4", "real", ("'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "1e-45", "3.4028235e38", "0.1", "16777217")),
    ("c_float8", "double precision",
     ("'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "5e-324", "1.7976931348623157e308", "0.1", "1e15",
      "123456789012345680", "1e-5", "0.30000000000000004")),
    ("c_numeric", "numeric",
     ("'NaN'", "'Infinity'", "'-Infinity'", "1e-40", "1e120", "0", "0.000", "-1.10",
      "12345678901234567890123456789012345678901")),
    ("c_money12", "numeric(12,2)", ("'NaN'", "0", "-0.01", "9999999999.99", "-9999999999.99", "1.1")),
    ("c_dec38", "numeric(38,0)", ("99999999999999999999999999999999999999", "-1", "'NaN'")),
    ("c_dec38s", "numeric(38,38)", ("0.99999999999999999999999999999999999999", "-1e-38", "0")),
    ("c_dec60", "numeric(60,20)", ("1e39", "-0.00000000000000000001", "'NaN'")),
    ("c_negscale", "numeric(5,-2)", ("12345", "-9999900", "0")),
    ("c_text", "text",
     ("''", "'NULL'", r"E'\\N'", r"E'a\tb\nc\r\\d'", "'žluťoučký 🐎 ✓'", "'u'", "'\"'", "'  lead and trail  '",
      r"E'\x01\x7f'")),
    ("c_varchar", "varchar(10)", ("''", "'1234567890'", "'žžžžžžžžžž'")),
    ("c_bpchar", "char(5)", ("''", "'a'", "'ab   '", "'žžž'")),
    ("c_char", '"char"', ("'x'", "''", "'\\'")),
    ("c_name", "name", ("'pg_name'", "'" + "n" * 63 + "'", "''")),
    ("c_bytea", "bytea", (r"'\x'", r"'\x00ff5c27'", r"'\x5c78'")),
    ("c_uuid", "uuid", ("'00000000-0000-0000-0000-000000000000'", "'FFFFFFFF-ffff-ffff-ffff-ffffffffffff'")),
    ("c_date", "date",
     ("'infinity'", "'-infinity'", "'4713-01-01 BC'", "'5874897-12-31'", "'0001-01-01'", "'1969-12-31'",
      "'9999-12-31'", "'10000-01-01'")),
    ("c_time", "time", ("'24:00:00'", "'00:00:00'", "'23:59:59.999999'", "'12:00:00.5'")),
    ("c_time3", "time(3)", ("'24:00:00'", "'00:00:00.123'")),
    ("c_timetz", "timetz", ("'24:00:00-15:59'", "'00:00:00+15:59'", "'12:34:56.7+05:30'")),
    ("c_timestamp", "timestamp",
     ("'infinity'", "'-infinity'", "'4713-01-01 00:00:00 BC'", "'294276-12-31 23:59:59.999999'",
      "'1969-12-31 23:59:59.999999'", "'2024-02-29 12:00:00.1'", "'0001-01-01 00:00:00'", "'10000-01-01 00:00:00'")),
    ("c_timestamptz", "timestamptz",
     ("'infinity'", "'-infinity'", "'4713-01-01 00:00:00 BC'", "'294276-12-31 23:59:59.999999+00'",
      "'2024-03-31 02:30:00+02'",
      "'1970-01-01 00:00:00+00'", "'2000-01-01 00:00:00.000001+00'")),
    ("c_timestamp0", "timestamp(0)", ("'2024-02-29 23:59:59.5'", "'infinity'")),
    ("c_interval", "interval",
     ("'0'", "'1 year -2 mons 3 days -04:05:06.789'", "'-178000000 years'", "'-1 mon +1 day'", "'100 hours'")),
    ("c_inet", "inet", ("'10.0.0.1'", "'10.0.0.1/8'", "'::1'", "'::ffff:1.2.3.4/96'")),
    ("c_cidr", "cidr", ("'10.0.0.0/8'", "'::/0'", "'192.168.1.1/32'")),
    ("c_macaddr", "macaddr", ("'08:00:2b:01:02:03'",)),
    ("c_macaddr8", "macaddr8", ("'08:00:2b:01:02:03:04:05'",)),
    ("c_bit", "bit(8)", ("B'00000000'", "B'10101010'")),
    ("c_varbit", "bit varying", ("B''", "B'1'", "B'0000000000000000000000001'")),
    ("c_money", "money", ("'-$92,233,720,368,547,758.08'", "'0'", "'1.5'")),
    ("c_json", "json", ("'{\"a\": 1, \"a\" : 2}'", "'  [1,  null]  '", "'\"\\u0041\"'", "'null'")),
    ("c_jsonb", "jsonb", ("'{\"b\":1e2, \"a\":[1,{\"x\":null}]}'", "'\"\\\"\"'", "'null'", "'1.10'")),
    ("c_int_a", "int[]", ("'{}'", "'{1,NULL,-3}'", "'{{1,2},{3,4}}'", "'[-1:1]={7,8,9}'")),
    ("c_text_a", "text[]",
     ("'{}'", "ARRAY['a,b', 'NULL', NULL, '', 'q\"q', E'back\\\\slash', '{}']", "ARRAY[['x'],['y z']]")),
    ("c_num_a", "numeric(6,2)[]", ("'{1.5,NaN,NULL}'",)),
    ("c_mood", "mood", ("'sad'", "'very happy'", "'it''s'", "'комма,'")),
    ("c_mood_a", "mood[]", ("ARRAY['ok','very happy']::mood[]", "'{}'")),
    ("c_positive", "positive", ("1", "2147483647")),
    ("c_label", "label", ("''", "'t'")),
    ("c_pair", "pair", ("ROW(NULL,NULL)::pair", "ROW(1,'x,\"y')::pair", "ROW(NULL,'')::pair")),
    ("c_int4range", "int4range", ("'empty'", "'[1,5)'", "'(,)'", "'[-5,)'")),
    ("c_numrange", "numrange", ("'[1.10,2.2]'", "'(,0)'")),
    ("c_tstzrange", "tstzrange", ("'[2024-01-01 00:00:00+01,infinity)'", "'empty'")),
    ("c_daterange", "daterange", ("'[2024-01-01,2024-02-01)'", "'(-infinity,)'")),
    ("c_multirange", "int8multirange", ("'{}'", "'{[1,3),[7,9)}'")),
    ("c_point", "point", ("'(1.5,-0)'", "'(NaN,Infinity)'")),
    ("c_box", "box", ("'(2,2),(0,0)'",)),
    ("c_path", "path", ("'[(0,0),(1,1)]'", "'((0,0),(1,1))'")),
    ("c_polygon", "polygon", ("'((0,0),(1,1),(1,0))'",)),
    ("c_circle", "circle", ("'<(0,0),1e-10>'",)),
    ("c_line", "line", ("'{1,-1,0}'",)),
    ("c_lseg", "lseg", ("'[(0,0),(1,1)]'",)),
    ("c_tsvector", "tsvector", ("'a:1A fat:2 ''it''''s'':3'", "''")),
    ("c_tsquery", "tsquery", ("'fat & !cat'",)),
    ("c_oid", "oid", ("0", "4294967295")),
    ("c_lsn", "pg_lsn", ("'0/0'", "'FFFFFFFF/FFFFFFFF'")),
    ("c_xid8", "xid8", ("'18446744073709551615'", "'0'")),
    ("c_jsonpath", "jsonpath", ("'$.a[*] ? (@ > 1)'",)),
    ("c_regtype", "regtype", ("'integer'", "'timestamp with time zone'")),
    ("c_tid", "tid", ("'(4294967295,65535)'", "'(0,1)'")),
)

# Values that only newer servers know: (least major version, column, literal).
NEWER: tuple[tuple[int, str, str], ...] = (
    (17, "c_interval", "'infinity'"),
    (17, "c_interval", "'-infinity'"),
)


def columns(version: int) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """The columns a server of this major version can have, with all their literals."""
    grown = []
    for name, kind, literals in VALUES:
        if kind == "numeric(5,-2)" and version < 15:
            continue
        extra = tuple(literal for least, column, literal in NEWER if column == name and version >= least)
        grown.append((name, kind, literals + extra))
    return tuple(grown)


def create_types_table(version: int) -> str:
    """`c_generated` is stored by the server and never sent: rebuilt tables do not have it."""
    body = ", ".join(f"{name} {kind}" for name, kind, _ in columns(version))
    return PREPARE + (f"CREATE TABLE types (id int PRIMARY KEY, {body}, "
                      "c_generated int GENERATED ALWAYS AS (id * 2) STORED);")


def pick(rng: random.Random, version: int) -> dict[str, str]:
    """One literal per column; one in ten is NULL."""
    return {name: "NULL" if rng.random() < 0.1 else rng.choice(literals) for name, _, literals in columns(version)}


def every_value(version: int) -> list[dict[str, str]]:
    """Rows in which each literal of each column occurs; the last is all NULL."""
    found = columns(version)
    longest = max(len(literals) for _, _, literals in found)
    rows = [{name: literals[n % len(literals)] for name, _, literals in found} for n in range(longest)]
    return [*rows, {name: "NULL" for name, _, _ in found}]
