"""What Debezium and we are compared on: types with their values, and tables of every shape with their statements.

TYPES: name of a case -> (SQL type, SQL literals). Each case is a table `t_<case>` (id, v); its rows are written once
before the snapshot and once more behind it, since Debezium reads the two in different ways.
"""

from __future__ import annotations

PREPARE = """
CREATE EXTENSION IF NOT EXISTS hstore; CREATE EXTENSION IF NOT EXISTS ltree; CREATE EXTENSION IF NOT EXISTS citext;
CREATE EXTENSION IF NOT EXISTS isn;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'very happy', 'it''s', 'a,b');
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN small_positive AS positive;
CREATE DOMAIN label AS text;
CREATE DOMAIN price AS numeric(10,2);
CREATE TYPE pair AS (a int, b text);
"""

_ESCAPES = tuple(f"E'x\\\\x{code:02x}y'".replace("\\\\", "\\") for code in (*range(1, 32), 0x7F))
_SCALES = tuple((f"dec_38_{scale}", f"numeric(38,{scale})") for scale in (0, 1, 2, 5, 6, 7, 10, 18, 19, 37, 38))


def _scaled(scale: int) -> tuple[str, ...]:
    unit = f"1e-{scale}"
    return ("0", unit, f"-{unit}", f"127*{unit}", f"128*{unit}", f"-128*{unit}", f"-129*{unit}", f"255*{unit}",
            f"256*{unit}", f"32767*{unit}", f"32768*{unit}", f"-32768*{unit}", f"-32769*{unit}",
            f"9223372036854775807*{unit}", f"-9223372036854775808*{unit}", f"18446744073709551616*{unit}",
            f"99999999999999999999999999999999999999*{unit}", f"-99999999999999999999999999999999999999*{unit}")


_TIMES = ("'00:00:00'", "'23:59:59.999999'", "'12:00:00.5'", "'12:34:56.000001'", "'01:02:03.120'", "'24:00:00'")
_STAMPS = ("'1970-01-01 00:00:00'", "'2024-02-29 12:00:00.1'", "'1969-12-31 23:59:59.999999'", "'0001-01-01 00:00:00'",
           "'9999-12-31 23:59:59.999999'", "'2024-02-29 12:00:00.123456'", "'2024-02-29 12:00:00.100'",
           "'1582-10-04 12:00:00'", "'1582-10-15 00:00:00'")
_FAR = ("'10000-01-01 00:00:00'", "'0044-03-15 12:00:00 BC'", "'4713-01-01 00:00:00 BC'", "'infinity'", "'-infinity'",
        "'294276-12-31 23:59:59.999999'")

TYPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "bool": ("boolean", ("true", "false")),
    "int2": ("smallint", ("-32768", "32767", "0")),
    "int4": ("integer", ("-2147483648", "2147483647", "-1")),
    "int8": ("bigint", ("-9223372036854775808", "9223372036854775807", "0")),
    "oid": ("oid", ("0", "4294967295")),
    "float4": ("real", ("'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "1e-45", "3.4028235e38", "0.1", "16777217", "1",
                        "100", "1e7", "12345678", "0.001", "0.0001", "1e10", "-2.5e-5")),
    "float8": ("double precision", ("'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "5e-324", "1.7976931348623157e308",
                                    "0.1", "1e15", "1e7", "9999999", "12345678.9", "123456789012345680", "1e-5",
                                    "0.001", "0.0001", "0.30000000000000004", "2e-3", "100", "1e21", "1e22")),
    "numeric": ("numeric", ("0", "0.000", "-1.10", "1e-40", "1e120", "12345678901234567890123456789012345678901",
                            "1.5", "100", "-128", "128", "255.255", "'NaN'", "'Infinity'", "'-Infinity'")),
    "dec_12_2": ("numeric(12,2)", ("0", "-0.01", "9999999999.99", "-9999999999.99", "1.1", "1.28", "'NaN'")),
    "dec_60_20": ("numeric(60,20)", ("1e39", "-0.00000000000000000001", "0")),
    "dec_5_m2": ("numeric(5,-2)", ("12345", "-9999900", "0")),
    "dec_2_5": ("numeric(2,5)", ("0.00012", "-0.00099", "0")),
    **{name: (kind, _scaled(int(name.rpartition("_")[2]))) for name, kind in _SCALES},
    "text": ("text", ("''", "'NULL'", "'a\"b'", r"E'back\\slash'", "'/slash/'", "'žluťoučký 🐎 ✓'",
                      "'  lead and trail  '",
                      "E'\\u2028\\u2029'", "E'\\uFFFE'", *_ESCAPES)),
    "varchar": ("varchar(10)", ("''", "'1234567890'", "'žžžžžžžžžž'")),
    "bpchar": ("char(5)", ("''", "'a'", "'ab   '", "'žžž'")),
    "char1": ('"char"', ("'x'", "'\\'")),
    "name": ("name", ("'pg_name'",)),
    "citext": ("citext", ("'MiXed'", "''")),
    "bytea": ("bytea", (r"'\x'", r"'\x00'", r"'\x00ff'", r"'\x00ff5c'", r"'\x00ff5c27'", r"'\xfbffbf'")),
    "uuid": ("uuid", ("'00000000-0000-0000-0000-000000000000'", "'FFFFFFFF-ffff-ffff-ffff-ffffffffffff'")),
    "date": ("date", ("'1970-01-01'", "'0001-01-01'", "'1969-12-31'", "'9999-12-31'", "'10000-01-01'",
                      "'0044-03-15 BC'", "'4713-01-01 BC'", "'5874897-12-31'", "'infinity'", "'-infinity'",
                      "'1582-10-04'", "'1582-10-15'")),
    **{f"time{p}": (f"time({p})", _TIMES) for p in range(7)}, "time": ("time", _TIMES),
    "timetz": ("timetz", ("'24:00:00-15:59'", "'00:00:00+15:59'", "'12:34:56.7+05:30'", "'01:02:03+02'",
                          "'01:02:03.120-08'", "'23:59:59.999999+00'")),
    **{f"timestamp{p}": (f"timestamp({p})", _STAMPS) for p in range(7)}, "timestamp": ("timestamp", (*_STAMPS, *_FAR)),
    **{f"timestamptz{p}": (f"timestamptz({p})", _STAMPS) for p in (0, 3)},
    "timestamptz": ("timestamptz", (*_STAMPS, *_FAR)),
    "interval": ("interval", ("'0'", "'1 year -2 mons 3 days -04:05:06.789'", "'-1 mon +1 day'", "'100 hours'",
                              "'1 year 2 mons 3 days 04:05:06.5'", "'-3 days -00:00:00.000001'", "'1 mon'",
                              "'-1 year -11 mons'", "'00:00:01'")),
    "inet": ("inet", ("'10.0.0.1'", "'10.0.0.1/8'", "'::1'", "'::ffff:1.2.3.4/96'")),
    "cidr": ("cidr", ("'10.0.0.0/8'", "'::/0'", "'192.168.1.1/32'")),
    "macaddr": ("macaddr", ("'08:00:2b:01:02:03'",)),
    "macaddr8": ("macaddr8", ("'08:00:2b:01:02:03:04:05'",)),
    "bit1": ("bit", ("B'0'", "B'1'")),
    "bit8": ("bit(8)", ("B'00000000'", "B'10101010'", "B'11111111'")),
    "bit3": ("bit(3)", ("B'001'", "B'110'")),
    "bit17": ("bit(17)", ("B'10000000000000001'", "B'00000000000000010'")),
    "bit64": ("bit(64)", ("B'" + "10" * 32 + "'",)),
    "varbit": ("bit varying", ("B''", "B'1'", "B'0000000000000000000000001'", "B'101010101'")),
    "varbit9": ("bit varying(9)", ("B'1'", "B'101010101'")),
    "money": ("money", ("'-$92,233,720,368,547,758.08'", "'0'", "'1.5'", "'1234.56'", "'-0.01'")),
    "json": ("json", ("'{\"a\": 1, \"a\" : 2}'", "'  [1,  null]  '", "'\"\\u0041\"'", "'null'")),
    "jsonb": ("jsonb", ("'{\"b\":1e2, \"a\":[1,{\"x\":null}]}'", "'\"\\\"\"'", "'null'", "'1.10'")),
    "xml": ("xml", ("'<a b=\"c\">d</a>'",)),
    "hstore": ("hstore", ("''", "'a=>1, b=>NULL'", "'\"k \\\"q\\\"\"=>\"v,w\"'", "'x=>\"\"'")),
    "ltree": ("ltree", ("'Top.Science.Astronomy'", "''")),
    "isbn": ("isbn", ("'0-393-04002-X'",)),
    "tsvector": ("tsvector", ("'a fat cat'", "'''quo''te'':1A'")),
    "tsquery": ("tsquery", ("'fat & rat'",)),
    "point": ("point", ("'(1,2)'", "'(-1.5,1e10)'", "'(0.1,100)'")),
    "box": ("box", ("'((1,2),(3,4))'",)),
    "int4range": ("int4range", ("'empty'", "'[1,5)'", "'(,)'", "'[-5,)'")),
    "int8range": ("int8range", ("'[1,5)'",)),
    "numrange": ("numrange", ("'[1.10,2.2]'", "'(,0)'")),
    "tsrange": ("tsrange", ("'[2024-01-01,2024-02-01)'",)),
    "tstzrange": ("tstzrange", ("'[2024-01-01 00:00:00+00,2024-02-01 00:00:00+00)'",)),
    "daterange": ("daterange", ("'[2024-01-01,2024-02-01)'",)),
    "mood": ("mood", ("'sad'", "'very happy'", "'it''s'", "'a,b'")),
    "positive": ("positive", ("1", "2147483647")),
    "small_positive": ("small_positive", ("5",)),
    "label": ("label", ("''", "'t'")),
    "price": ("price", ("1.10", "-12345678.90")),
    "pair": ("pair", ("ROW(1,'x')::pair",)),
    "int2_a": ("smallint[]", ("'{}'", "'{1,NULL,-3}'")),
    "int4_a": ("int[]", ("'{}'", "'{1,NULL,-3}'", "'{7}'")),
    "int4_aa": ("int[]", ("'{{1,2},{3,4}}'",)),
    "int4_bounds": ("int[]", ("'[-1:1]={7,8,9}'",)),
    "int8_a": ("bigint[]", ("'{9223372036854775807,NULL}'",)),
    "bool_a": ("boolean[]", ("'{t,f,NULL}'",)),
    "float4_a": ("real[]", ("'{1,1.5,NULL}'",)),
    "float8_a": ("double precision[]", ("'{1,1.5,NULL,1e100}'", "'{NaN,Infinity}'")),
    "text_a": ("text[]", ("'{}'", "ARRAY['a,b', 'NULL', NULL, '', 'q\"q', E'back\\\\slash', '{}', ' x ', E'\\n']")),
    "varchar_a": ("varchar(20)[]", ("ARRAY['a,b', NULL, '']",)),
    "bpchar_a": ("char(3)[]", ("ARRAY['a', NULL]",)),
    "num_a": ("numeric(6,2)[]", ("'{1.5,NULL,-12.34}'",)),
    "numeric_a": ("numeric[]", ("'{1.5,NULL,-12.345}'",)),
    "date_a": ("date[]", ("'{1970-01-02,NULL,2024-02-29}'",)),
    "time_a": ("time[]", ("'{12:00:00.5,NULL}'",)),
    "timetz_a": ("timetz[]", ("'{12:00:00.5+02,NULL}'",)),
    "timestamp_a": ("timestamp[]", ("'{2024-02-29 12:00:00.1,NULL}'",)),
    "timestamptz_a": ("timestamptz[]", ("'{2024-02-29 12:00:00.1+00,NULL}'",)),
    "uuid_a": ("uuid[]", ("'{00000000-0000-0000-0000-000000000000,NULL}'",)),
    "jsonb_a": ("jsonb[]", ("ARRAY['{\"a\": 1}'::jsonb, NULL]",)),
    "json_a": ("json[]", ("ARRAY['{\"a\":  1}'::json, NULL]",)),
    "bytea_a": ("bytea[]", (r"ARRAY['\x00ff'::bytea, NULL]",)),
    "inet_a": ("inet[]", ("'{10.0.0.1,NULL}'",)),
    "mood_a": ("mood[]", ("ARRAY['ok','very happy',NULL]::mood[]", "'{}'")),
    "mood_a2": ("mood[]", ("ARRAY['ok','very happy']::mood[]",)),
    "citext_a": ("citext[]", ("ARRAY['A','b']::citext[]",)),
    "oid_a": ("oid[]", ("'{1,4294967295}'",)),
    "money_a": ("money[]", ("'{1.50,NULL}'",)),
    "interval_a": ("interval[]", ("'{1 day,NULL}'",)),
    "bit_a": ("bit(3)[]", ("'{101,NULL}'",)),
    "int4range_a": ("int4range[]", ("ARRAY['[1,5)'::int4range]",)),
    "hstore_a": ("hstore[]", ("ARRAY['a=>1'::hstore]",)),
    "ltree_a": ("ltree[]", ("ARRAY['a.b'::ltree]",)),
    "point_a": ("point[]", ("ARRAY['(1,2)'::point]",)),
}

