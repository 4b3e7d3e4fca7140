"""Functions of Spark SQL that filters and projections may call.

A list of those that may, not of those that may not: what somebody adds to Spark or registers in a session is refused
until it stands here. All of them tell the same for the same row whenever and wherever they run [P4]: no clock, no
random numbers, no session, no aggregate, no generator, nothing that is called into being by reflection.
"""

from __future__ import annotations

from typing import Final

_CHOICE = """
    coalesce equal_null greatest if ifnull isnan isnotnull isnull least nanvl nullif nullifzero nvl nvl2 zeroifnull
"""

_CASTS = """
    bigint binary boolean cast date decimal double float int smallint string timestamp tinyint
    to_binary to_char to_date to_number to_timestamp to_timestamp_ltz to_timestamp_ntz to_varchar
    try_to_binary try_to_date try_to_number try_to_timestamp
"""

_NUMBERS = """
    abs acos acosh asin asinh atan atan2 atanh bin bit_count bit_get bround cbrt ceil ceiling conv cos cosh cot csc
    degrees div e exp expm1 factorial floor getbit hex hypot ln log log10 log1p log2 mod negative pi pmod positive pow
    power radians rint round sec shiftleft shiftright shiftrightunsigned sign signum sin sinh sqrt tan tanh unhex
    width_bucket try_add try_divide try_mod try_multiply try_subtract
"""

_TEXTS = """
    ascii base64 bit_length btrim char char_length character_length chr concat concat_ws contains elt encode endswith
    find_in_set format_number format_string initcap instr is_valid_utf8 lcase left len length levenshtein locate lower
    lpad ltrim luhn_check make_valid_utf8 mask octet_length overlay position printf quote regexp regexp_count
    regexp_extract regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse right rlike rpad rtrim
    soundex space split split_part startswith substr substring substring_index translate trim try_validate_utf8 ucase
    unbase64 upper url_decode url_encode parse_url try_parse_url try_url_decode decode
"""

_TIMES = """
    add_months date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff
    datepart day dayname dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour last_day make_date
    make_timestamp make_timestamp_ltz make_timestamp_ntz minute month monthname months_between next_day quarter second
    timestamp_micros timestamp_millis timestamp_seconds to_unix_timestamp to_utc_timestamp trunc unix_date unix_micros
    unix_millis unix_seconds weekday weekofyear year
"""

# Read by the parser itself: Spark lists them nowhere. The last of them are types with a length.
SYNTAX: Final = frozenset({"try_cast", "timestampadd", "timestampdiff", "char", "dec", "numeric", "varchar"})

_HASHES = "crc32 hash md5 sha sha1 sha2 xxhash64"

_JSON = "get_json_object json_array_length from_json to_json schema_of_json json_object_keys"

_LISTS = """
    array array_contains array_distinct array_join array_max array_min array_position array_size array_sort cardinality
    element_at flatten get named_struct size slice sort_array struct try_element_at
"""

ALLOWED: Final = frozenset(" ".join(
    [_CHOICE, _CASTS, _NUMBERS, _TEXTS, _TIMES, _HASHES, _JSON, _LISTS]).split())

# Why the best known of the others are refused.
_CLOCK = ("curdate current_date current_time current_timestamp current_timezone localtime localtimestamp now "
          "unix_timestamp")
_CHANCE = "rand randn random randstr shuffle uniform uuid monotonically_increasing_id spark_partition_id"
_PLACE = ("current_catalog current_database current_schema current_user input_file_block_length "
          "input_file_block_start input_file_name session_user user version")
_TOGETHER = """
    any any_value approx_count_distinct array_agg avg bit_and bit_or bit_xor bool_and bool_or collect_list collect_set
    count count_if every first first_value grouping grouping_id last last_value listagg max max_by mean median min
    min_by mode percentile percentile_approx some std stddev string_agg sum try_avg try_sum var_pop var_samp variance
"""
_WINDOWS = "cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number session_window window"
_MANY = "explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer stack"
_REACH = "aes_decrypt aes_encrypt assert_true java_method raise_error reflect try_reflect"

REASONS: Final[dict[str, str]] = {
    **dict.fromkeys(_CLOCK.split(), "tells the time: the same row would not always give the same"),
    **dict.fromkeys(_CHANCE.split(), "is not the same each time it is asked for the same row"),
    **dict.fromkeys(_PLACE.split(), "depends on the session, not on the row"),
    **dict.fromkeys(_TOGETHER.split(), "is an aggregate: a filter or projection sees one row at a time"),
    **dict.fromkeys(_WINDOWS.split(), "looks at other rows: a filter or projection sees one row at a time"),
    **dict.fromkeys(_MANY.split(), "makes several rows of one"),
    **dict.fromkeys(_REACH.split(), "does more than to reckon with the row"),
}

# Names that are functions without parentheses, unless the table has such a column; quoted as well.
BARE: Final = frozenset({"current_date", "current_time", "current_timestamp", "current_user", "session_user", "user",
                         "grouping__id", "localtimestamp", "localtime"})


def why_not(name: str) -> str | None:
    """Why this function may not be called; None: it may. `name` in lower case."""
    if name in ALLOWED or name in SYNTAX:
        return None
    return f"{name} {REASONS.get(name, 'is no function that filters and projections may call')}"
