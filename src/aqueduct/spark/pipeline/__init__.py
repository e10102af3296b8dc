"""``aqueduct pipeline``: devices, a gateway, ingest, two streaming queries, tables and a report.

::

    devices ==channels==> gateway ==producer==> ingest server --> readings (table)
    (a process)           (a process)           (a process)   --> windows  (table) --> report

Devices send over channels of all three modes, through a relay that drops packets. The gateway
stores what arrives in ingest servers; from there, each record reaches the tables exactly once.
"""