# Tables of other shapes.
SHAPES = """
CREATE TABLE s_plain (id int PRIMARY KEY, name text NOT NULL, note text, big text);
ALTER TABLE s_plain ALTER COLUMN big SET STORAGE EXTERNAL;
CREATE TABLE s_composite (zone int, tenant text, n int, v text, PRIMARY KEY (tenant, zone));
CREATE TABLE s_full (id int PRIMARY KEY, v text, big text); ALTER TABLE s_full REPLICA IDENTITY FULL;
ALTER TABLE s_full ALTER COLUMN big SET STORAGE EXTERNAL;
CREATE TABLE s_nokey (a int, b text); ALTER TABLE s_nokey REPLICA IDENTITY FULL;
CREATE TABLE s_index (id int, code text NOT NULL, v text); CREATE UNIQUE INDEX s_index_code ON s_index (code);
ALTER TABLE s_index REPLICA IDENTITY USING INDEX s_index_code;
CREATE TABLE s_odd_key (k numeric(10,2), t timestamp, m mood, d positive, PRIMARY KEY (t, k, m, d));
CREATE TABLE "S weird.Näme" ("Id key" int PRIMARY KEY, "va-lue" text, "1st" int, "é" int);
CREATE TABLE s_toast (id int PRIMARY KEY, t text, b bytea, a text[], i int[], j jsonb, h hstore, n numeric, m mood[]);
ALTER TABLE s_toast ALTER t SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL, ALTER a SET STORAGE EXTERNAL,
  ALTER i SET STORAGE EXTERNAL, ALTER j SET STORAGE EXTERNAL, ALTER h SET STORAGE EXTERNAL,
  ALTER n SET STORAGE EXTERNAL, ALTER m SET STORAGE EXTERNAL;
CREATE TABLE s_defaults (
  id serial PRIMARY KEY, b boolean NOT NULL DEFAULT true, i2 smallint DEFAULT 5, i4 int NOT NULL DEFAULT -7,
  i8 bigint DEFAULT 9000000000, f4 real DEFAULT 1.5, f8 double precision DEFAULT 0.1, n numeric(10,2) DEFAULT 1.10,
  nn numeric DEFAULT 2.5, t text DEFAULT 'it''s "x"', v varchar(10) NOT NULL DEFAULT '', c char(3) DEFAULT 'ab',
  u uuid DEFAULT '00000000-0000-0000-0000-000000000001', ug uuid DEFAULT gen_random_uuid(),
  d date DEFAULT '2024-02-29', dn date DEFAULT now(), tm time DEFAULT '01:02:03',
  ts timestamp DEFAULT '2024-02-29 12:00:00',
  tsn timestamp NOT NULL DEFAULT now(), tz timestamptz DEFAULT '2024-02-29 12:00:00+00', tzn timestamptz DEFAULT now(),
  iv interval DEFAULT '1 day', j jsonb DEFAULT '{}', by bytea DEFAULT '\\x00ff', m mood DEFAULT 'ok',
  bt bit(3) DEFAULT B'101', b1 bit DEFAULT B'1', mo money DEFAULT '1.50', ia int[] DEFAULT '{}',
  ta text[] DEFAULT '{a,b}',
  p positive DEFAULT 3, nl int DEFAULT NULL, ex int DEFAULT (1 + 2), lo text DEFAULT lower('ABC'),
  hs hstore DEFAULT 'a=>1', pt point DEFAULT '(1,2)', inn inet DEFAULT '10.0.0.1',
  idn int GENERATED BY DEFAULT AS IDENTITY);
"""
# Columns that cannot be null and are no part of the key: an old row without them needs something in their place.
NOT_NULL = {
    "b": "boolean", "i2": "smallint", "i4": "int", "i8": "bigint", "o": "oid", "f4": "real", "f8": "double precision",
    "n": "numeric(10,2)", "nn": "numeric", "t": "text", "c": "char(3)", "u": "uuid", "d": "date", "tm": "time",
    "tm3": "time(3)", "ts": "timestamp", "tz": "timestamptz", "ttz": "timetz", "iv": "interval", "j": "jsonb",
    "x": "xml", "by": "bytea", "m": "mood", "bt": "bit(3)", "b1": "bit", "mo": "money", "ia": "int[]", "ta": "text[]",
    "p": "positive", "hs": "hstore", "pt": "point", "inn": "inet", "lt": "ltree", "tv": "tsvector", "r": "int4range",
    "ci": "citext", "na": "numeric[]",
}
_NOT_NULL_VALUES = (
    "true, 1, 2, 3, 4, 1.5, 2.5, 1.10, 2.5, 'x', 'ab', '00000000-0000-0000-0000-000000000001', '2024-02-29',"
    " '01:02:03', '01:02:03', '2024-02-29 12:00:00', '2024-02-29 12:00:00+00', '01:02:03+00', '1 day', '{}',"
    " '<a/>', '\\x00',"
    " 'ok', B'101', B'1', '1.50', '{1}', '{a}', 5, 'a=>1', '(1,2)', '10.0.0.1', 'a.b', 'a', '[1,2)', 'x', '{1}'")
