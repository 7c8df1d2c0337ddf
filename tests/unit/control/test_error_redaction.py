"""Error messages of libraries contain no data values; each pattern comes from the library itself."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaworks.control.foreign_errors import REDACTED_VALUE, redact_values
from deltaworks.control.job import as_deltaworks_error, run_job

CANARY = "canary7f3a"
#: Texts of Spark and of Delta, which no test without a JVM can raise.
SPARK = (
    f'[CAST_INVALID_INPUT] The value \'{CANARY} o\'clock\' of the type "STRING" cannot be cast to "INT" because',
    f'[CAST_OVERFLOW] The value {CANARY}L of the type "BIGINT" cannot be cast to "INT" due to an overflow.',
    f"[CANNOT_PARSE_TIMESTAMP] Text '{CANARY}' could not be parsed at index 0.",
    "[DELTA_VIOLATE_CONSTRAINT_WITH_VALUES] CHECK constraint positive (a > 0) violated by row with values:"
    f"\n - a : {CANARY}\n - b : {CANARY} x",
)
CONVERSIONS: dict[str, Callable[[str], object]] = {
    "python's int": int,
    "python's float": float,
    "python's date": dt.date.fromisoformat,
    "arrow's array": lambda text: pa.array([1, text]),
    "arrow's cast": lambda text: pc.cast(pa.array([text]), pa.int64()),
    "arrow's time": lambda text: pc.cast(pa.array([text]), pa.timestamp("us")),
    "arrow's decimal": lambda text: pc.cast(pa.array([text]), pa.decimal128(4, 2)),
    "duckdb's cast": lambda text: duckdb.execute("SELECT CAST(? AS INTEGER)", [text]).fetchall(),
    "duckdb's date": lambda text: duckdb.execute("SELECT CAST(? AS DATE)", [text]).fetchall(),
    "duckdb's timestamp": lambda text: duckdb.execute("SELECT CAST(? AS TIMESTAMP)", [text]).fetchall(),
    "duckdb's boolean": lambda text: duckdb.execute("SELECT CAST(? AS BOOLEAN)", [text]).fetchall(),
    "duckdb's strptime": lambda text: duckdb.execute("SELECT strptime(?, '%Y')", [text]).fetchall(),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
@given(around=st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=6))
def test_values_that_a_library_could_not_convert_are_redacted(convert: Callable[[str], object], around: str) -> None:
    with pytest.raises((ValueError, TypeError, pa.ArrowException, duckdb.Error)) as raised:
        convert(f"{around}{CANARY}{around}")

    assert CANARY not in redact_values(str(raised.value))
    assert CANARY not in as_deltaworks_error(raised.value).as_line()


@pytest.mark.parametrize("text", SPARK)
def test_values_that_spark_could_not_convert_are_redacted(text: str) -> None:
    assert CANARY in text
    assert CANARY not in redact_values(text)
    assert REDACTED_VALUE in redact_values(text)


@pytest.mark.parametrize(
    "text", ["Table 's3://lake/tables/x' is gone", "The value of this option is not what it was", "no column 'a' here"]
)
def test_other_texts_are_unchanged(text: str) -> None:
    assert redact_values(text) == text


def test_the_traceback_of_a_failed_job_contains_no_value(capfd: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        text = f"{CANARY} o'clock"
        return int(text)

    assert run_job(main, watch_parent=False) == 1

    said = capfd.readouterr()
    assert "int(text)" in said.err
    assert CANARY not in (said.out + said.err).replace('text = f"{CANARY}', "")
