"""`deltaworks sql --serve` ends at Ctrl-C, also while a client does not read its rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from pyarrow import flight

from deltaworks.sql_server import messages
from deltaworks.testing import declare_pipeline, declare_table, load_project

_READY = "Serving SQL at "
_LARGE = messages.encode("CommandStatementQuery", query="SELECT repeat('x', 1000) FROM range(9000000)")
_PATIENCE_SECONDS = 60


def test_a_client_that_stops_reading_does_not_hold_the_command(tmp_path: Path) -> None:
    catalog = load_project(tmp_path, declare_pipeline(declare_table("orders", "id long", when="order")))
    environment = {**os.environ, "DELTAWORKS_PROJECT": str(catalog.root), "DELTAWORKS_ENVIRONMENT": "local"}
    command = [sys.executable, "-m", "deltaworks.cli", "sql", "--serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if line.startswith(_READY))
            words = line.removeprefix(_READY).split()
            url, password = words[0], words[-1]
            with flight.connect(url) as client:
                options = flight.FlightCallOptions(headers=[client.authenticate_basic_token("deltaworks", password)])
                information = client.get_flight_info(flight.FlightDescriptor.for_command(_LARGE), options)
                reader = client.do_get(information.endpoints[0].ticket, options)
                reader.read_chunk()

                process.send_signal(signal.SIGINT)
                exit_code = process.wait(_PATIENCE_SECONDS)
                reader.cancel()

            assert exit_code == 0
        finally:
            process.kill()
