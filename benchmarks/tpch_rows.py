"""Creates the tables of TPC-H and prints its queries. Runs with the Python of an environment with DuckDB's TPC-H
extension:

    python tpch_rows.py FOLDER SCALE

Each table becomes a Parquet file. The queries go to standard output as a JSON list, in DuckDB's dialect.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main(folder: Path, scale: float) -> None:
    """Creates the tables for a scale factor and prints the queries."""
    duckdb = importlib.import_module("duckdb")
    package = Path(str(importlib.import_module("duckdb_extension_tpch").__file__)).parent
    (extension,) = package.rglob("*.duckdb_extension")
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension}'")
        connection.execute(f"CALL dbgen(sf = {scale})")
        for (name,) in connection.execute("SHOW TABLES").fetchall():
            connection.execute(f"COPY {name} TO '{folder / name}.parquet' (FORMAT parquet)")
        queries = connection.execute("SELECT query FROM tpch_queries() ORDER BY query_nr").fetchall()
    print(json.dumps([query for (query,) in queries]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
