"""Binding the two ports, and what whoever meets a taken one is told."""

from __future__ import annotations

import pytest

from gateway.app.serving import listening


@pytest.mark.parametrize(("flags", "flag"), [("", "--port"), ("admin-", "--admin-port")])
def test_a_busy_port_is_told_with_the_flag_that_chooses_another(flags: str, flag: str) -> None:
    """Two servers on one port are the commonest mistake: the line ends with the way out."""
    variable = "SLUICE_" + flag[2:].replace("-", "_").upper()
    whose = "the admin API " if flags else ""
    with listening("127.0.0.1", 0) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        said = (
            rf"^{whose}cannot listen on 127.0.0.1:{port}: Address already in use; "
            rf"choose another with {flag}, or {variable} \(0: any free\)$"
        )
        with pytest.raises(OSError, match=said), listening("127.0.0.1", port, flags):
            pass


def test_an_address_of_another_machine_is_told_with_its_flag() -> None:
    """Where the address is wrong, another port would not help."""
    with pytest.raises(OSError, match="--host, or SLUICE_HOST"), listening("192.0.2.1", 0):
        pass