SHAPES += "CREATE TABLE s_notnull (id int PRIMARY KEY, " + ", ".join(
    f"{name} {kind} NOT NULL" for name, kind in NOT_NULL.items()) + ");"
_LONG = "(SELECT string_agg(md5(n::text), '') FROM generate_series(1, 100) n)"

SHAPE_ROWS = (
    "INSERT INTO s_plain VALUES (1, 'one', NULL, 'short'), (2, 'two', 'n', " + _LONG + ")",
    "INSERT INTO s_composite VALUES (1, 'a', 1, 'x'), (2, 'a', 2, NULL)",
    "INSERT INTO s_full VALUES (1, 'x', " + _LONG + ")",
    "INSERT INTO s_nokey VALUES (1, 'x'), (NULL, NULL)",
    "INSERT INTO s_index VALUES (1, 'c', 'x')",
    "INSERT INTO s_odd_key VALUES (1.50, '2024-02-29 12:00:00', 'it''s', 5)",
    'INSERT INTO "S weird.Näme" VALUES (1, \'x\', 2, 3)',
    ("INSERT INTO s_toast SELECT 1, l, l::bytea, ARRAY[l, NULL], array_agg(n), to_jsonb(l), hstore('k', l),"
     " repeat('123456789', 1000)::numeric, (SELECT array_agg('ok'::mood) FROM generate_series(1, 1000))"
     f" FROM {_LONG} q(l), generate_series(1, 1000) n GROUP BY l"),
    "INSERT INTO s_defaults (id) VALUES (1)",
    f"INSERT INTO s_notnull VALUES (1, {_NOT_NULL_VALUES})",
)

# Behind the snapshot, one transaction each.
CHANGES = (
    "INSERT INTO s_plain VALUES (3, 'three', NULL, " + _LONG + ")",
    "UPDATE s_plain SET note = 'changed' WHERE id IN (1, 2)",
    "UPDATE s_plain SET id = 20 WHERE id = 2",
    "DELETE FROM s_plain WHERE id = 1",
    "INSERT INTO s_composite VALUES (3, 'b', 3, 'y')",
    "UPDATE s_composite SET v = 'z' WHERE zone = 3",
    "UPDATE s_composite SET zone = 30, v = 'moved' WHERE zone = 3",
    "DELETE FROM s_composite WHERE zone = 30",
    "UPDATE s_full SET v = 'y'", "UPDATE s_full SET id = 2", "DELETE FROM s_full",
    "INSERT INTO s_nokey VALUES (2, 'y')", "UPDATE s_nokey SET b = 'z' WHERE a = 2", "DELETE FROM s_nokey WHERE a = 2",
    "UPDATE s_index SET v = 'y'", "UPDATE s_index SET code = 'd'", "DELETE FROM s_index",
    "UPDATE s_odd_key SET m = 'ok'", "DELETE FROM s_odd_key",
    'UPDATE "S weird.Näme" SET "1st" = 4', 'DELETE FROM "S weird.Näme"',
    "UPDATE s_toast SET id = 1", "INSERT INTO s_defaults (id) VALUES (2)",
    ("BEGIN; INSERT INTO s_plain VALUES (5, 'five', NULL, NULL); UPDATE s_plain SET note = 'in' WHERE id = 5;"
     " DELETE FROM s_plain WHERE id = 5; INSERT INTO s_composite VALUES (9, 'q', 1, NULL); COMMIT"),
    "DELETE FROM s_notnull", "DELETE FROM s_defaults WHERE id = 2",
    "TRUNCATE s_composite",
)

# Sets of Debezium's options under which all of it is compared.
OPTIONS: dict[str, dict[str, str]] = {
    "defaults": {},
    "others": {"decimal.handling.mode": "string", "time.precision.mode": "connect", "interval.handling.mode": "string",
               "binary.handling.mode": "hex", "hstore.handling.mode": "map"},
    "third": {"decimal.handling.mode": "double", "time.precision.mode": "adaptive_time_microseconds",
              "binary.handling.mode": "base64-url-safe"},
}
